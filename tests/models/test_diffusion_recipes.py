"""What each pipeline is told, on the recipe table's own numbers; LoRAs; what a user gets wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from renderers import WEIGHTS, TinyRenderers, difference, fill, photograph, run, small_condition, watch
from safetensors.torch import load_file, save_file

from editfoundry.core.errors import ConfigError, ModelMissing, UsageError
from editfoundry.models.diffusion.editors import FluxKontextEditor, QwenImageEditor
from editfoundry.models.diffusion.flux import (
    FluxCannyAdjuster,
    FluxFillPainter,
    FluxReduxInserter,
    FluxReferenceGenerator,
)
from editfoundry.models.diffusion.runtime import resident
from editfoundry.models.diffusion.sdxl import SdxlCannyAdjuster, SdxlPainter, SdxlRemover, SdxlStyleTransfer
from editfoundry.models.protocols import Restyle

pytestmark = pytest.mark.slow

TABLE: dict[Any, dict[str, Any]] = {
    SdxlRemover: {"num_inference_steps": 21, "guidance_scale": 3.0, "strength": 1.0},
    SdxlPainter: {"num_inference_steps": 21, "guidance_scale": 3.0, "strength": 1.0, "prompt": ["a red apple"]},
    SdxlCannyAdjuster: {
        "num_inference_steps": 21,
        "guidance_scale": 3.0,
        "strength": 1.0,
        "controlnet_conditioning_scale": 0.9,
        "control_guidance_start": 0.0,
        "control_guidance_end": 0.7,
        "prompt": ["a red apple"],
    },
    SdxlStyleTransfer: {
        "num_inference_steps": 21,
        "guidance_scale": 5.0,
        "controlnet_conditioning_scale": 0.8,
        "control_guidance_start": 0.0,
        "control_guidance_end": 0.7,
        "prompt": "in ink",
    },
    FluxFillPainter: {"num_inference_steps": 12, "guidance_scale": 30.0, "strength": 1.0, "prompt": ["a red apple"]},
    FluxReduxInserter: {"num_inference_steps": 15, "guidance_scale": 40.0, "strength": 1.0},
    FluxCannyAdjuster: {
        "num_inference_steps": 15,
        "guidance_scale": 3.5,
        "strength": 1.0,
        "controlnet_conditioning_scale": [1.0, 1.0],
        "prompt": ["a red apple"],
    },
    FluxReferenceGenerator: {
        "num_inference_steps": 10,
        "guidance_scale": 2.5,
        "width": 80,
        "height": 48,
        "prompt": [
            "a studio photograph of a red apple, the whole object, centred, alone on a plain light grey background, "
            "soft even light"
        ],
    },
    FluxKontextEditor: {
        "num_inference_steps": 28,
        "guidance_scale": 2.5,
        "_auto_resize": False,
        "max_area": 80 * 48,
        "prompt": ["add a red apple"],
    },
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> TinyRenderers:
    return TinyRenderers(tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("kind", TABLE)
def test_each_pipeline_is_told_what_the_recipe_table_says(
    kind: Any, make: TinyRenderers, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(kind, steps=None)
    seen = watch(model, monkeypatch)
    run(model)
    assert len(seen) == 1
    assert {key: seen[0].get(key) for key in TABLE[kind]} == TABLE[kind]
    generator = seen[0]["generator"]
    assert (generator[0] if isinstance(generator, list) else generator).device.type == "cpu"


def test_the_table_covers_every_renderer_but_qwens(make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(WEIGHTS) - set(TABLE) == {QwenImageEditor}
    options = QwenImageEditor.Options()
    assert (options.steps, options.guidance, options.work_size) == (50, 4.0, 1024)
    small_condition(monkeypatch)
    model = make(QwenImageEditor)
    seen = watch(model, monkeypatch)
    run(model)
    assert (seen[0]["true_cfg_scale"], seen[0]["negative_prompt"]) == (4.0, [" "])


def test_removal_asks_for_emptiness(make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(SdxlRemover)
    seen = watch(model, monkeypatch)
    model.inpaint([fill(prompt=""), fill(prompt="a lawn")])
    empty, lawn = seen[0]["prompt"]
    assert empty.startswith("an empty place") and lawn == f"a lawn, {empty}"
    assert all(prompt.startswith("object, person, animal") for prompt in seen[0]["negative_prompt"])


def test_sdxl_samples_with_dpm_plus_plus_2m_on_karras_sigmas(make: TinyRenderers) -> None:
    for kind in (SdxlRemover, SdxlPainter, SdxlCannyAdjuster, SdxlStyleTransfer):
        model = make(kind)
        model.load()
        scheduler = model.pipe.scheduler
        assert type(scheduler).__name__ == "DPMSolverMultistepScheduler"
        assert (scheduler.config.algorithm_type, scheduler.config.solver_order) == ("dpmsolver++", 2)
        assert scheduler.config.use_karras_sigmas


def test_the_model_sees_a_blurred_mask_and_work_sized_crops(
    make: TinyRenderers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (SdxlRemover, FluxFillPainter):
        seen = watch(model := make(kind), monkeypatch)
        model.inpaint([fill()])
        image, mask = seen[0]["image"][0], seen[0]["mask_image"][0]
        assert image.size == mask.size == (64, 64) == (seen[0]["width"], seen[0]["height"])
        levels = np.asarray(mask)
        assert mask.mode == "L" and levels.max() == 255 and ((levels > 10) & (levels < 245)).any()


def test_canny_controls_come_from_the_crop(make: TinyRenderers, monkeypatch: pytest.MonkeyPatch) -> None:
    from editfoundry.models.diffusion.controls import canny

    sdxl, flux = make(SdxlCannyAdjuster), make(FluxCannyAdjuster)
    for model, low, high, side in ((sdxl, 70, 220, 768), (flux, 50, 170, 1024)):
        seen = watch(model, monkeypatch)
        model.inpaint([fill()])
        control = seen[0]["control_image"]
        edges = np.asarray(control[0] if model is sdxl else control[0][0])
        crop = np.asarray(seen[0]["image"][0])
        assert np.array_equal(edges, canny(crop, low, high, side)) and edges.max() == 255
    hidden, mask = np.asarray(control[1][0]), np.asarray(seen[0]["mask_image"][0])
    assert (hidden[mask >= 128] == 0).all() and np.array_equal(hidden[mask < 128], crop[mask < 128])


def test_the_reference_has_a_say_over_the_first_70_percent_of_the_steps(
    make: TinyRenderers, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(SdxlStyleTransfer, steps=None)
    model.load()
    scales: list[float] = []
    kind = type(model.pipe)
    original = kind.set_ip_adapter_scale

    def recorded(pipe: Any, scale: float) -> None:
        scales.append(scale)
        original(pipe, scale)

    monkeypatch.setattr(kind, "set_ip_adapter_scale", recorded)
    model.stylise([Restyle(photograph(), photograph(40, 56), "in ink", 1, strength=0.5)])
    assert model.options.adapter_scale == 0.2 and scales == [0.1] * 14 + [0.0] * 8


def lora(pipe: Any, folder: Path) -> Path:
    """A LoRA of random numbers for a pipeline's denoiser, in the released layout."""
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    part = "unet" if hasattr(pipe, "unet") else "transformer"
    denoiser = getattr(pipe, part)
    denoiser.add_adapter(LoraConfig(r=4, lora_alpha=4, target_modules=["to_q", "to_k", "to_v"]))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(value.shape, generator=generator)
        for name, value in get_peft_model_state_dict(denoiser).items()
    }
    pipe.save_lora_weights(folder, **{f"{part}_lora_layers": weights})
    return folder / "pytorch_lora_weights.safetensors"


