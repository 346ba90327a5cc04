"""When is a noun sure enough to stand in an instruction? Witnesses that do not know of each other must agree.

The witnesses are the detector (one label), the tagger (asked for four views of the region: looser, tight, much looser,
mirrored) and, where there is one, the text that came with the photograph. The detector alone is never believed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box
from editfoundry.models.embedded.labels import agrees, supporting
from editfoundry.models.embedded.nouns import KINDS, best_kind, kind_score, members, mentions
from editfoundry.models.protocols import Image, Tag, Tagger

MAIN_MARGIN = 0.12
OTHER_MARGINS = (0.0, 0.3)
TIGHT_VIEW = 1

Views = Sequence[Sequence[Tag]]
"""The tagger's answers: four views, or only the first where that one rules the region out."""


class AgreementConfig(Config):
    """All are probabilities; the tagger's are the least over the four views.

    detector: its least score for a noun. tagger_with_detector: tagger's support for the detector's label.
    tagger_alone: for a noun only the tagger gives. part: how many times better the whole picture may fit that noun than
    the region does; beyond, the region shows only a part of the object.
    tagger_with_text: for a noun that the photograph's text names; `top_views` first choices serve as well.
    person, person_alone: detector's score for a person with and without another witness (face, clothes, text).
    detector_with_text: detector's score for labels that the tagger has no class for.
    """

    detector: float = Field(default=0.5, ge=0, le=1)
    part: float = Field(default=2.0, ge=1)
    tagger_with_detector: float = Field(default=0.35, ge=0, le=1)
    tagger_alone: float = Field(default=0.4, ge=0, le=1)
    tagger_with_text: float = Field(default=0.12, ge=0, le=1)
    top_views: int = Field(default=3, ge=1, le=4)
    person: float = Field(default=0.75, ge=0, le=1)
    person_alone: float = Field(default=0.95, ge=0, le=1)
    detector_with_text: float = Field(default=0.6, ge=0, le=1)


@dataclass(frozen=True)
class Verdict:
    """A noun and the tagger's support for it; `sure` says whether it may be used, `why` what the witnesses said."""

    label: str
    support: float | None
    sure: bool
    why: str


def views(image: Image, box: Box, tagger: Tagger, label: str, text: str, config: AgreementConfig) -> list[list[Tag]]:
    """The tagger's answers for the views of a region, in the order looser, tight, much looser, mirrored looser.

    `label` is the detector's, empty when there is none. Only the first view is asked when it rules the region out.
    """
    main = crop(image, box, MAIN_MARGIN)
    seen = [tagger.tag(main)]
    if _hopeless(seen[0], label, text, config):
        return seen
    seen += [tagger.tag(crop(image, box, margin)) for margin in OTHER_MARGINS]
    return [*seen, tagger.tag(np.ascontiguousarray(main[:, ::-1]))]


def _hopeless(tags: Sequence[Tag], label: str, text: str, config: AgreementConfig) -> bool:
    """Whether no other view can make the region sure: too little support here, and no text that names it."""
    if label == "person":
        return False
    if label:
        classes = members(label) or supporting(label)
        return _share(tags, classes) < config.tagger_with_detector and not mentions(text, label)
    best = max(kind_score(kind, tags) for kind in KINDS)
    return best < config.tagger_alone and not any(mentions(text, kind) for kind in KINDS)


def crop(image: Image, box: Box, margin: float) -> Image:
    """The pixels of the box grown by `margin` of its sides, cut to the image. ValueError for a box outside of it."""
    height, width = image.shape[:2]
    inside = box.expand(margin).clip(width, height)
    if inside is None:
        raise ValueError(f"box {box.as_list()} lies outside the {width}x{height} image")
    x0, y0, x1, y1 = inside.to_ints()
    return np.ascontiguousarray(image[y0:y1, x0:x1])


