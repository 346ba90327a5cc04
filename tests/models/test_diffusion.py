"""Every renderer, end to end on tiny checkpoints of its own classes."""

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from renderers import INPAINTERS, WEIGHTS, TinyRenderers, difference, fill, photograph, run, small_condition, watch

from editfoundry.core.errors import UsageError
from editfoundry.core.geometry import Mask
from editfoundry.models.diffusion.editors import FluxKontextEditor, QwenImageEditor
from editfoundry.models.diffusion.flux import FluxFillPainter, FluxReduxInserter, FluxReferenceGenerator
from editfoundry.models.diffusion.flux_control import InpaintingControlNet, JoinedControlNets, packed_known
from editfoundry.models.diffusion.sdxl import SdxlCannyAdjuster, SdxlPainter, SdxlRemover, SdxlStyleTransfer
from editfoundry.models.diffusion.soft_mask import SoftMask
from editfoundry.models.protocols import Drawing, Instructed, Restyle

pytestmark = pytest.mark.slow
TOLERANCE = 2
"""Grey levels by which a batch may differ from singles: matrix products of other sizes add up in another order."""


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> TinyRenderers:
    return TinyRenderers(tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_renders_the_same_bytes_for_a_seed_and_others_for_another(
    kind: Any, make: TinyRenderers, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_condition(monkeypatch)
    model = make(kind)
    first = run(model)[0]
    state = torch.get_rng_state()
    again, other = run(model)[0], run(model, (2,))[0]
    assert torch.equal(torch.get_rng_state(), state), "torch's own generator stays untouched"
    assert first.dtype == np.uint8 and first.shape == (96, 128, 3)
    assert np.array_equal(first, again) and difference(first, other) > 10


@pytest.mark.parametrize("kind", INPAINTERS)
def test_pixels_outside_the_mask_stay_to_the_bit(kind: Any, make: TinyRenderers) -> None:
    model = make(kind)
    corner = np.zeros((96, 128), bool)
    corner[:30, 90:] = True
    requests = [fill(), fill(mask=Mask(corner)), fill(mask=Mask(np.ones((96, 128), bool)))]
    for request, result in zip(requests, model.inpaint(requests), strict=True):
        inside = request.mask.array
        assert np.array_equal(request.image, photograph())
        assert np.array_equal(result[~inside], request.image[~inside])
        assert (result != request.image).any(axis=-1)[inside].mean() > 0.9


@pytest.mark.parametrize("kind", [kind for kind in WEIGHTS if kind not in (SdxlStyleTransfer, SdxlPainter)])
def test_a_batch_equals_its_members(kind: Any, make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    small_condition(monkeypatch)
    seeds, images = (1, 2, 3), tuple(photograph(seed=seed) for seed in range(3))
    together = run(make(kind, batch=3), seeds, images)
    single = make(kind, batch=1)
    alone = [run(single, (seed,), (image,))[0] for seed, image in zip(seeds, images, strict=True)]
    assert max(map(difference, together, alone)) <= TOLERANCE
    assert min(difference(together[0], together[1]), difference(together[1], together[2])) > 10


def test_batches_hold_one_shape_and_answers_keep_their_order(
    make: TinyRenderers, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(FluxKontextEditor, batch=2)
    sizes = [(64, 64), (48, 96), (64, 64), (64, 64), (70, 50)]
    requests = [Instructed(photograph(h, w, i), "x", seed=i) for i, (w, h) in enumerate(sizes)]
    alone = [model.edit([request])[0] for request in requests]
    seen = watch(model, monkeypatch)
    together = model.edit(requests)
    assert [(image.shape[1], image.shape[0]) for image in together] == sizes
    assert [difference(*pair) <= TOLERANCE for pair in zip(together, alone, strict=True)] == [True] * 5
    calls = [(len(call["prompt"]), call["width"], call["height"]) for call in seen]
    assert calls == [(2, 64, 64), (1, 64, 64), (1, 48, 96), (1, 80, 48)]


def test_models_of_one_checkpoint_share_one_pipeline(make: TinyRenderers) -> None:
    painter, inserter, other = make(FluxFillPainter), make(FluxReduxInserter), make(FluxFillPainter, dtype="bfloat16")
    remover, adjuster = make(SdxlRemover), make(SdxlCannyAdjuster)
    for model in (painter, inserter, other, remover, adjuster):
        model.load()
    assert painter.pipe is inserter.pipe and painter.pipe is not other.pipe
    assert adjuster.pipe.unet is remover.pipe.unet
    held = painter.pipe
    painter.load()
    assert painter.pipe is held


def test_renders_in_bfloat16(make: TinyRenderers) -> None:
    for kind in (SdxlCannyAdjuster, FluxReduxInserter):
        model = make(kind, dtype="bfloat16")
        result = run(model)[0]
        assert next(model.pipe.vae.parameters()).dtype == torch.bfloat16
        assert difference(result, run(make(kind))[0]) > 0 and result.std() > 10


def test_a_prompt_and_a_reference_decide_what_is_painted(make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    inserter = make(FluxReduxInserter)
    seen = watch(inserter, monkeypatch)
    references = (photograph(40, 56, seed=9), photograph(56, 40, seed=5))
    a, b = (inserter.inpaint([fill(reference=reference)])[0] for reference in references)
    assert not np.array_equal(a, b)
    first, second = (call["prompt_embeds"] for call in seen)
    assert first.shape == (1, 512 + 16, 32), "the prompt's tokens, then one for each patch of the reference"
    assert torch.equal(first[:, :512], second[:, :512]) and (first - second)[:, 512:].abs().max() > 0.1
    painter = make(FluxFillPainter)
    assert difference(painter.inpaint([fill()])[0], painter.inpaint([fill(prompt="a blue car")])[0]) > 0
    style = make(SdxlStyleTransfer, adapter_scale=1.0, adapter_end=1.0)
    image = photograph()
    requests = [
        Restyle(image, photograph(40, 56, seed=s), words, 1) for s, words in ((9, "ink"), (5, "ink"), (9, "oil"))
    ]
    first, reference, words = style.stylise(requests)
    assert difference(first, reference) > 0 and difference(first, words) > 0


def test_a_4_channel_checkpoint_serves_the_inpainting_pipeline(make: TinyRenderers) -> None:
    model = make(SdxlRemover, checkpoint=make.folder("sdxl_base"))
    result = run(model)[0]
    assert model.pipe.unet.config.in_channels == 4
    outside = ~fill().mask.array
    assert np.array_equal(result[outside], photograph()[outside]) and difference(result, photograph()) > 50


def test_the_soft_mask_frees_a_pixel_the_later_the_darker_its_mask(make: TinyRenderers) -> None:
    model = make(SdxlRemover)
    model.load()
    levels = np.repeat(np.repeat(np.array([[0, 64, 128, 255]], np.uint8), 64, axis=0), 16, axis=1)
    pictures = [PIL.Image.fromarray(photograph(64, 64))]
    soft = SoftMask(model.pipe, pictures, [levels], [1])
    freed: list[list[bool]] = []

    def spy(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        after = soft(pipe, step, timestep, dict(tensors))["latents"]
        freed.append([bool(torch.equal(after[..., x], tensors["latents"][..., x])) for x in (4, 12, 20, 28)])
        return {"latents": after}

    latents = model.pipe(
        prompt=[""],
        image=pictures,
        mask_image=[PIL.Image.fromarray(levels)],
        width=64,
        height=64,
        strength=1.0,
        num_inference_steps=8,
        generator=[torch.Generator().manual_seed(1)],
        callback_on_step_end=spy,
        output_type="latent",
    ).images
    assert [sum(steps) for steps in zip(*freed, strict=True)] == [0, 3, 5, 8]
    assert torch.equal(latents[..., :8], soft.original[..., :8]), "black stays the original"
    assert (latents[..., 24:] - soft.original[..., 24:]).abs().mean() > 0.1


def test_a_white_mask_pins_nothing(make: TinyRenderers) -> None:
    soft, hard = make(SdxlRemover, blend=0), make(SdxlRemover, blend=0, soft_mask=False)
    whole = fill(mask=Mask(np.ones((96, 128), bool)))
    assert np.array_equal(soft.inpaint([whole])[0], hard.inpaint([whole])[0])
    assert not np.array_equal(soft.inpaint([fill()])[0], hard.inpaint([fill()])[0])


def test_depth_may_take_the_place_of_edges(make: TinyRenderers) -> None:
    edges, depth = make(SdxlCannyAdjuster), make(SdxlCannyAdjuster, condition="depth", depth=make.folder("depth"))
    assert difference(run(edges)[0], run(depth)[0]) > 0
    assert edges.digest() != depth.digest()
    shown = depth._condition(photograph())
    assert shown.shape == (96, 128, 3) and shown.dtype == np.uint8 and (shown.min(), shown.max()) == (0, 255)


def test_drawings_have_exactly_the_size_asked(make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(FluxReferenceGenerator, batch=2)
    seen = watch(model, monkeypatch)
    results = model.draw([Drawing("a cat", 1, (50, 70)), Drawing("a bird", 2, (64, 64)), Drawing("a dog", 3, (51, 71))])
    assert [image.shape for image in results] == [(70, 50, 3), (64, 64, 3), (71, 51, 3)]
    assert [call["prompt"][0].split(",")[0] for call in seen] == [
        "a studio photograph of a cat",
        "a studio photograph of a bird",
    ]
    assert seen[0]["prompt"][1].endswith("alone on a plain light grey background, soft even light")


def test_references_go_to_the_checkpoints_that_take_them(make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    small_condition(monkeypatch)
    plus = make(QwenImageEditor, checkpoint=make.folder("qwen_image_edit_plus"))
    seen = watch(plus, monkeypatch)
    request = Instructed(photograph(), "add it", 1, (photograph(40, 56),))
    result = plus.edit([request])[0]
    assert result.shape == (96, 128, 3)
    assert [image.size for image in seen[0]["image"]] == [(80, 48), (56, 40)]
    with pytest.raises(UsageError, match="takes 3 pictures in all, and this request has 4"):
        plus.edit([Instructed(photograph(), "x", 1, (photograph(),) * 3)])
    for kind in (QwenImageEditor, FluxKontextEditor):
        with pytest.raises(UsageError, match="takes one picture, and this request has 1 references"):
            make(kind).edit([request])


def test_joined_controlnets_add_each_nets_own_blocks(make: TinyRenderers) -> None:
    from diffusers import FluxControlNetModel

    edges = FluxControlNetModel.from_pretrained(make.folder("flux_controlnet_canny"))
    inpainting = InpaintingControlNet.from_pretrained(make.folder("flux_controlnet_inpaint"))
    assert inpainting.controlnet_x_embedder.in_features == 20
    joined = JoinedControlNets(edges, inpainting, (4, 3))
    rng = torch.Generator().manual_seed(0)
    tokens, text = torch.randn(1, 16, 16, generator=rng), torch.randn(1, 5, 32, generator=rng)
    shared: dict[str, Any] = {
        "hidden_states": tokens,
        "encoder_hidden_states": text,
        "pooled_projections": torch.randn(1, 32, generator=rng),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(5, 3),
        "return_dict": False,
    }
    known = packed_known((torch.rand(1, 1, 8, 8, generator=rng) > 0.5).float())
    joined.known = known
    with torch.no_grad():
        double, single = joined(
            controlnet_cond=[tokens, tokens], controlnet_mode=None, conditioning_scale=[1.0, 0.5], **shared
        )
        a, a_single = edges(controlnet_cond=tokens, conditioning_scale=1.0, **shared)
        b, b_single = inpainting(controlnet_cond=torch.cat([tokens, known], dim=-1), conditioning_scale=0.5, **shared)
    assert b_single is None and len(a) == 1 and len(b) == 2
    for index, block in enumerate(double):
        assert torch.allclose(block, a[0] + b[index // 2])
    assert [torch.equal(block, a_single[0]) for block in single] == [True] * 3


def test_the_mask_of_known_pixels_is_packed_as_latents_are() -> None:
    from diffusers import FluxFillPipeline

    masks = (torch.rand(2, 1, 6, 8, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    assert torch.equal(packed_known(masks), FluxFillPipeline._pack_latents(1 - masks, 2, 1, 6, 8))
