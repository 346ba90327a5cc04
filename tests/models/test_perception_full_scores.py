"""CLIP, the aesthetic head, SigLIP, DINOv2 and depth on tiny checkpoints of their classes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import transformers
from PIL import Image as PillowImage
from safetensors.torch import load_file, save_file

from editfoundry.core.errors import ModelMissing
from editfoundry.models.perception.aesthetic import LaionAestheticScorer
from editfoundry.models.perception.base import CheckpointError
from editfoundry.models.perception.clip import ClipImageEmbedder, ClipScorer
from editfoundry.models.perception.depth import DepthAnythingEstimator
from editfoundry.models.perception.dinov2 import DinoImageEmbedder
from editfoundry.models.perception.siglip import SiglipImageEmbedder
from editfoundry.models.protocols import Float, Image

TEXTS = ["a cup of coffee", "a cat", "an astronaut", "a dog on a table", "red"]
EMBEDDERS = {"open_clip": ClipImageEmbedder, "siglip": SiglipImageEmbedder, "dinov2": DinoImageEmbedder}
Tiny = Callable[[str], str]


def noise(height: int, width: int, seed: int = 0) -> Image:
    """Large blotches: pixel noise looks the same everywhere at the tiny models' 32 pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.array(PillowImage.fromarray(coarse).resize((width, height), PillowImage.Resampling.BICUBIC))


IMAGES = [noise(60, 80, 1), noise(80, 60, 2), noise(33, 47, 3), noise(200, 100, 4), noise(40, 40, 5)]


def scorer(tiny_folder: Tiny, **options: Any) -> ClipScorer:
    made = ClipScorer(ClipScorer.Options(checkpoint=tiny_folder("open_clip"), **options))
    made.load()
    return made


def counted(module: torch.nn.Module, request: pytest.FixtureRequest) -> list[int]:
    """One entry per forward pass: how many inputs it had."""
    sizes: list[int] = []
    hook = module.register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    request.addfinalizer(hook.remove)  # the model is shared in the process
    return sizes


def clip_by_hand(folder: str, images: list[Image], texts: list[str]) -> tuple[Float, Float]:
    """Normalised embeddings, one at a time, by open_clip's own way."""
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    model.eval()
    with torch.inference_mode():
        seen = [model.encode_image(preprocess(PillowImage.fromarray(one))[None])[0].numpy() for one in images]
        said = [model.encode_text(tokenizer([one]))[0].numpy() for one in texts]
    return (
        np.stack([one / np.linalg.norm(one) for one in seen]),
        np.stack([one / np.linalg.norm(one) for one in said]),
    )


# ---- CLIP -----------------------------------------------------------------------------------------------------------


def test_clip_score_is_two_and_a_half_cosines(tiny_folder: Tiny) -> None:
    seen, said = clip_by_hand(tiny_folder("open_clip"), IMAGES, TEXTS)
    pairs = [(image, text) for image in range(5) for text in range(5)]
    scores = scorer(tiny_folder).score([IMAGES[image] for image, _ in pairs], [TEXTS[text] for _, text in pairs])
    cosines = [float(seen[image] @ said[text]) for image, text in pairs]
    assert scores == pytest.approx([2.5 * max(cosine, 0) for cosine in cosines], abs=1e-5)
    assert min(cosines) < -0.02 < 0.02 < max(cosines), "both branches of the formula are met"
    assert ClipScorer.metric == "clip_score"


def test_clip_batches_agree_with_single_images(tiny_folder: Tiny) -> None:
    together = scorer(tiny_folder, batch=32).score(IMAGES, TEXTS)
    apart = [scorer(tiny_folder).score([image], [text])[0] for image, text in zip(IMAGES, TEXTS, strict=True)]
    by_two = scorer(tiny_folder, batch=2).score(IMAGES, TEXTS)
    assert together == pytest.approx(apart, abs=1e-5)
    assert together == pytest.approx(by_two, abs=1e-5)


