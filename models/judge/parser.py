"""What a reply of scores says, strictly: every score once, as a whole number of the scale, or the reason why not.

A score may be written `4`, `4.`, `4/5`, `4 (good)`, `**Label:** 4`, `- Label: **4**`, with digits of any script, or as
a JSON object; code fences are taken off. Nothing is guessed: a score that is missing, out of range, no whole number,
given twice, or followed by another number is no score. A reply counts as a whole, with what was thought before it:
`<think>` blocks stay, so that a score in one and a score after it are two.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from editfoundry.core.text import one_line
from editfoundry.models.judge.rubric import Dimension, Scale

LONGEST_REPLY = 100_000
LONGEST_REASON = 300
_FENCE = re.compile(r"^[ \t]*```[\w-]*[ \t\r]*$", re.MULTILINE)
_MARKS = "*_`#>|\"'•·–—- \t"
_REASON_LABELS = ("brief reasoning", "reasoning", "reason")
_BULLET = re.compile(r"^\(?\d{1,3}[.)]\s+")
_PUNCTUATION = dict(zip("：／．。（），；！＝\u00a0", ":/..(),;!= ", strict=True))
_EMPHASIS = re.compile(r"(?<![^\W_])[*_`]+|[*_`]+(?![^\W_])")
_VALUE = re.compile(
    r"""(?P<sign>[+-]?)(?P<whole>\d+)(?:\.(?P<fraction>\d{1,2}))?
        (?:\s?/\s?(?P<of>\d+)|\sout\sof\s(?P<out>\d+)|\s?\((?:/|(?:out\s)?of\s)(?P<within>\d+)\))?  # of how many
        (?:\s?[.,;:!–—-](?=\s)[^\d]*|\s?\([^\d]*\)|\s?\[[^\d]*\])?  # words about it, without another number
        \s?[.,;!]?""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Misread:
    """Why a reply holds no scores: a stable reason, and which score in words for people.

    missing: a label that does not come up. not_a_number: a label without one whole number after it (but a range, a
    fraction, a word, two numbers). out_of_range: not on the scale, or out of another number than the scale's highest.
    duplicate: given twice, the same; contradictory: given twice, differently. unreadable: too long, or broken JSON.
    """

    reason: Literal["missing", "not_a_number", "out_of_range", "duplicate", "contradictory", "unreadable"]
    detail: str


def parse_reply(reply: str, dimensions: Sequence[Dimension], scale: Scale) -> dict[str, int] | Misread:
    """The score of every dimension by its key, or what is wrong with the first that has none."""
    if len(reply) > LONGEST_REPLY:
        return Misread("unreadable", f"the reply is longer than {LONGEST_REPLY} characters")
    text = _FENCE.sub("", _plain(reply)).strip()
    said = _from_json(text, dimensions) if text.startswith("{") else _from_lines(text, dimensions)
    if isinstance(said, Misread):
        return said
    scores: dict[str, int] = {}
    for dimension in dimensions:
        given = [_score(dimension, value, scale) for value in said[dimension.key]]
        wrong = [one for one in given if isinstance(one, Misread)]
        if not given:
            return Misread("missing", f"no line for {dimension.label}")
        if wrong:
            return wrong[0]
        if len(given) > 1:
            same = len(set(given)) == 1
            return Misread("duplicate" if same else "contradictory", f"{dimension.label} is given {len(given)} times")
        assert isinstance(given[0], int)
        scores[dimension.key] = given[0]
    return scores


