"""Each gate passes what is right and fails what is wrong with the reason the documentation names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from editfoundry.core.geometry import Box, Mask
from editfoundry.core.images import decode_jpeg, encode_jpeg
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds, crop
from editfoundry.data_engine.gates.change import change, structure
from editfoundry.data_engine.gates.detector import detector
from editfoundry.data_engine.gates.geometry import geometry, protected
from editfoundry.data_engine.gates.quality import quality
from editfoundry.data_engine.records import Edge, Motion, Sample, Source, Turn
from editfoundry.models.protocols import Segmentation

GRID = (128, 96)
LIMITS = Thresholds()


def photograph(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : GRID[1], 0 : GRID[0]]
    base = np.dstack([60 + x, 90 + y, 200 - x / 2]) + rng.normal(0, 6, (GRID[1], GRID[0], 3))
    return base.clip(0, 255).astype(np.uint8)


def view(before: np.ndarray, after: np.ndarray, mask: Mask | None, kind: str = "add", **source: Any) -> EdgeView:
    turn = Turn(index=1, type=kind, parent=0, instruction="Add a cup.", origin=source.pop("origin", "donor"))
    sample = Sample(
        id="s", kind="single", source=Source(id="a" * 16, sha256="b" * 64, uri="u", grid=GRID, **source), turns=(turn,)
    )
    edge = Edge(turn=1, source_node="node0.jpg", result_node="node1.jpg", source_sha256="", result_sha256="")
    return EdgeView(sample, turn, edge, before, after, mask, {}, lambda _: before.ravel())


def with_disc(
    image: np.ndarray, colour: tuple[int, int, int] = (230, 30, 30), radius: int = 14
) -> tuple[np.ndarray, Mask]:
    y, x = np.mgrid[0 : GRID[1], 0 : GRID[0]]
    disc = (x - 64) ** 2 + (y - 48) ** 2 < radius**2
    out = image.copy()
    out[disc] = colour
    return out, Mask(disc).dilate(2)


def stored(image: np.ndarray) -> np.ndarray:
    return decode_jpeg(encode_jpeg(image))


def test_geometry_passes_an_exact_local_edit_after_jpeg() -> None:
    before = photograph()
    after, mask = with_disc(before)
    assert geometry(view(stored(before), stored(after), mask), LIMITS) == {"outside_max": 0, "outside_mean": 0.0}


def test_geometry_fails_one_pixel_outside_the_mask() -> None:
    before = photograph()
    after, mask = with_disc(before)
    after[2, 2] = 255 - after[2, 2]
    with pytest.raises(GateFailed) as failed:
        geometry(view(before, after, mask), LIMITS)
    assert failed.value.reason == "changed_outside_mask"


@pytest.mark.parametrize("wrong", ["source", "result", "mask"])
def test_geometry_fails_any_size_off_the_grid(wrong: str) -> None:
    before = photograph()
    after, mask = with_disc(before)
    if wrong == "source":
        before = before[:80]
    elif wrong == "result":
        after = after[:, :112]
    else:
        mask = Mask(mask.array[:80])
    with pytest.raises(GateFailed) as failed:
        geometry(view(before, after, mask), LIMITS)
    assert failed.value.reason == "size_mismatch"


def test_geometry_bounds_the_mask() -> None:
    before = photograph()
    with pytest.raises(GateFailed) as failed:
        geometry(view(before, before, Mask(np.ones((96, 128), bool))), LIMITS)
    assert failed.value.reason == "mask_size"


def test_change_measures_share_and_strength() -> None:
    before = photograph()
    after, mask = with_disc(before)
    values = change(view(before, after, mask), LIMITS)
    assert 0.6 < values["change_share"] < 1 and values["change_strength"] > 40 and values["change_iou"] > 0.6


def test_a_change_too_small_to_notice_fails() -> None:
    before = photograph()
    after, mask = with_disc(before, (90, 110, 200), radius=3)
    with pytest.raises(GateFailed) as failed:
        change(view(before, after, mask), Thresholds(min_changed_difference=0, min_prominence=0.5))
    assert failed.value.reason == "easily_missed"


def test_change_fails_a_no_op_and_a_barely_visible_edit() -> None:
    before = photograph()
    _, mask = with_disc(before)
    for after in (before, (before + 3).clip(0, 255).astype(np.uint8)):
        with pytest.raises(GateFailed) as failed:
            change(view(before, after, mask), LIMITS)
        assert failed.value.reason == "no_visible_change"


def test_style_must_change_colours_and_keep_structure() -> None:
    before = with_disc(photograph())[0]
    assert change(view(before, 255 - before, None, "style"), LIMITS)["structure"] > 0.9
    with pytest.raises(GateFailed) as failed:
        change(
            view(before, np.random.default_rng(1).integers(0, 255, before.shape, dtype=np.uint8), None, "style"), LIMITS
        )
    assert failed.value.reason == "structure_lost"


def test_an_empty_extract_fails() -> None:
    before = photograph()
    with pytest.raises(GateFailed) as failed:
        change(view(before, np.full_like(before, 255), None, "extract"), LIMITS)
    assert failed.value.reason == "empty_extract"


def test_motion_fails_when_the_background_moves() -> None:
    motion = Motion(before=(20, 20, 40, 60), after=(60, 20, 80, 60), seconds=1, frame_before=0, frame_after=10)
    before, after = photograph(), photograph()
    before[20:60, 20:40], after[20:60, 60:80] = 240, 240
    assert change(view(before, after, None, "motion", motion=motion), LIMITS)["change_share"] > 0.2
    after[:, 110:] = 0
    with pytest.raises(GateFailed) as failed:
        change(view(before, after, None, "motion", motion=motion), LIMITS)
    assert failed.value.reason == "background_moved"


def test_protected_faces_may_not_be_touched() -> None:
    before = photograph()
    after, mask = with_disc(before)
    assert protected(view(before, after, mask, protected=((0, 0, 20, 20),)), LIMITS) == {}
    with pytest.raises(GateFailed) as failed:
        protected(view(before, after, mask, protected=((60, 40, 70, 50),)), LIMITS)
    assert failed.value.reason == "protected_area"


class Sharpness:
    """A real, if simple, QualityScorer: lower is sharper."""

    name = "sharpness"

    def quality(self, image: np.ndarray) -> float:
        return 100 - float(np.abs(np.diff(image.astype(float), axis=1)).mean())


class DarkMatte:
    """A real, if simple, Segmenter: what is much darker than the rest of the box stands out."""

    salient = True

    def segment(self, image: np.ndarray, boxes: Sequence[Box]) -> list[Segmentation]:
        grey = image.mean(axis=2)
        return [Segmentation((grey < np.median(grey) - 40).astype(np.float32), 1.0) for _ in boxes]


def inpainting(fill: np.ndarray) -> EdgeView:
    before = photograph()
    after = before.copy()
    after[30:66, 40:80] = fill
    mask = np.zeros(before.shape[:2], bool)
    mask[30:66, 40:80] = True
    edge = view(before, after, Mask(mask), "remove", origin="photograph")
    edge.models = {"quality": Sharpness(), "segmenter": DarkMatte()}
    return edge


def test_a_fill_that_matches_its_surroundings_passes() -> None:
    values = quality(inpainting(photograph(1)[30:66, 40:80]), LIMITS)
    assert 0.8 < values["texture"] < 1.2 and values["seam"] < 1.5


def test_a_fill_that_stands_out_is_a_ghost() -> None:
    fill = (photograph(1)[30:66, 40:80] * 0.45).astype(np.uint8)
    fill += np.random.default_rng(3).integers(0, 12, fill.shape, dtype=np.uint8)
    with pytest.raises(GateFailed) as failed:
        quality(inpainting(fill), Thresholds(max_seam=9))
    assert failed.value.reason == "ghost"


def test_a_flat_fill_fails_on_texture_or_seam() -> None:
    with pytest.raises(GateFailed) as failed:
        quality(inpainting(np.full((36, 40, 3), 10, np.uint8)), LIMITS)
    assert failed.value.reason in {"visible_seam", "texture_mismatch"}


def test_structure_is_one_for_equal_images_and_near_zero_for_noise() -> None:
    before = with_disc(photograph())[0]
    noise = np.random.default_rng(0).integers(0, 255, before.shape, dtype=np.uint8)
    assert structure(before, before) == pytest.approx(1.0, abs=1e-5)
    assert abs(structure(before, noise)) < 0.3


def test_crop_stays_inside_the_image() -> None:
    assert crop(photograph(), Box(100, 80, 128, 96)).shape == (19, 31, 3)


class MeanColour:
    """A real, if simple, ImageEmbedder: the mean colour's direction."""

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        means = np.stack([image.reshape(-1, 3).mean(axis=0) - 110 for image in images])
        return (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)