def test_clip_encodes_each_distinct_input_once(tiny_folder: Tiny, request: pytest.FixtureRequest) -> None:
    made = scorer(tiny_folder, batch=3)
    images = counted(made._towers.model.visual, request)
    texts = counted(made._towers.model.token_embedding, request)
    every = [image for image in IMAGES for _ in TEXTS] + [IMAGES[0].copy()]
    scores = made.score(every, [f"fresh {text}" for _ in IMAGES for text in TEXTS] + ["fresh a cat"])
    assert images == [3, 2]
    assert texts == [1] * 5
    assert scores[-1] == scores[1]
    made.score(IMAGES[:1] * 2, ["fresh a cat", "fresh red"])
    assert (images, texts) == ([3, 2, 1], [1] * 5), "labels are remembered between calls, images are not"


def test_clip_score_never_depends_on_what_was_asked_before(tiny_folder: Tiny) -> None:
    made = scorer(tiny_folder)
    alone = made.score(IMAGES[:1], ["an unseen text"])
    made.score(IMAGES[:2], ["another unseen text", "a third"])
    assert made.score(IMAGES[:1], ["an unseen text"]) == alone
    assert np.array_equal(
        made._towers.texts(["a third", "a fourth"], made.options)[1],
        made._towers.texts(["a fourth"], made.options)[0],
    )


def test_clip_needs_one_text_per_image(tiny_folder: Tiny) -> None:
    made = scorer(tiny_folder)
    with pytest.raises(ValueError, match="2 images cannot be scored against 1 texts: give one text each"):
        made.score(IMAGES[:2], TEXTS[:1])
    assert made.score([], []) == []


def test_clip_takes_any_text(tiny_folder: Tiny) -> None:
    texts = ["", "cup " * 500, "杯子 \x00 <end_of_text> ☕", "CUP"]
    scores = scorer(tiny_folder).score(IMAGES[:1] * 4, texts)
    assert all(0 <= score <= 2.5 for score in scores)
    assert scores[3] == scorer(tiny_folder).score(IMAGES[:1], ["cup"])[0]


def test_direction_is_the_cosine_of_the_changes(tiny_folder: Tiny) -> None:
    made = scorer(tiny_folder)
    seen, said = clip_by_hand(tiny_folder("open_clip"), IMAGES[:2], TEXTS[:2])
    changed, meant = seen[1] - seen[0], said[1] - said[0]
    expected = float(changed @ meant / np.linalg.norm(changed) / np.linalg.norm(meant))
    forth = made.direction(IMAGES[0], IMAGES[1], TEXTS[0], TEXTS[1])
    assert forth == pytest.approx(expected, abs=1e-5)
    assert abs(expected) > 1e-3
    assert made.direction(IMAGES[1], IMAGES[0], TEXTS[0], TEXTS[1]) == pytest.approx(-forth, abs=1e-5)
    assert made.direction(IMAGES[1], IMAGES[0], TEXTS[1], TEXTS[0]) == pytest.approx(forth, abs=1e-5)
    assert made.directional


def test_no_change_has_no_direction(tiny_folder: Tiny) -> None:
    made = scorer(tiny_folder)
    assert made.direction(IMAGES[0], IMAGES[0].copy(), "a cup", "a cat") == 0.0
    assert made.direction(IMAGES[0], IMAGES[1], "a cup", "a cup") == 0.0


def test_scorer_embedder_and_head_share_the_weights(tiny_folder: Tiny) -> None:
    made = scorer(tiny_folder)
    embedder = ClipImageEmbedder(ClipImageEmbedder.Options(checkpoint=tiny_folder("open_clip")))
    embedder.load()
    aesthetic = head(tiny_folder)
    aesthetic.load()
    assert embedder._towers is made._towers is aesthetic._towers


