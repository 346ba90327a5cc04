"""What renderers promise before any weight is read: defaults, store ids, digests, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from editfoundry.core.errors import ConfigError, ModelMissing, UsageError
from editfoundry.core.geometry import Mask
from editfoundry.models.diffusion.editors import FluxKontextEditor, QwenImageEditor
from editfoundry.models.diffusion.flux import (
    FluxCannyAdjuster,
    FluxFillPainter,
    FluxReduxInserter,
    FluxReferenceGenerator,
)
from editfoundry.models.diffusion.runtime import Lora, in_buckets, quantisation
from editfoundry.models.diffusion.sdxl import SdxlCannyAdjuster, SdxlPainter, SdxlRemover, SdxlStyleTransfer
from editfoundry.models.manifest import packaged_manifest
from editfoundry.models.protocols import Fill, Restyle
from editfoundry.models.registry import REGISTRY, create

CLASSES: tuple[Any, ...] = (
    SdxlRemover,
    SdxlPainter,
    SdxlCannyAdjuster,
    SdxlStyleTransfer,
    FluxFillPainter,
    FluxCannyAdjuster,
    FluxReduxInserter,
    FluxReferenceGenerator,
    FluxKontextEditor,
    QwenImageEditor,
)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A folder that may name weights: nothing here loads them."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"first")
    return str(tmp_path / "weights")


def test_every_registered_renderer_is_one_of_these_and_constructs_without_weights() -> None:
    registered = {
        type(create(role, name))
        for role, names in REGISTRY.items()
        for name, place in names.items()
        if place.startswith("editfoundry.models.diffusion.")
    }
    assert registered == set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_defaults_name_weights_of_the_store(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path))
    model = kind()
    ids = [getattr(model.options, option) for option in kind.checkpoints]
    assert all(packaged_manifest().models[name].stack == "full" for name in ids)
    with pytest.raises(ModelMissing, match=f"editfoundry models pull {ids[0]}"):
        model.digest()
    with pytest.raises(ModelMissing, match="editfoundry models pull"):
        model.load()
    assert model.pipe is None


def test_masks_grow_by_the_recipes_distance_at_short_side_1024() -> None:
    array = np.zeros((512, 700), bool)
    array[200:300, 300:400] = True
    array[240:250, 340:350] = False
    grown = {kind.name: kind().cover(Mask(array)).box() for kind in CLASSES if hasattr(kind, "cover")}
    distance = {name: 300 - box.x0 for name, box in grown.items() if box is not None}
    assert distance == {
        "sdxl-remover": 32,
        "sdxl-painter": 16,
        "sdxl-canny": 4,
        "flux-fill": 16,
        "flux-canny": 4,
        "flux-redux": 24,
    }
    assert SdxlRemover(SdxlRemover.Options(grow=0)).cover(Mask(array)) == Mask(array).fill_holes()
    assert FluxFillPainter(FluxFillPainter.Options(grow=0)).cover(Mask(array)) == Mask(array)


def test_the_digest_names_what_decides_the_result_and_nothing_else(weights: str) -> None:
    def digest(**options: Any) -> str:
        model = FluxFillPainter(FluxFillPainter.Options(checkpoint=weights, **options))
        found = model.digest()
        assert model.pipe is None
        return found

    plain = digest()
    assert plain == digest(device="cuda:3", offload="model", compile=True, batch=7)
    lora = Path(weights).parent / "look.safetensors"
    lora.write_bytes(b"a")
    others = [
        digest(steps=13),
        digest(guidance=29.0),
        digest(blend=8),
        digest(work_size=512),
        digest(dtype="float32"),
        digest(quantisation="nf4"),
        digest(loras=[{"path": str(lora)}]),
        digest(loras=[{"path": str(lora), "scale": 0.5}]),
    ]
    lora.write_bytes(b"b")
    others.append(digest(loras=[{"path": str(lora)}]))
    (Path(weights) / "model.safetensors").write_bytes(b"second")
    others.append(digest())
    assert len({plain, *others}) == 1 + len(others)


def test_every_checkpoint_of_a_model_is_in_its_digest(weights: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"other")
    for kind in CLASSES:
        same = dict.fromkeys(kind.checkpoints, weights)
        digests = {kind(kind.Options(**{**same, option: str(other)})).digest() for option in kind.checkpoints}
        assert len(digests | {kind(kind.Options(**same)).digest()}) == 1 + len(kind.checkpoints)


def test_quantisation_is_refused_on_a_cpu_and_asks_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="int8 needs a GPU"):
        quantisation("FluxFillPipeline", FluxFillPainter.Options(device="cpu", quantisation="int8"))
    monkeypatch.setattr("editfoundry.models.diffusion.runtime.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install bitsandbytes"):
        quantisation("FluxFillPipeline", FluxFillPainter.Options(device="cuda", quantisation="nf4"))
    assert quantisation("FluxFillPipeline", FluxFillPainter.Options(device="cpu")) == {}


def test_only_safetensors_loras_are_taken(tmp_path: Path) -> None:
    pickle = tmp_path / "lora.bin"
    pickle.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"not a \.safetensors file"):
        Lora(path=str(pickle)).file()
    with pytest.raises(ConfigError, match="name the file in it as `weight`"):
        Lora(path=str(tmp_path)).file()
    with pytest.raises(ModelMissing, match="lacks this file"):
        Lora(path=str(tmp_path), weight="absent.safetensors").file()
    (tmp_path / "lora.safetensors").write_bytes(b"")
    assert Lora(path=str(tmp_path), weight="lora.safetensors").file() == tmp_path / "lora.safetensors"


def test_requests_are_checked_before_any_weight_is_read(weights: str) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    whole = Mask(np.ones((32, 32), bool))
    inserter = FluxReduxInserter(FluxReduxInserter.Options(checkpoint=weights, redux=weights))
    with pytest.raises(UsageError, match="this fill has none"):
        inserter.inpaint([Fill(image, whole, 1)])
    painter = SdxlPainter(SdxlPainter.Options(checkpoint=weights))
    with pytest.raises(ValueError, match="differ in"):
        painter.inpaint([Fill(image, Mask(np.ones((16, 32), bool)), 1)])
    style = SdxlStyleTransfer()
    for strength in (0.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="strength"):
            style.stylise([Restyle(image, image, "ink", 1, strength)])
    empty = Fill(image, Mask(np.zeros((32, 32), bool)), 1)
    assert np.array_equal(painter.inpaint([empty])[0], image) and painter.inpaint([]) == []


@pytest.mark.parametrize("wrong", [{"blur": -1}, {"context": 0.5}, {"pad": 20}, {"steps": 0}, {"nonsense": 1}])
def test_options_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create("painter", {"name": "flux-fill", **wrong})


def test_buckets_hold_one_shape_and_at_most_a_batch() -> None:
    shapes = ["a", "b", "a", "a", "b", "a"]
    assert list(in_buckets(shapes, lambda shape: shape, 3)) == [[0, 2, 3], [5], [1, 4]]
