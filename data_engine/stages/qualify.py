"""Decides which regions may be edited: size of the mask, cleanness of its outline, what lies inside what."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box, Mask, containment_tree
from editfoundry.data_engine.agreement import MAIN_MARGIN, crop
from editfoundry.data_engine.outline import outline
from editfoundry.data_engine.pixels import grid_pixels
from editfoundry.data_engine.records import Record, Region, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage
from editfoundry.data_engine.stages.segment import region_reject
from editfoundry.models.protocols import Image

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

SIZE_REASONS = ("too_large",)
SMALLEST_AREA = 1e-6
"""To which shares of the image are rounded: an imported box of less than a pixel has the share 0."""


class QualifyConfig(Config):
    """min_area, max_area: the mask's share of the image. min_stability: the segmenter's own score.

    min_solidity, min_fill, max_fill: shape of the mask (share of its hull and of its box). max_on_frame: part of the
    outline on the image's border. min_contrast, min_visible: colour difference across the outline, and the part of it
    where a difference is seen. min_box: area of the mask's box over that of the detector's, below which the segmenter
    found only a part of the object. min_scorer: how well the label names the crop, unless the mask covers large_area
    and the segmenter gives it large_score; None asks for no minimum. min_aesthetic: of the crop, where the run has an
    aesthetic model. background_*: the same for backgrounds, whose shape is not looked at.
    """

    min_area: float = Field(default=0.01, ge=0, le=1)
    max_area: float = Field(default=0.6, gt=0, le=1)
    min_stability: float = Field(default=0.75, ge=0, le=1)
    min_solidity: float = Field(default=0.45, ge=0, le=1)
    min_fill: float = Field(default=0.2, ge=0, le=1)
    max_fill: float = Field(default=0.97, ge=0, le=1)
    max_on_frame: float = Field(default=0.35, ge=0, le=1)
    min_contrast: float = Field(default=10.0, ge=0)
    min_visible: float = Field(default=0.9, ge=0, le=1)
    min_box: float = Field(default=0.8, ge=0)
    min_scorer: float | None = None
    large_area: float = Field(default=0.08, ge=0, le=1)
    large_score: float = Field(default=0.8, ge=0, le=1)
    min_aesthetic: float | None = None
    background_min_area: float = Field(default=0.4, ge=0, le=1)
    background_max_area: float = Field(default=0.7, gt=0, le=1)
    background_large_score: float = Field(default=0.75, ge=0, le=1)
    contained: float = Field(default=0.9, gt=0, le=1)


class Qualify(Stage):
    """Regions that fail are rejects of their own. One that is only too large stays, with `qualified` off: it may still
    be kept before a new background. A source without a region goes on: objects can be placed into it. The subject of a
    frame pair has no mask and needs none.
    """

    name: ClassVar[str] = "qualify"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("scorer", "aesthetic")
    config: QualifyConfig

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """The aesthetic model only where the run names one."""
        return cls.roles if "aesthetic" in config.models else ("scorer",)

    def prepare(self, item: Item) -> Item:
        if any(region.mask is not None for region in item.record.regions):
            item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._one(item) for item in batch]

    def _one(self, item: Item) -> Outcome:
        source: Source = item.record
        outcome: Outcome = []
        kept: list[tuple[Region, Mask]] = []
        unmasked = [region.model_copy(update={"qualified": True}) for region in source.regions if region.mask is None]
        for scored in self._scored(item):
            assert scored.mask is not None
            region, mask = scored, Mask.from_rle(scored.mask)
            problem = self._problem(item.pixels[0], scored, mask)
            if problem is not None:
                outcome.append(region_reject(self.name, source, region, *problem))
            if problem is None or problem[0] in SIZE_REASONS:
                kept.append((scored.model_copy(update={"qualified": problem is None}), mask))
        parents = containment_tree([mask for _, mask in kept], self.config.contained)
        regions = [
            region.model_copy(update={"parent": None if parent is None else kept[parent][0].id})
            for (region, _), parent in zip(kept, parents, strict=True)
        ]
        return [Item(source.model_copy(update={"regions": (*regions, *unmasked)})), *outcome]

    def _scored(self, item: Item) -> list[Region]:
        """The regions with a mask, with what the scorer and the aesthetic model say of their crops."""
        regions = [region for region in item.record.regions if region.mask is not None]
        if not regions:
            return []
        crops = [crop(item.pixels[0], Box.from_list(region.box), MAIN_MARGIN) for region in regions]
        scores = self.models["scorer"].score(crops, [region.label for region in regions])
        looks: list[float | None] = [None] * len(regions)
        if "aesthetic" in self.models:
            looks = [round(value, 4) for value in self.models["aesthetic"].aesthetic(crops)]
        return [
            region.model_copy(update={"scorer_score": round(score, 4), "aesthetic": look})
            for region, score, look in zip(regions, scores, looks, strict=True)
        ]

    def _problem(self, image: Image, region: Region, mask: Mask) -> tuple[str, str] | None:
        """(reason, detail) of the first check that fails; `too_large` comes last, as such a region may be kept."""
        config = self.config
        if region.kind == "background":
            return self._background_problem(region)
        line = outline(image, mask)
        stability, scorer = region.segmenter_score or 0.0, region.scorer_score or 0.0
        box = Box.from_list(region.box)
        covered = box.area / (mask.shape[0] * mask.shape[1]) / max(region.box_area, SMALLEST_AREA)
        checks = (
            ("too_small", region.area <= config.min_area, f"mask is {region.area:.2%} of the image"),
            ("ragged_mask", stability < config.min_stability, f"stability {stability:.2f}"),
            ("ragged_mask", line.solidity < config.min_solidity, f"solidity {line.solidity:.2f}"),
            ("ragged_mask", not config.min_fill <= line.fill <= config.max_fill, f"fills {line.fill:.0%} of its box"),
            ("partial_mask", covered < config.min_box, f"mask's box is {covered:.0%} of the detector's"),
            ("cut_by_frame", line.on_frame > config.max_on_frame, f"{line.on_frame:.0%} of the outline on the border"),
            ("unclear_outline", line.contrast < config.min_contrast, f"contrast {line.contrast:.1f}"),
            ("unclear_outline", line.visible < config.min_visible, f"{line.visible:.0%} of the outline is seen"),
            ("unlike_label", self._unlike(region, config.large_area, config.large_score), f"scorer {scorer:.2f}"),
            ("unappealing", self._unappealing(region), f"aesthetic score {region.aesthetic}"),
            ("too_large", region.area > config.max_area, f"mask is {region.area:.0%} of the image"),
        )
        return next(((reason, detail) for reason, fails, detail in checks if fails), None)

    def _background_problem(self, region: Region) -> tuple[str, str] | None:
        config = self.config
        if not config.background_min_area < region.area <= config.background_max_area:
            return "background_size", f"mask is {region.area:.0%} of the image"
        if self._unlike(region, 0.0, config.background_large_score):
            return "unlike_label", f"scorer {region.scorer_score or 0.0:.2f}"
        return ("unappealing", f"aesthetic score {region.aesthetic}") if self._unappealing(region) else None

    def _unlike(self, region: Region, large_area: float, large_score: float) -> bool:
        """Neither does the label name the crop, nor is the region large and surely cut out."""
        least, scorer = self.config.min_scorer, region.scorer_score or 0.0
        large = region.area >= large_area and (region.segmenter_score or 0.0) >= large_score
        return least is not None and scorer < least and not large

    def _unappealing(self, region: Region) -> bool:
        least = self.config.min_aesthetic
        return least is not None and region.aesthetic is not None and region.aesthetic < least