RED = MeanColour().embed([np.full((4, 4, 3), (230, 30, 30), np.uint8)])[0]


def red_square(image: np.ndarray, left: int) -> np.ndarray:
    out = image.copy()
    out[30:50, left : left + 20] = (230, 30, 30)
    return out


def copies(before: int, after: int, *lefts: int) -> dict[str, Any]:
    return {
        "copies": [{"donor": "d" * 64, "box": [left, 30, left + 20, 50]} for left in lefts],
        "before": before,
        "after": after,
    }


def counted(source: np.ndarray, result: np.ndarray, operation: dict[str, Any], kind: str = "count") -> EdgeView:
    edge = view(source, result, Mask(np.ones((96, 128), bool)), kind)
    edge.turn = edge.turn.model_copy(update={"operation": operation, "target": "o1"})
    edge.models, edge.alone = {"image_embedder": MeanColour()}, lambda _: RED
    return edge


def test_every_copy_that_came_or_went_is_recognised() -> None:
    one = red_square(photograph(), 10)
    two = red_square(one, 60)
    assert detector(counted(one, two, copies(1, 2, 10, 60)), LIMITS)["recognition_gain"] > 0.3
    assert detector(counted(two, one, copies(2, 1, 10, 60)), LIMITS)["recognition_gain"] > 0.3


def test_a_wrong_count_fails() -> None:
    one = red_square(photograph(), 10)
    with pytest.raises(GateFailed) as failed:
        detector(counted(one, red_square(one, 60), copies(1, 3, 10, 60, 95)), LIMITS)
    assert failed.value.reason == "not_recognised"


def test_each_step_of_a_composition_is_recognised() -> None:
    placement = {"donor": "d" * 64, "box": [60, 30, 80, 50]}
    steps = [{"type": "add", "target": "o2", "operation": {"placement": placement}},
             {"type": "adjust", "target": "o1", "operation": {"paint": "red"}}]  # fmt: skip
    empty = photograph()
    done = counted(empty, red_square(empty, 60), {"steps": steps}, "compose")
    assert detector(done, LIMITS)["recognition_gain"] > 0.3
    with pytest.raises(GateFailed):
        detector(counted(empty, empty, {"steps": steps}, "compose"), LIMITS)
