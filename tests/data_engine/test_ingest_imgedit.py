"""ImgEdit's intermediate JSON: captions, regions and masks on the grid, and records that are not as described."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_layouts import ingested, picture, reasons
from pycocotools import mask as coco

from editfoundry.core.geometry import Grid, Mask, to_grid
from editfoundry.data_engine.export import region_json
from editfoundry.data_engine.records import Reject, Source

WIDTH, HEIGHT = 320, 256


def counts(array: np.ndarray) -> str:
    """The counts of a bool [H, W] array, by the reference implementation."""
    encoded: bytes = coco.encode(np.asfortranarray(array.astype(np.uint8)))["counts"]
    return encoded.decode("ascii")


def disc(x: int, y: int, radius: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    return np.asarray((rows - y) ** 2 + (columns - x) ** 2 < radius**2)


def region(name: str, mask: str | None, box: list[float], **extra: Any) -> dict[str, Any]:
    return {"class_name": name, "bbox": box, "mask": mask, "score": 0.91, "clip_score": 0.8, "aes_score": 4.9, **extra}


def record(**changes: Any) -> dict[str, Any]:
    """A record as the released data have them."""
    cup = region("cup", counts(disc(100, 120, 40)), [60.0, 80.0, 140.5, 160.0])
    wall = region("wall", counts(~disc(100, 120, 60)), [0.0, 0.0, 320.0, 256.0], score=[0.88], aes_score=None)
    return {
        "path": "part0/0001.png", "cap": ["A red cup stands before a white wall.", "unused"],
        "resolution": {"height": HEIGHT, "width": WIDTH}, "aes": 5.25,
        "tags": {"background": ["wall", "floor"], "object": ["cup", "red cup", "dog"],
                 "summary": "A cup before a wall " + "and more " * 10},
        "segmentation": {"background": [wall], "object": [cup], "box_format": "xyxy"},
        "bg_count": {"wall": 1}, "obj_count": {"cup": 3}, "extra": {"not": "known"},
        **changes,
    }  # fmt: skip


def read(
    folder: Path, *records: Any, text: str | None = None, grid_area: int = 200_000, **spec: Any
) -> tuple[list[Source], list[Reject]]:
    images = folder / "images" / "part0"
    images.mkdir(parents=True, exist_ok=True)
    (images / "0001.png").write_bytes(picture(1, WIDTH, HEIGHT))
    (folder / "r.json").write_text(json.dumps(records) if text is None else text)
    where = {"path": str(folder / "r.json"), "format": "imgedit-json", "images": str(folder / "images")}
    return ingested({**where, **spec}, grid_area=grid_area)


def test_caption_regions_and_counts_are_taken_over(tmp_path: Path) -> None:
    (source,), rejects = read(tmp_path, record())
    assert not rejects
    assert source.uri == f"{tmp_path}/r.json#0"
    assert source.caption is not None
    assert source.caption.text == "A red cup stands before a white wall."
    assert (source.caption.objects, source.caption.backgrounds) == (("cup", "red cup"), ("wall",))
    assert len(source.caption.summary.split()) == 15
    assert source.counts == {"cup": 3, "wall": 1}
    assert source.scores == {"aesthetic": 5.25}
    cup, wall = source.regions
    assert (cup.label, cup.kind, cup.detector, wall.label, wall.kind) == (
        "cup",
        "object",
        "imported",
        "wall",
        "background",
    )
    assert (cup.segmenter_score, cup.scorer_score, cup.aesthetic) == (0.91, 0.8, 4.9)
    assert (wall.segmenter_score, wall.aesthetic) == (0.88, None)


@pytest.mark.parametrize("grid_area", [1024 * 1024, 200_000, 20_000])
def test_masks_lie_on_the_grid_where_their_pixels_do(tmp_path: Path, grid_area: int) -> None:
    (source,), _ = read(tmp_path, record(), grid_area=grid_area)
    cup = source.regions[0]
    mask = Mask.from_rle(cup.mask)
    grid = Grid(*source.grid)
    assert mask == Mask(to_grid(disc(100, 120, 40), grid, nearest=True))
    assert cup.area == pytest.approx(mask.fraction, abs=1e-6)
    around = mask.box()
    assert around is not None
    assert cup.box == tuple(around.as_list())
    scale = max(grid.width / WIDTH, grid.height / HEIGHT)
    assert cup.box_area == pytest.approx(80.5 * 80 * scale**2 / grid.area, rel=0.01)


def test_a_mask_of_another_size_is_a_region_reject_and_the_photograph_stays(tmp_path: Path) -> None:
    small = region("lamp", counts(disc(20, 20, 10, 160, 128)), [10, 10, 30, 30])
    bad = region("vase", "~~~", [10, 10, 30, 30])
    empty = region("fork", counts(np.zeros((HEIGHT, WIDTH), bool)), [10, 10, 30, 30])
    outside = region("hat", None, [400, 300, 500, 400])
    flat = region("line", None, [10, 10, 10, 30])
    plain = region("spoon", None, [16, 16, 160, 128])
    unnamed = region("\u0007", None, [16, 16, 160, 128])
    objects = [small, bad, empty, outside, flat, unnamed, plain]
    segmentation = {"object": objects, "background": [], "box_format": "xyxy"}
    (source,), rejects = read(tmp_path, record(segmentation=segmentation))
    assert [(reject.type, reject.reason, reject.unit) for reject in rejects] == [
        ("lamp", "mask_size_mismatch", "region"), ("vase", "bad_mask", "region"), ("fork", "empty_mask", "region"),
        ("hat", "bad_box", "region"), ("line", "bad_box", "region"), ("", "bad_label", "region"),
    ]  # fmt: skip
    (spoon,) = source.regions
    assert (spoon.label, spoon.mask, spoon.segmenter_score, spoon.area) == ("spoon", None, None, 0.0)
    wrong = record(resolution={"height": HEIGHT * 2, "width": WIDTH * 2})
    (source,), rejects = read(tmp_path, wrong)
    assert not source.regions
    assert reasons(rejects) == ["mask_size_mismatch"] * 2
    assert "the mask is 640x512, the photograph 320x256" in rejects[0].detail


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "leaves": ({"path": "../../secret.png"}, "unsafe_path"),
    "absolute": ({"path": "/etc/passwd"}, "unsafe_path"),
    "newline": ({"path": "part0/0001.png\n"}, "unsafe_path"),
    "missing": ({"path": "part0/none.png"}, "missing_file"),
    "folder": ({"path": "part0"}, "unreadable"),
    "no resolution": ({"resolution": None}, "bad_record"),
    "huge resolution": ({"resolution": {"height": 10**12, "width": 1}}, "bad_record"),
    "box format": ({"segmentation": {"object": [], "background": [], "box_format": "xywh"}}, "bad_record"),
    "box of three": ({"segmentation": {"object": [region("a", None, [1, 2, 3])]}}, "bad_record"),
    "too many regions": ({"segmentation": {"object": [region("a", None, [1, 2, 3, 4])] * 1001}}, "bad_record"),
    "infinite": ({"aes": "INF"}, "bad_record"),
    "NaN": ({"aes": float("nan")}, "bad_record"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD.values(), ids=BAD.keys())
def test_records_that_are_not_as_described_are_rejects(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    text = json.dumps([record(**changes), record()]).replace('"INF"', "1e999")
    sources, rejects = read(tmp_path, text=text)
    assert [source.uri for source in sources] == [f"{tmp_path}/r.json#1"]
    assert reasons(rejects) == [reason]


def test_cuts_come_before_the_photograph_is_looked_for(tmp_path: Path) -> None:
    gone = record(path="gone.png", aes=4.75)
    low = record(path="gone.png", resolution={"height": 200, "width": 400})
    unscored = record(aes=None)
    cuts = {"aesthetic": {"above": 4.75}, "short_side": {"above": 200}}
    sources, rejects = read(tmp_path, gone, low, unscored, record(), metadata=cuts)
    assert [(reject.reason, reject.score) for reject in rejects] == [
        ("metadata_aesthetic", 4.75), ("metadata_short_side", 200.0), ("metadata_missing", None)]  # fmt: skip
    assert sources[0].scores == {"aesthetic": 5.25, "short_side": 256.0}


def test_a_damaged_file_gives_its_whole_records_and_one_reject(tmp_path: Path) -> None:
    text = json.dumps([record(), record(), record()])
    sources, rejects = read(tmp_path, text=text[: len(text) * 3 // 4])
    assert len(sources) == 2
    assert reasons(rejects) == ["bad_record"]


def test_one_record_a_file_under_its_name_and_our_own_export_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "json"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"0001.png": record()}))
    (source,), _ = read(tmp_path, path=str(folder))
    assert source.uri == f"{folder}/a.json#0"
    exported = {**region_json(source), "path": "part0/0001.png"}
    assert exported["cap"] == ["A red cup stands before a white wall."]
    assert exported["resolution"] == {"height": source.grid[1], "width": source.grid[0]}
    (folder / "a.json").write_text("")
    (folder / "b.jsonl").write_text(json.dumps(exported) + "\n")
    (again,), rejects = read(tmp_path, path=str(folder))
    assert not rejects
    assert [(one.label, one.box, one.mask, one.segmenter_score) for one in again.regions] == [
        (one.label, one.box, one.mask, one.segmenter_score) for one in source.regions
    ]
    assert again.caption == source.caption
