"""Drops what should not become training data: cheap metadata first, then one decode for all pixel checks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import cv2
import numpy as np
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.data_engine.pixels import grid_pixels
from editfoundry.data_engine.records import Record, Reject, Source
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.stages.duplicates import DuplicateGroup
from editfoundry.data_engine.stages.similar import EMBEDDING
from editfoundry.models.protocols import Image

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

Finding = tuple[str, str, float]
FLAT_RANGE = 1


class FilterConfig(Config):
    """min_short_side: pixels of the original. max_aspect: long over short side. keep_duplicates: switch that check off.

    max_unsafe: probability of not being safe for work. max_quality: technical distortion (BRISQUE: 0 pristine, 100
    ruined). min_contrast: standard deviation of luminance below which an image is blank. min_brightness: the 95th
    percentile of luminance below which it is too dark. max_flat: share of pixels that equal all their neighbours, above
    which it is a drawing, a logo or a screenshot; 1 lets those pass. min_aesthetic: aesthetic score that a photograph
    must exceed; None asks for none (the run then needs no aesthetic model).
    """

    min_short_side: int = Field(default=256, ge=64)
    max_aspect: float = Field(default=3.0, ge=1)
    keep_duplicates: bool = False
    max_unsafe: float = Field(default=0.5, ge=0, le=1)
    max_quality: float = Field(default=70.0)
    min_contrast: float = Field(default=6.0, ge=0)
    min_brightness: float = Field(default=32.0, ge=0, le=255)
    max_flat: float = Field(default=0.5, gt=0, le=1)
    min_aesthetic: float | None = None


class Filter(Stage):
    """Every source that goes on carries its measurements in `scores`: unsafe, quality, contrast, brightness, flat, and

    aesthetic where that is asked for; its embedding, where photographs are to be compared, is a member of its tar.
    """

    name: ClassVar[str] = "filter"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("safety", "quality", "aesthetic", "image_embedder")
    artifacts: ClassVar[tuple[str, ...]] = ("duplicates",)
    config: FilterConfig

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """The aesthetic model and the embedder only where they are asked for."""
        asked = {"aesthetic": config.filter.min_aesthetic is not None, "image_embedder": config.similar.wanted}
        return tuple(role for role in cls.roles if asked.get(role, True))

    def settings(self) -> dict[str, Any]:
        """The section, and whether embeddings are kept for the comparison below."""
        return {**super().settings(), "embed": "image_embedder" in self.models}

    def setup(self, artifacts: Artifacts) -> None:
        """Load the models, and for every duplicate the group it belongs to."""
        super().setup(artifacts)
        groups = (DuplicateGroup.model_validate(row) for row in artifacts.rows("duplicates"))
        self.duplicates = {uri: group for group in groups for uri in group.uris if uri != group.keeper_uri}

    def prepare(self, item: Item) -> Item:
        """Decode, unless the metadata already decides."""
        if self._metadata(item.record) is None:
            item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        findings = [self._metadata(item.record) for item in batch]
        passed = [index for index, finding in enumerate(findings) if finding is None]
        scores = dict(zip(passed, self._scores([batch[index].pixels for index in passed]), strict=True))
        for index in passed:
            findings[index] = self._pixels(scores[index])
        kept = [index for index in passed if findings[index] is None]
        blobs = dict(zip(kept, self._embeddings([batch[index].pixels[0] for index in kept]), strict=True))
        return [
            [
                _accepted(item.record, scores[index], blobs[index])
                if finding is None
                else self._rejected(item.record, finding)
            ]
            for index, (item, finding) in enumerate(zip(batch, findings, strict=True))
        ]

    def _scores(self, images: Sequence[list[Image]]) -> list[dict[str, float]]:
        """What every model says of each source's pictures; all look at the one decoded copy."""
        scores = [
            {
                "unsafe": round(max(self.models["safety"].unsafe(image) for image in pictures), 4),
                "quality": round(max(self.models["quality"].quality(image) for image in pictures), 3),
                **measures(pictures[0]),
            }
            for pictures in images
        ]
        if "aesthetic" in self.models and images:
            looks = self.models["aesthetic"].aesthetic([pictures[0] for pictures in images])
            for score, look in zip(scores, looks, strict=True):
                score["aesthetic"] = round(float(look), 4)
        return scores

    def _embeddings(self, images: Sequence[Image]) -> list[dict[str, bytes]]:
        """One member per source where photographs are to be compared, none otherwise."""
        if "image_embedder" not in self.models or not images:
            return [{} for _ in images]
        vectors = self.models["image_embedder"].embed(images)
        return [{EMBEDDING: np.asarray(vector, np.float16).tobytes()} for vector in vectors]

    def _rejected(self, source: Source, finding: Finding) -> Reject:
        reason, detail, score = finding
        return Reject(
            stage=self.name,
            id=source.id,
            reason=reason,
            detail=f"{source.uri}: {detail}",
            score=score,
            source_sha256=source.sha256,
        )

    def _metadata(self, source: Source) -> Finding | None:
        short, long = sorted((source.width, source.height))
        if short < self.config.min_short_side:
            return "small_short_side", f"short side {short} is under {self.config.min_short_side}", float(short)
        if long > self.config.max_aspect * short:
            detail = f"{source.width}x{source.height} is longer than {self.config.max_aspect}:1"
            return "extreme_aspect", detail, round(long / short, 3)
        group = None if self.config.keep_duplicates else self.duplicates.get(source.uri)
        if group is None:
            return None
        exact = source.id == group.keeper
        reason, what = ("exact_duplicate", "the same file") if exact else ("near_duplicate", "the same picture")
        return reason, f"{what} as {group.keeper_uri}, which is kept", 0.0

    def _pixels(self, scores: dict[str, float]) -> Finding | None:
        config = self.config
        checks = (
            ("blank", "contrast", scores["contrast"] < config.min_contrast, config.min_contrast),
            ("too_dark", "brightness", scores["brightness"] < config.min_brightness, config.min_brightness),
            ("not_a_photograph", "flat", scores["flat"] > config.max_flat, config.max_flat),
            ("unsafe", "unsafe", scores["unsafe"] > config.max_unsafe, config.max_unsafe),
            ("low_quality", "quality", scores["quality"] > config.max_quality, config.max_quality),
        )
        for reason, name, fails, limit in checks:
            if fails:
                return reason, f"{name} {scores[name]:.3g}, the limit is {limit:.3g}", scores[name]
        least = config.min_aesthetic
        if least is not None and scores["aesthetic"] <= least:
            detail = f"aesthetic {scores['aesthetic']:.3g}, more than {least:.3g} is asked for"
            return "unappealing", detail, scores["aesthetic"]
        return None


def _accepted(source: Source, scores: dict[str, float], blobs: dict[str, bytes]) -> Item:
    return Item(source.model_copy(update={"scores": {**source.scores, **scores}}), blobs)


def measures(image: Image) -> dict[str, float]:
    """contrast (standard deviation of luminance), brightness (its 95th percentile), flat (share of even pixels)."""
    luminance = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    kernel = np.ones((3, 3), np.uint8)
    spread = cv2.subtract(cv2.dilate(image, kernel), cv2.erode(image, kernel)).max(axis=2)
    return {
        "contrast": round(float(luminance.std()), 3),
        "brightness": round(float(np.percentile(luminance, 95)), 3),
        "flat": round(float((spread <= FLAT_RANGE).mean()), 4),
    }