def test_clip_reads_safetensors_only(tiny_folder: Tiny, tmp_path: Path) -> None:
    options = ClipScorer.Options(checkpoint=str(tmp_path))
    with pytest.raises(ModelMissing, match=r"not an open_clip checkpoint: it lacks open_clip_config.json"):
        ClipScorer(options).load()
    config = (Path(tiny_folder("open_clip")) / "open_clip_config.json").read_text()
    (tmp_path / "open_clip_config.json").write_text(config)
    (tmp_path / "open_clip_pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(ModelMissing, match=r"it lacks open_clip_model.safetensors"):
        ClipScorer(options).load()
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint of open_clip"):
        ClipScorer(options).load()
    state = load_file(Path(tiny_folder("open_clip")) / "open_clip_model.safetensors")
    save_file({name: state[name] for name in list(state)[1:]}, tmp_path / "open_clip_model.safetensors")
    with pytest.raises(CheckpointError, match="Missing key"):
        ClipScorer(options).load()


# ---- the aesthetic head ---------------------------------------------------------------------------------------------


def head(tiny_folder: Tiny, **options: Any) -> LaionAestheticScorer:
    given = {"checkpoint": tiny_folder("open_clip"), "head": tiny_folder("aesthetic_head"), **options}
    return LaionAestheticScorer(LaionAestheticScorer.Options(**given))


def test_aesthetic_is_five_linear_layers_on_the_embedding(tiny_folder: Tiny) -> None:
    vectors, _ = clip_by_hand(tiny_folder("open_clip"), IMAGES, ["x"])
    state = load_file(Path(tiny_folder("aesthetic_head")) / "model.safetensors")
    for place in (0, 2, 4, 6, 7):
        vectors = vectors @ state[f"layers.{place}.weight"].numpy().T + state[f"layers.{place}.bias"].numpy()
    scores = head(tiny_folder).aesthetic(IMAGES)
    assert scores == pytest.approx(vectors[:, 0].tolist(), abs=1e-4)
    assert np.ptp(scores) > 0.01
    assert [head(tiny_folder).aesthetic([image])[0] for image in IMAGES] == pytest.approx(scores, abs=1e-5)
    assert head(tiny_folder).aesthetic([]) == []


def test_aesthetic_refuses_any_other_network(tiny_folder: Tiny, tmp_path: Path) -> None:
    from tiny.perception import aesthetic_head

    wide = aesthetic_head(tmp_path / "wide", width=768)
    with pytest.raises(CheckpointError, match=r"embeddings of 768 numbers; the CLIP checkpoint makes 32: use ViT-L/14"):
        head(tiny_folder, head=str(wide)).load()
    state = load_file(Path(tiny_folder("aesthetic_head")) / "model.safetensors")
    file = tmp_path / "other" / "model.safetensors"
    file.parent.mkdir()
    wrong: list[dict[str, torch.Tensor]] = [
        {name: state[name] for name in list(state)[1:]},
        {**state, "layers.9.weight": torch.zeros(1)},
        {**state, "layers.2.weight": torch.zeros(5, 5)},
        {**state, "layers.2.weight": torch.zeros(5)},
        {"weight": torch.zeros(1, 768), "bias": torch.zeros(1)},
    ]
    for other in wrong:
        save_file(other, file)
        with pytest.raises(CheckpointError, match="not the LAION aesthetic head: it needs five linear layers"):
            head(tiny_folder, head=str(file.parent)).load()
    save_file({**state, "layers.2.bias": torch.zeros(5)}, file)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint of the LAION aesthetic head"):
        head(tiny_folder, head=str(file.parent)).load()
    file.unlink()
    file.with_name("head.pth").write_bytes(b"a pickle")
    with pytest.raises(ModelMissing, match=r"model\.safetensors"):
        head(tiny_folder, head=str(file.parent)).load()


def test_aesthetic_takes_any_prefix_of_the_layers(tiny_folder: Tiny, tmp_path: Path) -> None:
    state = load_file(Path(tiny_folder("aesthetic_head")) / "model.safetensors")
    save_file({name.removeprefix("layers."): weight for name, weight in state.items()}, tmp_path / "model.safetensors")
    assert head(tiny_folder, head=str(tmp_path)).aesthetic(IMAGES) == head(tiny_folder).aesthetic(IMAGES)


# ---- embedders ------------------------------------------------------------------------------------------------------


def embedder(tiny_folder: Tiny, name: str, **options: Any) -> Any:
    return EMBEDDERS[name](EMBEDDERS[name].Options(checkpoint=tiny_folder(name), **options))


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_are_unit_rows_in_order_and_ignore_the_batch(tiny_folder: Tiny, name: str) -> None:
    vectors = embedder(tiny_folder, name, batch=32).embed(IMAGES)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    assert np.triu(vectors @ vectors.T, 1).max() < 0.9999, "the tiny model tells the images apart"
    for size in (1, 2):
        assert np.abs(embedder(tiny_folder, name, batch=size).embed(IMAGES) - vectors).max() < 1e-5
    assert np.abs(embedder(tiny_folder, name).embed(IMAGES[::-1])[::-1] - vectors).max() < 1e-5
    empty = embedder(tiny_folder, name).embed([])
    assert empty.shape == (0, vectors.shape[1])
    assert empty.dtype == np.float32


def test_siglip_is_the_whole_models_image_side(tiny_folder: Tiny) -> None:
    model = transformers.SiglipModel.from_pretrained(tiny_folder("siglip"))
    processor = transformers.SiglipImageProcessor.from_pretrained(tiny_folder("siglip"))
    inputs = processor(images=[PillowImage.fromarray(image) for image in IMAGES], return_tensors="pt")
    with torch.inference_mode():
        expected = model.get_image_features(**inputs).pooler_output.numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(embedder(tiny_folder, "siglip").embed(IMAGES) - expected).max() < 1e-5


def test_dinov2_is_the_normalised_class_token(tiny_folder: Tiny) -> None:
    model = transformers.Dinov2Model.from_pretrained(tiny_folder("dinov2"))
    processor = transformers.AutoImageProcessor.from_pretrained(tiny_folder("dinov2"))
    inputs = processor(images=[PillowImage.fromarray(image) for image in IMAGES], return_tensors="pt")
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state[:, 0].numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(embedder(tiny_folder, "dinov2").embed(IMAGES) - expected).max() < 1e-5


def test_clip_embeddings_are_open_clips(tiny_folder: Tiny) -> None:
    expected, _ = clip_by_hand(tiny_folder("open_clip"), IMAGES, ["x"])
    assert np.abs(embedder(tiny_folder, "open_clip").embed(IMAGES) - expected).max() < 1e-5


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embedders_take_strips_and_views(tiny_folder: Tiny, name: str) -> None:
    made = embedder(tiny_folder, name)
    strips = [noise(1, 1), noise(1, 50), noise(50, 1), noise(3, 40), noise(1, 9000), noise(7000, 2)]
    vectors = made.embed(strips)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(6), abs=1e-5)
    view = noise(90, 160)[::-1, ::2]
    assert np.array_equal(made.embed([view]), made.embed([view.copy()]))


