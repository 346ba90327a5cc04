"""Which way an edit goes: what an instruction says comes and goes, and whether the two pictures agree.

Released pairs are sometimes swapped: "add a dog" with the dog in the source. A text-image scorer that names the dog
better in the source than in the result shows it.
"""

import re
from dataclasses import dataclass
from typing import Any

from editfoundry.core.geometry import Box
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Image, Values, crop

MAX_WORDS = 6
MAX_TEXT = 1000

_DETERMINERS = re.compile(
    r"a|an|the|some|any|another|this|that|these|those|his|her|its|their|my|our|your|new|one|two|three|four|"
    r"five|several|all|every|each|both"
)
_STOPS = re.compile(
    r"in|on|at|near|next|from|with|that|which|who|to|into|onto|for|so|and|or|while|beside|behind|under|"
    r"underneath|over|above|below|between|among|across|along|around|by|against|through|toward|towards|inside|"
    r"outside|within|upon|off|wearing|holding|located|positioned|standing|sitting|lying|flying|placed|visible|"
    r"but|as|if|where|then|seamlessly|leaving|without|it|is|are|was|were|again|here|there|elsewhere|somewhere"
)
_OPENERS = (
    r"^(?:(?:undo|withdraw|revert|go\s+back|no|i\s+do\s+not\s+want)\b[^,;]*?(?:[,;]|\band\b)\s*(?:instead,?\s+)?)?"
    r"(?:(?:please|kindly|now|then|also|next|finally|can you|could you|would you|let's|i want to|try to)\s+)*"
)
_REMOVE = (
    r"(?:remove|erase|delete|eliminate|discard|omit|take\s+(?:\w+\s+)?(?:away|out|off)|get\s+rid\s+of|clear\s+away)"
)
_ADD = r"(?:add|insert|include|introduce|place|put|draw|paint\s+in)"
_SWAP = r"(?:replace|swap|exchange|substitute|switch)"
_TURN = r"(?:change|turn|transform|convert)"
_ADJUST = r"(?:make|turn|change|adjust|alter|recolou?r|paint|colou?r)"
_ANY = rf"(?:{_REMOVE}|{_ADD}|{_SWAP}|{_ADJUST})"
_WHOLE = r"(?:the|this)\s+(?:whole\s+|entire\s+)?(?:image|picture|photo|photograph|scene)"
_LOOKS = r"(?:colou?rs?|materials?|textures?|look|appearance|shade|tone)"
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(f"{_OPENERS}(?:{pattern})", re.IGNORECASE | re.DOTALL))
    for kind, pattern in (
        ("visual", rf"(?:{_SWAP}|put)\b.{{1,200}}?\bin\s+the\s+reference\b"),
        ("visual", rf"{_SWAP}\b.{{1,200}}?\breference\b"),
        ("extract", r"(?:extract|isolate|cut\s+out|segment\s+out)\b"),
        ("background", r"(?:change|replace|swap|alter|switch|set|turn|transform)\s+(?:the\s+|its\s+)?background\b"),
        ("background", rf"{_SWAP}\s+everything\s+behind\b|(?:keep|put)\b.{{1,200}}?\b(?:the|new)\s+background\b"),
        ("style", rf"(?:repaint|render|redraw|restyle|styli[sz]e|apply)\b|(?:{_ADJUST}|{_TURN}|give)\s+{_WHOLE}\b"),
        ("compose", rf"{_ANY}\b.{{1,200}}?(?:,\s*and|;(?:\s*also)?|\.\s*at\s+the\s+same\s+time,?|\band)\s+{_ANY}\b"),
        ("count", r"change\s+the\s+number\s+of\b|there\s+should\s+be\b.{1,120}?\binstead\s+of\b"),
        ("move", r"(?:move|shift)\b"),
        ("resize", r"(?:resize|scale|enlarge|shrink)\b|make\b.{1,200}?\b(?:larger|bigger|smaller)\b"),
        ("adjust", rf"change\s+the\s+(?:\S+\s+)?{_LOOKS}\b|bring\b.{{1,120}}?\bback\s+and\s+make\b"),
        (
            "replace",
            rf"(?:{_SWAP}\s+(?P<old>.+?)\s+(?:with|for|by)|{_TURN}\s+(?P<was>.+?)\s+(?:into|to))\s+(?P<new>.+)",
        ),
        ("replace", r"put\s+(?P<new>.+?)\s+(?:where|in\s+place\s+of)\s+(?P<old>.+?)(?:\s+is)?\s*\.?$"),
        ("remove", rf"{_REMOVE}\s+(?P<old>.+)"),
        ("add", rf"{_ADD}\s+(?P<new>.+)"),
        ("add", r"there\s+should\s+be\s+(?P<new>.+)"),
        ("motion", r"(?:let|have)\b|show\s+the\s+scene\s+a\s+moment\s+later\b"),
        ("adjust", rf"{_ADJUST}\b"),
    )
)
_CLAUSE = re.compile(r"[.;:,!?]|\b(?:and\s+then|and\s+also)\b")


