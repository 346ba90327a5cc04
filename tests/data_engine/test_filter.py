"""What the filter refuses, and that it measures what it keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from source_stages import Committed, config, duplicate_groups, ingest, run

from editfoundry.data_engine.records import Reject, Source
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.filter import Filter, measures

pytestmark = pytest.mark.weights


def textured(seed: int, width: int = 400, height: int = 300, low: int = 0, high: int = 256) -> NDArray[np.uint8]:
    coarse = np.random.default_rng(seed).integers(low, high, (12, 16, 3), np.uint8)
    smooth = np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = np.random.default_rng(seed + 1).normal(0, 4, smooth.shape)
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def filtered(folder: Path, **settings: Any) -> tuple[list[Item], list[Reject]]:
    items, rejects = ingest(folder)
    assert not rejects
    return run(Filter(config(folder, **settings)), items, Committed(duplicate_groups(items)))


def save(folder: Path, name: str, pixels: NDArray[np.uint8]) -> None:
    Image.fromarray(pixels).save(folder / name)


def drawing() -> NDArray[np.uint8]:
    pixels = np.full((300, 400, 3), 255, np.uint8)
    pixels[60:200, 80:220] = (220, 30, 30)
    pixels[150:280, 250:380] = (20, 60, 200)
    return pixels


@pytest.mark.parametrize(
    ("reason", "pixels", "settings"),
    [
        ("small_short_side", textured(1, 400, 250), {}),
        ("extreme_aspect", textured(1, 1000, 300), {}),
        ("blank", np.full((300, 400, 3), 128, np.uint8), {}),
        ("too_dark", textured(1, high=60), {"min_brightness": 64}),
        ("not_a_photograph", drawing(), {}),
        ("low_quality", textured(1), {"max_quality": -50}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_reason(tmp_path: Path, reason: str, pixels: NDArray[np.uint8], settings: dict[str, Any]) -> None:
    save(tmp_path, "image.png", pixels)
    items, rejects = filtered(tmp_path, filter=settings)
    assert not items
    assert [reject.reason for reject in rejects] == [reason]
    assert "image.png" in rejects[0].detail


def test_metadata_decides_before_anything_is_decoded(tmp_path: Path) -> None:
    save(tmp_path, "image.png", textured(1, 400, 250))
    (item,), _ = ingest(tmp_path)
    stage = Filter(config(tmp_path))
    stage.setup(Committed())
    assert stage.prepare(Item(item.record, {})).pixels == []


def test_duplicates_leave_one_of_each_picture(tmp_path: Path) -> None:
    save(tmp_path, "a.png", textured(1, 800, 600))
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
    Image.open(tmp_path / "a.png").resize((400, 300)).save(tmp_path / "small.png")
    save(tmp_path, "other.png", textured(9))
    items, rejects = filtered(tmp_path, filter={"max_quality": 200})
    assert [Path(item.record.uri).name for item in items] == ["a.png", "other.png"]
    assert {Path(reject.detail.split(":")[0]).name: reject.reason for reject in rejects} == {
        "b.png": "exact_duplicate",
        "small.png": "near_duplicate",
    }
    kept, _ = filtered(tmp_path, filter={"max_quality": 200, "keep_duplicates": True})
    assert len(kept) == 4


def test_a_photograph_passes_and_carries_its_scores(astronaut: Path) -> None:
    (item,), rejects = filtered(astronaut)
    assert not rejects
    scores = Source.model_validate(item.record).scores
    assert set(scores) == {"unsafe", "quality", "contrast", "brightness", "flat"}
    assert scores["unsafe"] < 0.1
    assert scores["quality"] < 40


@pytest.fixture
def astronaut(tmp_path: Path) -> Path:
    from skimage import data

    Image.fromarray(data.astronaut()).save(tmp_path / "astronaut.png")
    return tmp_path


def test_measures_of_known_images() -> None:
    half = np.zeros((100, 100, 3), np.uint8)
    half[:, 50:] = 200
    found = measures(half)
    assert found["contrast"] == pytest.approx(100, abs=0.1)
    assert found["brightness"] == 200
    assert found["flat"] == pytest.approx(0.98)
