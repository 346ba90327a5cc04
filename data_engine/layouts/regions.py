"""Regions that somebody marked before, brought onto the grid of their photograph."""

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Box, Grid, Mask, grid_transform, to_grid
from editfoundry.data_engine.layouts.base import Annotation, Marked
from editfoundry.data_engine.records import BoxList, Region, Reject, Source

IMPORTED = "imported"


def with_annotation(source: Source, annotation: Annotation) -> tuple[Source, list[Reject]]:
    """The source with caption, regions and counts, and the rejects of regions that are not usable.

    A region keeps its mask on the grid, which must be of the photograph's size (`mask_size_mismatch`), must not be
    damaged (`bad_mask`) nor empty on the grid (`empty_mask`); a box must be one and touch the grid (`bad_box`), and a
    label be text (`bad_label`). Its detector is "imported"; its one score is the segmenter's and stands in for a
    detector's.
    """
    regions: list[Region] = []
    rejects: list[Reject] = []
    for number, marked in enumerate(annotation.regions):
        try:
            regions.append(_region(source, annotation.size, number, marked))
        except ImageError as error:
            rejects.append(
                Reject(
                    stage="ingest",
                    id=source.id,
                    reason=error.reason,
                    detail=f"{source.uri}: {marked.label} r{number}: {error}",
                    unit="region",
                    type=marked.label,
                    source_sha256=source.sha256,
                )
            )
    update = {"caption": annotation.caption, "regions": tuple(regions), "counts": annotation.counts}
    return source.model_copy(update=update), rejects


def _region(source: Source, size: tuple[int, int], number: int, marked: Marked) -> Region:
    if not marked.label:
        raise ImageError("bad_label", "its class name has no printable character")
    grid = Grid(*source.grid)
    mask = None if marked.mask is None else _mask(source, size, grid, marked.mask)
    box = _box_on_grid(marked.box, source, grid)
    outer = None if mask is None else mask.box()
    return Region(
        id=f"r{number}",
        label=marked.label,
        kind="object" if marked.kind == "object" else "background",
        box=_four(box if outer is None else outer),
        detector=IMPORTED,
        detector_score=round(marked.score, 4),
        segmenter_score=None if mask is None else round(marked.score, 4),
        scorer_score=None if marked.clip_score is None else round(marked.clip_score, 4),
        aesthetic=None if marked.aesthetic is None else round(marked.aesthetic, 4),
        mask=None if mask is None else mask.to_rle(),
        area=0.0 if mask is None else round(mask.fraction, 6),
        box_area=round(box.area / grid.area, 6),
    )


def _mask(source: Source, size: tuple[int, int], grid: Grid, counts: str) -> Mask:
    if size != (source.width, source.height):
        what = f"the mask is {size[0]}x{size[1]}, the photograph {source.width}x{source.height}"
        raise ImageError("mask_size_mismatch", what)
    try:
        mask = Mask.from_counts(counts, size[1], size[0])
    except ValueError as error:
        reason = "mask_size_mismatch" if "do not describe" in str(error) else "bad_mask"
        raise ImageError(reason, str(error)) from error
    placed = Mask(to_grid(mask.array, grid, nearest=True))
    if not placed.area:
        raise ImageError("empty_mask", "nothing of the mask is on the grid")
    return placed


def _box_on_grid(values: tuple[float, float, float, float], source: Source, grid: Grid) -> Box:
    try:
        box = Box.from_list(values)
    except ValueError as error:
        raise ImageError("bad_box", str(error)) from error
    scale, left, top = grid_transform(source.width, source.height, grid)
    moved = Box(box.x0 * scale - left, box.y0 * scale - top, box.x1 * scale - left, box.y1 * scale - top)
    inside = moved.clip(grid.width, grid.height)
    if inside is None:
        raise ImageError("bad_box", f"the box {list(values)} lies outside the photograph's grid")
    return inside


def _four(box: Box) -> BoxList:
    return round(box.x0, 2), round(box.y0, 2), round(box.x1, 2), round(box.y1, 2)