@dataclass(frozen=True)
class Reading:
    """What an instruction asks for, as far as its first words tell. type: a name of the taxonomy, "" if unclear.

    gone: the noun phrase that should stand in the source only; come: in the result only. Both without articles.
    """

    type: str = ""
    gone: str = ""
    come: str = ""


def read_instruction(text: str) -> Reading:
    """Read an English instruction by its verb. Anything it does not know gives an empty reading, never a guess."""
    plain = " ".join(text[:MAX_TEXT].split())
    for kind, pattern in _RULES:
        found = pattern.match(plain)
        if found:
            parts = found.groupdict()
            old = parts.get("old") or parts.get("was") or ""
            return Reading(kind, noun_phrase(old), noun_phrase(parts.get("new") or ""))
    return Reading()


def noun_phrase(text: str) -> str:
    """The noun phrase at the start of a text: up to the first preposition, relative or mark, without articles.

    "the small dog on the sofa" gives "small dog", "a cup of tea" itself; at most six words, lower case.
    """
    words = _CLAUSE.split(text, maxsplit=1)[0].lower().split()
    while words and _DETERMINERS.fullmatch(words[0].strip("\"'")):
        words.pop(0)
    kept: list[str] = []
    for word in words:
        bare = word.strip("\"'()[]")
        if _STOPS.fullmatch(bare) or len(kept) == MAX_WORDS:
            break
        if bare and not (_DETERMINERS.fullmatch(bare) and kept[-1:] == ["of"]):
            kept.append(bare)
    while kept and kept[-1] == "of":
        kept.pop()
    return " ".join(kept)


Claim = tuple[str, Image, Image]
"""A phrase, the picture that should hold it, and the one that should not."""


def direction(view: EdgeView, margin: float) -> Values:
    """The object of an add, remove or replace is named better in the picture that should hold it than in the other.

    `direction_gain` is how much better, over the crop of the changed area, in the scorer's units; the mean of both
    objects of a replacement; None where the instruction names nothing or nothing local changed. margin: a pair is
    refused, as `swapped_direction`, only when the other picture is ahead by more than this.
    """
    box = view.mask.box() if view.mask is not None else None
    claims = _claims(view, box) if box is not None else []
    if not claims:
        return {"direction_gain": None}
    scorer: Any = view.models["scorer"]
    images = [image for _, should, other in claims for image in (should, other)]
    scores = scorer.score(images, [phrase for phrase, _, _ in claims for _ in range(2)])
    gaps = [float(right - wrong) for right, wrong in zip(scores[::2], scores[1::2], strict=True)]
    gap = sum(gaps) / len(gaps)
    if gap < -margin:
        said = " and ".join(repr(phrase) for phrase, _, _ in claims)
        raise GateFailed(
            "swapped_direction",
            f"{said}: {scorer.metric} says the other picture holds it (by {-gap:.3f}); source and result look swapped",
            gap,
        )
    return {"direction_gain": round(gap, 4)}


def _claims(view: EdgeView, box: Box) -> list[Claim]:
    """What should be seen where. A label that the dataset gives is taken before the one read from the instruction."""
    reading, turn = read_instruction(view.turn.instruction), view.turn
    agrees = reading.type == turn.type
    gone = turn.target_label if turn.type in ("remove", "replace") else ""
    come = {"add": turn.target_label, "replace": turn.result_phrase}.get(turn.type, "")
    gone = gone or (reading.gone if agrees and turn.type in ("remove", "replace") else "")
    come = come or (reading.come if agrees and turn.type in ("add", "replace") else "")
    before, after = crop(view.source, box), crop(view.result, box)
    return [*([(gone, before, after)] if gone else []), *([(come, after, before)] if come else [])]