def parse_reason(reply: str, dimensions: Sequence[Dimension]) -> str:
    """The reason in a reply, on one line of at most 300 characters: its own line, else what comes before the scores."""
    text = _FENCE.sub("", _plain(reply[:LONGEST_REPLY])).strip()
    if text.startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return ""
        found = [value[key] for key in value if _name(key) in _REASON_LABELS] if isinstance(value, dict) else []
        return one_line(found[0], LONGEST_REASON) if found and isinstance(found[0], str) else ""
    names = _names(dimensions)
    lines = [(line, *_labelled(line)) for line in text.splitlines()]
    for _, label, value in lines:
        if label in _REASON_LABELS:
            return one_line(value.strip(_MARKS), LONGEST_REASON)
    before = takewhile(lambda line: line[1] not in names, lines)
    return one_line(" ".join(line for line, _, _ in before), LONGEST_REASON)


def _plain(text: str) -> str:
    """Digits of every script as ASCII, full-width punctuation and blanks as their usual form."""
    return "".join(_sign(sign) for sign in text)


def _sign(sign: str) -> str:
    if sign.isascii():
        return sign
    digit = unicodedata.decimal(sign, None)
    if digit is not None:
        return str(digit)
    return _PUNCTUATION.get(sign, sign)


def _name(text: str) -> str:
    """A label without marks and case, `_` as a blank."""
    return " ".join(text.replace("_", " ").strip(_MARKS + ":").casefold().split())


def _labelled(line: str) -> tuple[str, str]:
    """The label and the value of a line `Label: value`, or of a table's row `| Label | value |`."""
    if line.lstrip().startswith("|"):
        cells = line.strip().strip("|").split("|")
        return (_name(cells[0]), cells[1]) if len(cells) >= 2 else ("", line)
    label, colon, value = line.partition(":")
    if not colon:
        label, equals, value = line.partition("=")
        return (_name(label), value) if equals else ("", line)
    return _name(_BULLET.sub("", label.strip(_MARKS))), value


def _from_lines(text: str, dimensions: Sequence[Dimension]) -> dict[str, list[str]]:
    """What stands after each label, by dimension."""
    said: dict[str, list[str]] = {dimension.key: [] for dimension in dimensions}
    names = _names(dimensions)
    for line in text.splitlines():
        label, value = _labelled(line)
        if label in names:
            said[names[label]].append(value)
    return said


def _from_json(text: str, dimensions: Sequence[Dimension]) -> dict[str, list[str]] | Misread:
    """What a JSON object has under each key or label; keys that stand twice count twice."""
    try:
        pairs: _Pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return Misread("unreadable", "the reply starts as JSON and is none")
    names, said = _names(dimensions), {dimension.key: list[str]() for dimension in dimensions}
    for key, value in pairs:
        if _name(key) in names:
            said[names[_name(key)]].append(_written(value))
    return said


class _Pairs(list[tuple[str, Any]]):
    """A JSON object's pairs, those with equal keys too."""


def _names(dimensions: Sequence[Dimension]) -> dict[str, str]:
    """Dimension key by what may stand for it."""
    return {_name(name): one.key for one in dimensions for name in (one.key, one.label)}


def _written(value: Any) -> str:
    """A JSON value as a score would be written; what is no number or text has none."""
    if isinstance(value, _Pairs):
        scores = [inner for key, inner in value if _name(key) == "score"]
        return _written(scores[0]) if len(scores) == 1 and not isinstance(scores[0], list) else ""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    return _plain(str(value))


def _score(dimension: Dimension, value: str, scale: Scale) -> int | Misread:
    match = _VALUE.fullmatch(_EMPHASIS.sub("", " ".join(value.split())).strip("\"'| "))
    shown = f"{dimension.label}: {one_line(value, 40) or 'nothing'}"
    if match is None or (match["fraction"] or "0").strip("0"):
        return Misread("not_a_number", f"{shown} is no whole number")
    of = match["of"] or match["out"] or match["within"] or str(scale.high)
    whole = match["whole"].lstrip("0") or "0"
    fits = len(whole) <= len(str(scale.high)) and int(match["sign"] + whole) in scale.values
    if not fits or of != str(scale.high):
        return Misread("out_of_range", f"{shown} is not on the scale {scale.low} to {scale.high}")
    return int(whole)
