"""What all perception models of the full stack promise: cheap construction, digests, and errors with a remedy."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from editfoundry.core.errors import EditFoundryError, ModelMissing
from editfoundry.models.manifest import packaged_manifest
from editfoundry.models.perception.base import CheckpointError, picture
from editfoundry.models.protocols import Model
from editfoundry.models.registry import REGISTRY, create

Tiny = Callable[[str], str]
ROLES = {
    f"{role}/{name}": (role, name)
    for role, names in REGISTRY.items()
    for name, target in names.items()
    if ".perception." in target
}
CHECKPOINTS = {
    "detector/grounding-dino": "grounding_dino",
    "segmenter/sam2": "sam2",
    "scorer/clip": "open_clip",
    "image_embedder/clip": "open_clip",
    "image_embedder/siglip": "siglip",
    "image_embedder/dinov2": "dinov2",
    "aesthetic/laion": "open_clip",
    "depth/depth-anything": "depth",
}
"""Tiny checkpoint by model; the two that run other packages' files have their own tests."""
RESULTS = {"dtype": "bfloat16", "box_threshold": 0.3, "overlap": 0.6, "top": 5, "multimask": True}
"""Options that change results, with values that are nobody's defaults."""
FROM_PRETRAINED = [model for model, name in CHECKPOINTS.items() if name != "open_clip"]


def made(tiny_folder: Tiny, model: str, **options: Any) -> Any:
    role, name = ROLES[model]
    given = {"checkpoint": tiny_folder(CHECKPOINTS[model]), **options}
    if role == "aesthetic":
        given.setdefault("head", tiny_folder("aesthetic_head"))
    return create(role, {"name": name, **given})


def copied(folder: str, into: Path) -> str:
    return str(shutil.copytree(folder, into, dirs_exist_ok=True))


@pytest.mark.parametrize("model", ROLES)
def test_construction_needs_nothing_and_loading_names_the_remedy(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path))
    default = create(*ROLES[model])
    assert isinstance(default, Model)
    checkpoint = default.options.checkpoint
    entry = packaged_manifest().models.get(checkpoint)
    remedy = f"editfoundry models pull {checkpoint}" if entry else checkpoint.removeprefix("./")
    with pytest.raises(ModelMissing, match=remedy):
        default.digest()
    with pytest.raises(EditFoundryError, match=remedy if model != "segmenter/sam2-original" else "sam2"):
        default.load()


def test_defaults_name_safe_files_of_the_store() -> None:
    manifest = packaged_manifest()
    for model in CHECKPOINTS:
        options = create(*ROLES[model]).options
        for checkpoint in {options.checkpoint, getattr(options, "head", options.checkpoint)}:
            entry = manifest.entry(checkpoint)
            assert entry.stack == "full"
            assert any(pattern.endswith(".safetensors") for pattern in entry.patterns)


def test_names_tell_models_apart() -> None:
    names = [create(*one).name for one in ROLES.values()]
    assert len(set(names)) == len(ROLES) == 10


def test_modules_import_no_torch() -> None:
    modules = {REGISTRY[role][name].partition(":")[0] for role, name in ROLES.values()}
    check = f"import sys, {', '.join(sorted(modules))}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_digest_follows_weights_and_results_and_loads_nothing(tiny_folder: Tiny, tmp_path: Path, model: str) -> None:
    first = made(tiny_folder, model)
    digest = first.digest()
    assert len(digest) == 64
    assert not first._loaded
    copy = copied(tiny_folder(CHECKPOINTS[model]), tmp_path / "copy")
    assert made(tiny_folder, model, checkpoint=copy, device="cpu", batch=3).digest() == digest
    changing = {key: value for key, value in RESULTS.items() if key in type(first.options).model_fields}
    others = [made(tiny_folder, model, **{key: value}).digest() for key, value in changing.items()]
    assert len({digest, *others}) == 1 + len(changing) >= 2
    weights = next(Path(copy).glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert made(tiny_folder, model, checkpoint=copy).digest() != digest


def test_digest_follows_the_aesthetic_head(tiny_folder: Tiny, tmp_path: Path) -> None:
    digest = made(tiny_folder, "aesthetic/laion").digest()
    copy = copied(tiny_folder("aesthetic_head"), tmp_path / "copy")
    assert made(tiny_folder, "aesthetic/laion", head=copy).digest() == digest
    weights = Path(copy) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert made(tiny_folder, "aesthetic/laion", head=copy).digest() != digest


def test_digest_follows_the_version(tiny_folder: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = made(tiny_folder, "scorer/clip")
    before = scorer.digest()
    monkeypatch.setattr(type(scorer), "version", 2)
    assert scorer.digest() != before


@pytest.mark.parametrize("model", FROM_PRETRAINED)
def test_a_checkpoint_that_lacks_a_weight_is_refused(tiny_folder: Tiny, tmp_path: Path, model: str) -> None:
    copy = copied(tiny_folder(CHECKPOINTS[model]), tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    lost = next(name for name in sorted(state, reverse=True) if "vision" in name or "layernorm" in name)
    save_file({name: weight for name, weight in state.items() if name != lost}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"it lacks \d+ weights, among them"):
        made(tiny_folder, model, checkpoint=copy).load()


@pytest.mark.parametrize("model", FROM_PRETRAINED)
def test_damaged_checkpoints_are_refused(tiny_folder: Tiny, tmp_path: Path, model: str) -> None:
    copy = copied(tiny_folder(CHECKPOINTS[model]), tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"cannot be read as a checkpoint of .*pull it again"):
        made(tiny_folder, model, checkpoint=copy).load()
    file.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(whole)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint of"):
        made(tiny_folder, model, checkpoint=copy).load()
    file.write_bytes(whole)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError):
        made(tiny_folder, model, checkpoint=copy).load()


def test_a_checkpoint_of_another_model_is_refused(tiny_folder: Tiny) -> None:
    with pytest.raises(CheckpointError, match="checkpoint of Sam2Model"):
        made(tiny_folder, "segmenter/sam2", checkpoint=tiny_folder("dinov2")).load()


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_loading_twice_reads_once(tiny_folder: Tiny, model: str) -> None:
    loaded = made(tiny_folder, model)
    loaded.load()
    before = {key: id(value) for key, value in vars(loaded).items()}
    loaded.load()
    assert {key: id(value) for key, value in vars(loaded).items()} == before


def test_released_sam2_needs_no_warning(tiny_folder: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny_folder("sam2_video")
    capfd.readouterr()
    create("segmenter", {"name": "sam2", "checkpoint": folder}).load()
    assert json.loads((Path(folder) / "config.json").read_text())["model_type"] == "sam2_video"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
    ],
)
def test_what_is_no_image_is_refused(image: Any) -> None:
    with pytest.raises(ValueError, match=r"an image must be uint8 \[H, W, 3\], not"):
        picture(image)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((40, 60), (60, 40)),
        ((10, 320), (320, 10)),
        ((1, 320), (320, 10)),
        ((2, 9000), (2048, 64)),
        ((900, 1), (29, 900)),
    ],
)
def test_strips_are_squashed_to_a_ratio_of_32(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    seen = picture(image)
    assert seen.size == size
    if shape == size[::-1]:
        assert np.array_equal(np.asarray(seen), image)
