"""Finds objects, agrees their nouns, and marks what no edit may hurt: faces and text."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from editfoundry.core.geometry import Box
from editfoundry.data_engine.agreement import crop
from editfoundry.data_engine.finders import DetectConfig, Found, find
from editfoundry.data_engine.pixels import box_list, grid_pixels
from editfoundry.data_engine.records import Record, Region, Reject, Source
from editfoundry.data_engine.stages.base import Item, Outcome, Stage
from editfoundry.models.protocols import Image
from editfoundry.models.registry import implementation

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

__all__ = ["Detect", "DetectConfig"]

FACE_MARGIN = 0.25
FRAME_MARGIN = 0.8
MIN_LETTERS = 3


class Detect(Stage):
    """Boxes come from the detector, and from salience where the detector's vocabulary is closed. See `finders`.

    A region whose noun is unsure becomes a reject of its own (`unsure_label`), never part of the source. `counts` holds
    every box found per label, sure or not, so that an instruction can tell whether a noun is unique in the picture.
    Regions that came with the source (an imported annotation) are kept as they are.
    """

    name: ClassVar[str] = "detect"
    row: ClassVar[type[Record]] = Source
    blobs: ClassVar[str] = "ingest"
    roles: ClassVar[tuple[str, ...]] = ("detector", "saliency", "tagger", "faces", "reader")
    config: DetectConfig

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """An open-vocabulary detector needs no witnesses but the caption; text is read only if asked for."""
        spec = config.models.get("detector")
        is_open = spec is not None and implementation("detector", spec.name).open_vocabulary
        without = {"saliency", "tagger"} if is_open else set()
        if not config.detect.read_text:
            without.add("reader")
        return tuple(role for role in cls.roles if role not in without)

    def prepare(self, item: Item) -> Item:
        item.pixels = grid_pixels(item)
        return item

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._frames(item) if item.record.kind == "frames" else self._photograph(item) for item in batch]

    def _photograph(self, item: Item) -> Outcome:
        source: Source = item.record
        image = item.pixels[0]
        faces = [face.box for face in self.models["faces"].faces(image)]
        found = find(source, image, faces, self.models, self.config) if not source.regions else []
        kept, rejects = self._merged(source, found)
        regions = source.regions or tuple(_region(source, index, one) for index, one in enumerate(kept))
        text = self._text(image)
        counts = Counter(source.counts or [region.label for region in regions])
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

    def _merged(self, source: Source, found: Sequence[Found]) -> tuple[list[Found], list[Reject]]:
        """Sure regions, one per object; of two on one place the detector's, then the better supported, is kept."""
        kept: list[Found] = []
        rejects: list[Reject] = []

        def refuse(one: Found, reason: str, detail: str) -> None:
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

    def _same_object(self, one: Found, other: Found) -> bool:
        a, b = one.detection.box, other.detection.box
        return a.iou(b) > self.config.overlap or self._part(one, other)

    def _part(self, one: Found, other: Found) -> bool:
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


def _rank(one: Found) -> tuple[bool, float, float, list[float]]:
    support = one.verdict.support if one.verdict.support is not None else one.detection.score
    return one.detector != "detector", -support, -one.detection.score, one.detection.box.as_list()


def _region(source: Source, index: int, one: Found) -> Region:
    width, height = source.grid
    box = one.detection.box
    support = one.verdict.support
    return Region(
        id=f"r{index}",
        label=one.verdict.label,
        kind=one.kind,
        box=box_list(box, source.grid),
        detector=one.detector,
        detector_score=round(one.detection.score, 4),
        tagger_score=None if support is None else round(support, 4),
        box_area=round(box.area / (width * height), 6),
    )


def _reject(source: Source, reason: str, detail: str, score: float) -> Reject:
    return Reject(stage="detect", id=source.id, reason=reason, detail=detail, score=score, source_sha256=source.sha256)