@pytest.mark.parametrize("name", EMBEDDERS)
def test_half_precision_stays_close(tiny_folder: Tiny, name: str) -> None:
    exact, half = (embedder(tiny_folder, name, dtype=dtype).embed(IMAGES) for dtype in ("float32", "bfloat16"))
    assert half.dtype == np.float32
    assert (exact * half).sum(axis=1).min() > 0.999
    assert not np.array_equal(exact, half)


# ---- depth ----------------------------------------------------------------------------------------------------------


def test_depth_is_the_models_stretched_to_the_unit_interval(tiny_folder: Tiny) -> None:
    image = IMAGES[0]
    model = transformers.AutoModelForDepthEstimation.from_pretrained(tiny_folder("depth")).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(tiny_folder("depth"))
    with torch.inference_mode():
        answer = model(**processor(images=PillowImage.fromarray(image), return_tensors="pt")).predicted_depth
    sized = torch.nn.functional.interpolate(answer[None], image.shape[:2], mode="bicubic", align_corners=False)
    expected = sized[0, 0].numpy()
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    made = DepthAnythingEstimator(DepthAnythingEstimator.Options(checkpoint=tiny_folder("depth")))
    depth = made.depth(image)
    assert depth.shape == (60, 80)
    assert depth.dtype == np.float32
    assert (depth.min(), depth.max()) == (0.0, 1.0)
    assert np.abs(depth - expected).max() < 1e-4


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (3, 40), (1, 9000)])
def test_depth_of_strips(tiny_folder: Tiny, shape: tuple[int, int]) -> None:
    made = DepthAnythingEstimator(DepthAnythingEstimator.Options(checkpoint=tiny_folder("depth")))
    depth = made.depth(noise(*shape))
    assert depth.shape == shape
    assert depth.min() == 0.0
    assert depth.max() == (0.0 if shape == (1, 1) else 1.0)


def test_metric_depth_is_refused(tiny_folder: Tiny, tmp_path: Path) -> None:
    for file in Path(tiny_folder("depth")).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "depth_estimation_type": "metric", "max_depth": 20}))
    with pytest.raises(CheckpointError, match="a checkpoint of metric depth, where larger is farther"):
        DepthAnythingEstimator(DepthAnythingEstimator.Options(checkpoint=str(tmp_path))).load()
