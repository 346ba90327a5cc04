"""Cuts a mask for every region, and fills in the zones where an object could stand."""

from collections.abc import Sequence
from typing import ClassVar

import cv2
import numpy as np
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box, Mask
from editfoundry.data_engine.pixels import box_list, grid_pixels
from editfoundry.data_engine.records import Record, Region, Reject, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage
from editfoundry.data_engine.zones import estimate_zones
from editfoundry.models.protocols import Segmentation

ALPHA = 0.5


class SegmentConfig(Config):
    """prompt_margin: share of its sides by which a box grows before the segmenter sees it, as detectors draw tightly.

    min_main_part: share of the mask that its largest connected part must hold; smaller parts are then dropped.
    max_hole: holes up to this share of the mask are filled. max_cut: part of the outline on the edges of the box that
    the segmenter was given, beyond which the box cut through the object. estimate_zones: where the manifest names none.
    """

    prompt_margin: float = Field(default=0.05, ge=0, le=1)
    min_main_part: float = Field(default=0.85, ge=0, le=1)
    max_hole: float = Field(default=0.01, ge=0, le=1)
    max_cut: float = Field(default=0.075, ge=0, le=1)
    estimate_zones: bool = True


class Segment(Stage):
    """A region's mask is where the matte exceeds 0.5; its box becomes the mask's. Failures are rejects of the region.

    Regions that came with a mask keep it.

    Frame pairs pass as they are: their edit is the second frame, which needs no mask.
    """

    name: ClassVar[str] = "segment"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("segmenter",)
    config: SegmentConfig

    def prepare(self, item: Item) -> Item:
        if item.record.kind == "photograph":
            item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._one(item) for item in batch]

    def _one(self, item: Item) -> Outcome:
        source: Source = item.record
        if source.kind == "frames":
            return [Item(source)]
        image = item.pixels[0]
        todo = [region for region in source.regions if region.mask is None]
        prompts = [self._prompt(region, source.grid) for region in todo]
        mattes: list[Segmentation] = self.models["segmenter"].segment(image, prompts) if prompts else []
        regions = [region for region in source.regions if region.mask is not None]
        rejects: list[Reject] = []
        for region, prompt, matte in zip(todo, prompts, mattes, strict=True):
            mask, problem = self._mask(matte, prompt) if region.kind == "object" else _scenery(matte)
            if mask is None:
                rejects.append(region_reject(self.name, source, region, *problem))
            else:
                regions.append(_with_mask(region, mask, matte.score, source.grid))
        zones = source.zones
        if not zones and self.config.estimate_zones:
            zones = estimate_zones(image)
        return [Item(source.model_copy(update={"regions": tuple(regions), "zones": zones})), *rejects]

    def _prompt(self, region: Region, grid: tuple[int, int]) -> Box:
        grown = Box.from_list(region.box).expand(self.config.prompt_margin)
        return Box.from_list(box_list(grown, grid))

    def _mask(self, matte: Segmentation, prompt: Box) -> tuple[Mask | None, tuple[str, str]]:
        """The main part of the matte with small holes filled, or the reason why there is none."""
        raw = Mask(matte.alpha > ALPHA)
        if not raw.area:
            return None, ("empty_mask", "the segmenter found no object in the box")
        main = raw.largest_component()
        share = main.area / raw.area
        if share < self.config.min_main_part:
            return None, ("scattered_mask", f"the largest part is only {share:.0%} of the mask")
        cut = cut_by_box(main, prompt)
        if cut > self.config.max_cut:
            return None, ("cut_by_box", f"{cut:.0%} of the outline lies on the edges of the box")
        limit = self.config.max_hole * main.area
        small = [hole for hole in (main.fill_holes() - main).components() if hole.area <= limit]
        filled = np.logical_or.reduce([main.array, *(hole.array for hole in small)])
        return Mask(filled), ("", "")


def _scenery(matte: Segmentation) -> tuple[Mask | None, tuple[str, str]]:
    """The mask of a background, which may lie in many parts and reach any edge."""
    mask = Mask(matte.alpha > ALPHA)
    return (mask, ("", "")) if mask.area else (None, ("empty_mask", "the segmenter found nothing in the box"))


def cut_by_box(mask: Mask, box: Box) -> float:
    """Part of a mask's outline, 0..1, that lies on those edges of the box that are not the image's own border."""
    array = mask.array
    edge = array & ~cv2.erode(array.astype(np.uint8), np.ones((3, 3), np.uint8), borderValue=0).astype(np.bool_)
    height, width = mask.shape
    x0, y0, x1, y1 = box.to_ints()
    touched = np.zeros_like(array)
    for position, size, axis in ((x0, width, 1), (x1 - 1, width, 1), (y0, height, 0), (y1 - 1, height, 0)):
        if 1 < position < size - 2:
            line = slice(position - 1, position + 2)
            touched[(slice(None), line) if axis else (line, slice(None))] = True
    return float((edge & touched).sum() / max(edge.sum(), 1))


def region_reject(stage: str, source: Source, region: Region, reason: str, detail: str) -> Reject:
    """The reject of one region; the source itself goes on."""
    return Reject(
        stage=stage,
        id=source.id,
        reason=reason,
        detail=f"{source.uri}: {region.label} {region.id}: {detail}",
        unit="region",
        type=region.label,
        source_sha256=source.sha256,
    )


def _with_mask(region: Region, mask: Mask, score: float, grid: tuple[int, int]) -> Region:
    box = mask.box()
    assert box is not None, "the mask is not empty"
    return region.model_copy(
        update={
            "mask": mask.to_rle(),
            "area": round(mask.fraction, 6),
            "box": box_list(box, grid),
            "segmenter_score": round(score, 4),
        }
    )
