"""Who finds objects and names them: a closed detector with witnesses, or an open one with the caption's nouns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box
from editfoundry.data_engine.agreement import (
    AgreementConfig,
    Verdict,
    judge_detection,
    judge_person,
    judge_unnamed,
    views,
)
from editfoundry.data_engine.records import Source
from editfoundry.models.protocols import Detection, Image

Models = Mapping[str, Any]


class DetectConfig(Config):
    """min_score: least detector score. open_score: the same for a noun to be sure of, where the detector looked for the

    nouns of the caption: two models then agree. min_area, max_area: a box's share of the image that is worth asking
    about. overlap: IoU at which two boxes are one object; `inside` the same for one box lying in another of the same
    label. max_regions: boxes asked about per image, the best first. frame_overlap: IoU of a frame pair's moving area
    with the person that the detector finds there, `frame_score` its least score. read_text: look for text, about 0.4 s
    an image; text_score: least score of a line that counts.
    """

    min_score: float = Field(default=0.35, ge=0, le=1)
    open_score: float = Field(default=0.35, ge=0, le=1)
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
class Found:
    """A box with its verdict; `detector` says who proposed it."""

    detection: Detection
    detector: Literal["detector", "saliency"]
    verdict: Verdict
    kind: Literal["object", "background"] = "object"


def find(source: Source, image: Image, faces: Sequence[Box], models: Models, config: DetectConfig) -> list[Found]:
    """Everything worth asking about, with its verdict; the detector's boxes first, best first."""
    if models["detector"].open_vocabulary:
        return _open(source, image, models["detector"], config)
    return _closed(source, image, faces, models, config)


def _open(source: Source, image: Image, detector: Any, config: DetectConfig) -> list[Found]:
    """The caption's nouns, looked for by an open-vocabulary detector: what both see is sure."""
    if source.caption is None:
        return []
    kinds: dict[str, Literal["object", "background"]] = {}
    for noun in source.caption.objects:
        kinds.setdefault(noun.lower(), "object")
    for noun in source.caption.backgrounds:
        kinds.setdefault(noun.lower(), "background")
    if not kinds:
        return []
    found = []
    for detection in detector.detect(image, list(kinds)):
        kind, share = kinds[detection.label], detection.box.area / (image.shape[0] * image.shape[1])
        largest = config.max_area if kind == "object" else 1.0
        if detection.score >= config.min_score and config.min_area <= share <= largest:
            sure = detection.score >= config.open_score
            why = f"caption and detector say {detection.label}, detector with {detection.score:.2f}"
            found.append(Found(detection, "detector", Verdict(detection.label, None, sure, why), kind))
    return found[: config.max_regions]


def _closed(source: Source, image: Image, faces: Sequence[Box], models: Models, config: DetectConfig) -> list[Found]:
    size = image.shape[0] * image.shape[1]
    named = [d for d in models["detector"].detect(image) if d.score >= config.min_score]
    salient = models["saliency"].detect(image)
    whole = models["tagger"].tag(image)

    def askable(detection: Detection) -> bool:
        return bool(config.min_area <= detection.box.area / size <= config.max_area)

    found: list[Found] = []
    for detection in filter(askable, named[: config.max_regions]):
        found.append(Found(detection, "detector", _judge(source, image, detection, faces, models, config)))
    for detection in filter(askable, salient[: config.max_regions]):
        rivals = [d.label for d in named if d.box.iou(detection.box) > config.overlap]
        seen = views(image, detection.box, models["tagger"], "", source.text, config.agreement)
        verdict = judge_unnamed(seen, whole, source.text, rivals, config.agreement)
        found.append(Found(detection, "saliency", verdict))
    return found


def _judge(source: Source, image: Image, detection: Detection, faces: Sequence[Box], models: Models,
           config: DetectConfig) -> Verdict:  # fmt: skip
    agreement = config.agreement
    seen = views(image, detection.box, models["tagger"], detection.label, source.text, agreement)
    if detection.label == "person":
        has_face = any(detection.box.contains(face, tolerance=face.width / 2) for face in faces)
        return judge_person(detection.score, has_face, seen, source.text, agreement)
    return judge_detection(detection.label, detection.score, seen, source.text, agreement)