def judge_person(score: float, has_face: bool, seen: Views, text: str, config: AgreementConfig) -> Verdict:
    """A detector's "person": very sure by itself, or sure with a face in the box, worn things, or the text."""
    worn = agrees("person", seen[0])
    others = [name for name, there in (("face", has_face), ("clothes", worn is not None and worn >= 0.1),
                                       ("text", mentions(text, "person"))) if there]  # fmt: skip
    sure = score >= (config.person if others else config.person_alone)
    why = f"detector says person {score:.2f}; {'also ' + ', '.join(others) if others else 'no face, clothes or text'}"
    return Verdict("person", worn, sure, why)


def judge_detection(label: str, score: float, seen: Views, text: str, config: AgreementConfig) -> Verdict:
    """A detector's label: the tagger must support it in every view, more weakly if the text names it too."""
    why = f"detector says {label} {score:.2f}; tagger says {_first(seen)}"
    named = mentions(text, label)
    classes = members(label) or supporting(label)
    if not classes:
        return Verdict(label, None, named and score >= config.detector_with_text, f"{why}, and cannot judge {label}")
    support = min(_share(tags, classes) for tags in seen)
    if len(seen) == 1:
        return Verdict(label, support, False, why)
    tops = sum(bool(tags) and tags[0].label in classes for tags in seen)
    agreed = support >= config.tagger_with_detector or (named and _supported(support, tops, config))
    return Verdict(_refined(label, seen, config), support, agreed and score >= config.detector, why)


def judge_unnamed(
    seen: Views, whole: Sequence[Tag], text: str, rivals: Sequence[str], config: AgreementConfig
) -> Verdict:
    """A region without a label: one kind must carry every view, or the text must name it too.

    `whole` are the tags of the whole picture. `rivals` are the detector's labels for the same place: one that the kind
    is no part of is a contradiction, unless the text names the kind.
    """
    named = [kind for kind in KINDS if mentions(text, kind)]
    candidates = sorted({*named, *filter(None, map(best_kind, seen))})
    why = f"tagger says {_first(seen)}"
    if not candidates or len(seen) == 1:
        return Verdict(candidates[0] if candidates else "", 0.0, False, why)
    supports = {kind: min(kind_score(kind, tags) for tags in seen) for kind in candidates}
    tops = {kind: sum(best_kind(tags) == kind for tags in seen) for kind in candidates}
    label = max(candidates, key=lambda kind: (supports[kind], tops[kind], kind))
    sure = supports[label] >= config.tagger_alone
    if not sure:
        backed = [kind for kind in named if _supported(supports[kind], tops[kind], config)]
        if backed:
            label, sure = max(backed, key=lambda kind: (supports[kind], tops[kind], kind)), True
    if kind_score(label, whole) > max(0.5, config.part * kind_score(label, seen[TIGHT_VIEW])):
        return Verdict(label, supports[label], False, f"{why}; the whole picture is more of a {label} than the region")
    against = [rival for rival in rivals if rival != label and not members(label) & supporting(rival)]
    if against and not mentions(text, label):
        return Verdict(label, supports[label], False, f"{why}; detector says {', '.join(sorted(set(against)))}")
    return Verdict(label, supports[label], sure, why)


def _share(tags: Sequence[Tag], classes: frozenset[str]) -> float:
    return min(sum(tag.score for tag in tags if tag.label in classes), 1.0)


def _supported(support: float, tops: int, config: AgreementConfig) -> bool:
    return support >= config.tagger_with_text or tops >= config.top_views


def _refined(label: str, seen: Views, config: AgreementConfig) -> str:
    """A narrower kind that every view is sure of, such as "soccer ball" for "sports ball"."""
    narrower = [kind for kind in KINDS if kind != label and members(kind) < supporting(label)]
    supports = {kind: min(kind_score(kind, tags) for tags in seen) for kind in narrower}
    best = max(narrower, key=lambda kind: (supports[kind], kind), default=None)
    return best if best is not None and supports[best] >= 2 * config.tagger_alone else label


def _first(seen: Views) -> str:
    tags = seen[0]
    return f"{tags[0].label} {tags[0].score:.2f}" if tags else "nothing"