@pytest.mark.parametrize("kind", [SdxlCannyAdjuster, FluxFillPainter])
def test_a_lora_changes_the_result_and_at_scale_0_does_not(kind: Any, make: TinyRenderers, tmp_path: Path) -> None:
    from editfoundry.models.diffusion.runtime import opened

    plain = make(kind)
    name = "StableDiffusionXLInpaintPipeline" if kind is not FluxFillPainter else "FluxFillPipeline"
    file = lora(opened(name, plain.options), tmp_path)
    expected = run(plain)[0]
    with_lora = make(kind, loras=[{"path": str(file)}])
    weaker = make(kind, loras=[{"path": str(tmp_path), "weight": file.name, "scale": 0.5}])
    silent = make(kind, loras=[{"path": str(file), "scale": 0.0}])
    assert difference(run(with_lora)[0], expected) > 5
    assert not np.array_equal(run(weaker)[0], run(with_lora)[0])
    assert np.array_equal(run(silent)[0], expected)
    assert np.array_equal(run(plain)[0], expected), "the plain pipeline is another one"


def test_a_lora_of_another_model_is_refused(make: TinyRenderers, tmp_path: Path) -> None:
    from editfoundry.models.diffusion.runtime import opened

    file = lora(opened("FluxFillPipeline", make(FluxFillPainter).options), tmp_path)
    with pytest.raises(ConfigError, match="does not fit StableDiffusionXLInpaintPipeline"):
        make(SdxlPainter, loras=[{"path": str(file)}]).load()


def test_checkpoints_of_another_kind_and_pickles_are_refused(make: TinyRenderers, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="not a checkpoint that StableDiffusionXLInpaintPipeline can load"):
        make(SdxlPainter, checkpoint=make.folder("flux")).load()
    with pytest.raises(ModelMissing, match="expected QwenImageEditPipeline or QwenImageEditPlusPipeline"):
        make(QwenImageEditor, checkpoint=make.folder("flux")).load()
    with pytest.raises(ModelMissing, match="InpaintingControlNet"):
        make(FluxCannyAdjuster, inpainting=make.folder("flux_controlnet_canny")).load()
    unsafe = TinyRenderers(tmp_path)
    weights = Path(unsafe.folder("sdxl_inpaint")) / "unet" / "diffusion_pytorch_model.safetensors"
    torch.save({}, weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(ModelMissing, match="can load"):
        unsafe(SdxlPainter).load()
    with pytest.raises(ModelMissing, match="no such folder"):
        make(FluxReduxInserter, redux=str(tmp_path / "absent")).load()


@pytest.mark.parametrize("part", ["unet", "vae", "text_encoder"])
def test_a_checkpoint_that_lacks_a_weight_is_refused_not_completed_at_random(part: str, tmp_path: Path) -> None:
    make = TinyRenderers(tmp_path)
    [file] = (Path(make.folder("sdxl_inpaint")) / part).glob("*.safetensors")
    weights = load_file(file)
    lost = sorted(weights)[-1]
    save_file({name: weight for name, weight in weights.items() if name != lost}, file, metadata={"format": "pt"})
    with pytest.raises(ModelMissing, match=f"lacks 1 weights of .*{part}.*|{part}: lacks 1 weights of CLIPTextModel"):
        make(SdxlPainter).load()


def test_offload_is_refused_on_a_cpu(make: TinyRenderers) -> None:
    for offload in ("model", "sequential"):
        with pytest.raises(UsageError, match=f"offload: {offload} needs a GPU"):
            resident("FluxFillPipeline", make(FluxFillPainter, offload=offload).options)
