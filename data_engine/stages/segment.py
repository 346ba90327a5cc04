"""Cuts a mask for every region, and fills in the zones where an object could stand."""

from collections.abc import Sequence
from typing import ClassVar

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
    max_hole: holes up to this share of the mask are filled. estimate_zones: where the manifest names no zone.
    """

    prompt_margin: float = Field(default=0.05, ge=0, le=1)
    min_main_part: float = Field(default=0.85, ge=0, le=1)
    max_hole: float = Field(default=0.01, ge=0, le=1)
    estimate_zones: bool = True


class Segment(Stage):
    """A region's mask is where the matte exceeds 0.5; its box becomes the mask's. Failures are rejects of the region.

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
        prompts = [self._prompt(region, source.grid) for region in source.regions]
        mattes: list[Segmentation] = self.models["segmenter"].segment(image, prompts) if prompts else []
        regions: list[Region] = []
        rejects: list[Reject] = []
        for region, matte in zip(source.regions, mattes, strict=True):
            mask, problem = self._mask(matte)
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

    def _mask(self, matte: Segmentation) -> tuple[Mask | None, tuple[str, str]]:
        """The main part of the matte with small holes filled, or the reason why there is none."""
        raw = Mask(matte.alpha > ALPHA)
        if not raw.area:
            return None, ("empty_mask", "the segmenter found no object in the box")
        main = raw.largest_component()
        share = main.area / raw.area
        if share < self.config.min_main_part:
            return None, ("scattered_mask", f"the largest part is only {share:.0%} of the mask")
        limit = self.config.max_hole * main.area
        small = [hole for hole in (main.fill_holes() - main).components() if hole.area <= limit]
        filled = np.logical_or.reduce([main.array, *(hole.array for hole in small)])
        return Mask(filled), ("", "")


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
