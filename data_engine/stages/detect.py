"""Finds objects, agrees their nouns, and marks what no edit may hurt: faces and text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box
from editfoundry.data_engine.agreement import (
    AgreementConfig,
    Verdict,
    crop,
    judge_detection,
    judge_person,
    judge_unnamed,
    views,
)
from editfoundry.data_engine.pixels import box_list, grid_pixels
from editfoundry.data_engine.records import Record, Region, Reject, Source
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.models.protocols import Detection, Image

FACE_MARGIN = 0.25
FRAME_MARGIN = 0.8
MIN_LETTERS = 3


class DetectConfig(Config):
    """min_score: least detector score. min_area, max_area: a box's share of the image that is worth asking about.

    overlap: IoU at which two boxes are one object; `inside` the same for one box lying in another of the same label.
    max_regions: boxes asked about per image, the best first. frame_overlap: IoU of a frame pair's moving area with the
    person that the detector finds there, `frame_score` its least score. read_text: look for text, about 0.4 s an image;
    text_score: least score of a line that counts.
    """

    min_score: float = Field(default=0.35, ge=0, le=1)
    min_area: float = Field(default=0.008, ge=0, le=1)
    max_area: float = Field(default=0.95, ge=0, le=1)
    overlap: float = Field(default=0.5, gt=0, le=1)
    inside: float = Field(default=0.8, gt=0, le=1)
    max_regions: int = Field(default=24, ge=1)
    frame_score: float = Field(default=0.5, ge=0, le=1)
    frame_overlap: float = Field(default=0.35, gt=0, le=1)
    read_text: bool = True
    text_score: float = Field(default=0.85, ge=0, le=1)
    agreement: AgreementConfig = AgreementConfig()


@dataclass(frozen=True)
class _Found:
    detection: Detection
    detector: str
    verdict: Verdict


class Detect(Stage):
    """Boxes come from the detector, which names them, and from salience, which does not. See `agreement` for the nouns.

    A region whose noun is unsure becomes a reject of its own (`unsure_label`), never part of the source. `counts` holds
    every box found per label, sure or not, so that an instruction can tell whether a noun is unique in the picture.
    """

    name: ClassVar[str] = "detect"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("detector", "saliency", "tagger", "faces", "reader")
    config: DetectConfig

    def setup(self, artifacts: Artifacts) -> None:
        """Load all models that the configuration asks for."""
        del artifacts
        for role in self.roles:
            if role != "reader" or self.config.read_text:
                self.models[role].load()

    def prepare(self, item: Item) -> Item:
        item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._frames(item) if item.record.kind == "frames" else self._photograph(item) for item in batch]

    def _photograph(self, item: Item) -> Outcome:
        source: Source = item.record
        image = item.pixels[0]
        faces = [face.box for face in self.models["faces"].faces(image)]
        found = self._found(source, image, faces)
        kept, rejects = self._merged(source, found)
        regions = tuple(_region(source, index, one) for index, one in enumerate(kept))
        text = self._text(image)
        counts = Counter(one.verdict.label for one in kept)
        counts.update(one.verdict.label for one in found if not one.verdict.sure and one.detector == "detector")
        record = source.model_copy(
            update={
                "regions": regions,
                "counts": dict(sorted(counts.items())),
                "faces": len(faces),
                "has_text": bool(text),
                "protected": tuple(
                    box_list(box, source.grid) for box in (*(face.expand(FACE_MARGIN) for face in faces), *text)
                ),
            }
        )
        return [Item(record), *rejects]

    def _found(self, source: Source, image: Image, faces: Sequence[Box]) -> list[_Found]:
        """Everything worth asking about, with its verdict; the detector's boxes first, best first."""
        size = image.shape[0] * image.shape[1]
        named = [d for d in self.models["detector"].detect(image) if d.score >= self.config.min_score]
        salient = self.models["saliency"].detect(image)
        whole = self.models["tagger"].tag(image)

        def askable(detection: Detection) -> bool:
            share = detection.box.area / size
            return bool(self.config.min_area <= share <= self.config.max_area)

        found: list[_Found] = []
        for detection in filter(askable, named[: self.config.max_regions]):
            found.append(_Found(detection, "detector", self._judge(source, image, detection, faces)))
        for detection in filter(askable, salient[: self.config.max_regions]):
            rivals = [d.label for d in named if d.box.iou(detection.box) > self.config.overlap]
            seen = views(image, detection.box, self.models["tagger"], "", source.text, self.config.agreement)
            verdict = judge_unnamed(seen, whole, source.text, rivals, self.config.agreement)
            found.append(_Found(detection, "saliency", verdict))
        return found

    def _judge(self, source: Source, image: Image, detection: Detection, faces: Sequence[Box]) -> Verdict:
        config = self.config.agreement
        seen = views(image, detection.box, self.models["tagger"], detection.label, source.text, config)
        if detection.label == "person":
            has_face = any(detection.box.contains(face, tolerance=face.width / 2) for face in faces)
            return judge_person(detection.score, has_face, seen, source.text, config)
        return judge_detection(detection.label, detection.score, seen, source.text, config)

    def _merged(self, source: Source, found: Sequence[_Found]) -> tuple[list[_Found], list[Reject]]:
        """Sure regions, one per object; of two on one place the detector's, then the better supported, is kept."""
        kept: list[_Found] = []
        rejects: list[Reject] = []

        def refuse(one: _Found, reason: str, detail: str) -> None:
            box = "-".join(str(round(value)) for value in one.detection.box.as_list())
            rejects.append(
                Reject(
                    stage=self.name,
                    id=source.id,
                    reason=reason,
                    detail=f"{source.uri} at {box}: {detail}",
                    unit="region",
                    type=one.verdict.label,
                    score=one.verdict.support,
                    source_sha256=source.sha256,
                )
            )

        for one in sorted(found, key=_rank):
            if not one.verdict.sure:
                refuse(one, "unsure_label", one.verdict.why)
                continue
            rival = next((other for other in kept if self._same_object(one, other)), None)
            if rival is None and one.detector == "saliency":
                # Salience often shows only a part of what the detector boxed; the detector's own doubts stand.
                boxed = (other for other in found if other.detector == "detector")
                rival = next((other for other in boxed if self._part(one, other)), None)
            if rival is None:
                kept.append(one)
            elif rival.verdict.label == one.verdict.label:
                refuse(one, "found_twice", f"the same {one.verdict.label} is already a region")
            else:
                refuse(one, "found_twice", f"{one.verdict.label} lies where {rival.verdict.label} is a region")
        return kept, rejects

    def _same_object(self, one: _Found, other: _Found) -> bool:
        a, b = one.detection.box, other.detection.box
        return a.iou(b) > self.config.overlap or self._part(one, other)

    def _part(self, one: _Found, other: _Found) -> bool:
        """Whether one of two boxes with the same label lies in the other."""
        a, b = one.detection.box, other.detection.box
        within = a.intersection(b) / min(a.area, b.area)
        return one.verdict.label == other.verdict.label and within > self.config.inside

    def _text(self, image: Image) -> list[Box]:
        """Boxes of what is surely text; single letters and ornaments are not."""
        lines = self.models["reader"].read(image) if self.config.read_text else []
        return [
            line.box
            for line in lines
            if line.score >= self.config.text_score and sum(map(str.isalnum, line.text)) >= MIN_LETTERS
        ]

    def _frames(self, item: Item) -> Outcome:
        """A frame pair stands or falls with its subject: the detector must find a person where it was and went."""
        source: Source = item.record
        assert source.motion is not None, "ingest sets the motion of every frame pair"
        boxes = [Box.from_list(source.motion.before), Box.from_list(source.motion.after)]
        scores = [self._person_at(image, box) for image, box in zip(item.pixels, boxes, strict=True)]
        if min(scores) < self.config.frame_score:
            detail = f"{source.uri}: detector says person {scores[0]:.2f} before and {scores[1]:.2f} after the move"
            return [_reject(source, "unsure_label", detail, min(scores))]
        region = Region(
            id="r0",
            label="person",
            kind="object",
            box=source.motion.before,
            detector="detector",
            detector_score=round(min(scores), 4),
            box_area=round(boxes[0].area / (source.grid[0] * source.grid[1]), 6),
        )
        faces = self.models["faces"].faces(item.pixels[0])
        return [Item(source.model_copy(update={"regions": (region,), "counts": {"person": 1}, "faces": len(faces)}))]

    def _person_at(self, image: Image, box: Box) -> float:
        """Detector's score for a person overlapping `box`, looked at in a crop around it; 0.0 when there is none."""
        around = box.expand(FRAME_MARGIN).clip(image.shape[1], image.shape[0])
        assert around is not None, "a moving area lies inside its frame"
        x0, y0, _, _ = around.to_ints()
        here = Box(box.x0 - x0, box.y0 - y0, box.x1 - x0, box.y1 - y0)
        people = self.models["detector"].detect(crop(image, around, 0.0), ["person"])
        return max((p.score for p in people if p.box.iou(here) >= self.config.frame_overlap), default=0.0)


def _rank(one: _Found) -> tuple[bool, float, float, list[float]]:
    support = one.verdict.support if one.verdict.support is not None else one.detection.score
    return one.detector != "detector", -support, -one.detection.score, one.detection.box.as_list()


def _region(source: Source, index: int, one: _Found) -> Region:
    width, height = source.grid
    box = one.detection.box
    support = one.verdict.support
    return Region(
        id=f"r{index}",
        label=one.verdict.label,
        kind="object",
        box=box_list(box, source.grid),
        detector=one.detector,
        detector_score=round(one.detection.score, 4),
        tagger_score=None if support is None else round(support, 4),
        box_area=round(box.area / (width * height), 6),
    )


def _reject(source: Source, reason: str, detail: str, score: float) -> Reject:
    return Reject(
        stage="detect", id=source.id, reason=reason, detail=detail, score=score, source_sha256=source.sha256
    )
