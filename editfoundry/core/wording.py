"""Where and how large a region is, in words: what instructions say, and whether they say it truly."""

from __future__ import annotations

import re

from editfoundry.core.boxes import Box
from editfoundry.core.grids import Grid

_ROWS = ("upper", "", "lower")
_COLUMNS = ("left", "", "right")
_ALONE = {"upper": "top", "lower": "bottom", "": "center"}

# Upper bound of each phrase, as a share of the image.
_SIZES = (
    (0.02, "a tiny part"),
    (0.07, "a small part"),
    (0.17, "about a tenth"),
    (0.29, "about a quarter"),
    (0.42, "about a third"),
    (0.60, "about half"),
    (0.90, "most"),
)
_LARGEST_SIZE = "nearly all"

# How far, as a share of the width or height, a centre may lie from the middle before "left" or "center" is untrue.
_SIDE_SLACK = 0.05
_CENTER_REACH = 0.25


def position_words(box: Box, grid: Grid) -> str:
    """The third of the image, in each direction, that holds the box's centre.

    One of upper-left, top, upper-right, left, center, right, lower-left, bottom, lower-right.
    """
    x, y = _relative_center(box, grid)
    row, column = _ROWS[_third(y)], _COLUMNS[_third(x)]
    if row and column:
        return f"{row}-{column}"
    return column or _ALONE[row]


def size_words(fraction: float) -> str:
    """Words for a share of the image (0..1), to be followed by "of the image": "a tiny part" ... "nearly all"."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"a share of the image lies between 0 and 1, got {fraction}")
    return next((words for bound, words in _SIZES if fraction < bound), _LARGEST_SIZE)


def _relative_center(box: Box, grid: Grid) -> tuple[float, float]:
    x, y = box.center
    return x / grid.width, y / grid.height


def _third(share: float) -> int:
    return min(max(int(share * 3), 0), 2)


_ROW_WORD = r"upper|top|lower|bottom|center|centre|middle"
_COLUMN_WORD = r"left|right|center|centre|middle"
_PLACE_NOUN = (
    r"(?:[ -]?hand)?[ -](?:side|half|part|third|edge|corner|area|portion|section|quarter|foreground|background)"
)
_LEAD_IN = r"\b(?:at|in|on|to|from|toward|towards|near|along|into|onto)(?: the)?(?: (?:very|far))? "
# "on the left of the lamp" places a thing beside a lamp; only "of the image" places it in the image.
_NOT_RELATIVE = r"(?! (?:of|from) (?!(?:the |this )?(?:image|picture|photo|photograph|frame|scene|view|shot)\b))"
# "on the right hand", "in the upper shelf", "from the left wheel": the word describes a thing, not a place.
_NOT_ADJECTIVE = (
    r"(?!-| (?!(?:of|from|and|or|but|with|by|to|into|in|on|at|near|so|while|is|should|where|that|which)\b)\w)"
)

_POSITION = re.compile(
    rf"\b(?P<row>{_ROW_WORD})[ -](?P<column>{_COLUMN_WORD})\b{_NOT_RELATIVE}"
    rf"|\b(?P<most>left|right|top|upper|bottom|lower)-?most\b"
    rf"|\b(?P<place>{_ROW_WORD}|{_COLUMN_WORD}){_PLACE_NOUN}\b{_NOT_RELATIVE}"
    rf"|{_LEAD_IN}(?P<lone>{_ROW_WORD}|{_COLUMN_WORD})\b{_NOT_ADJECTIVE}{_NOT_RELATIVE}",
    re.IGNORECASE,
)


def position_agrees(text: str, box: Box, grid: Grid) -> bool:
    """Whether every position that `text` states for the image fits the centre of `box`.

    True when the text states none. Understood: compounds ("upper-left", "bottom right", "center left"), superlatives
    ("leftmost"), places ("the left side", "upper half", "top corner") and words after a preposition ("on the right",
    "at the bottom", "in the center of the photo"). Words that relate one thing to another ("left of the lamp", "on
    top of the table") or mean something else ("right now", "a red top", "lower the brightness") are not positions.
    "left" fits any centre left of the middle, so it also fits an upper-left box; "center" reaches a quarter of the
    image to each side.
    """
    x, y = _relative_center(box, grid)
    for match in _POSITION.finditer(text):
        if match["row"]:
            agrees = _row_agrees(match["row"], y) and _column_agrees(match["column"], x)
        else:
            agrees = _word_agrees(match["most"] or match["place"] or match["lone"], x, y)
        if not agrees:
            return False
    return True


def _word_agrees(word: str, x: float, y: float) -> bool:
    if word.lower() in ("left", "right"):
        return _column_agrees(word, x)
    if word.lower() in ("upper", "top", "lower", "bottom"):
        return _row_agrees(word, y)
    return _is_central(x) and _is_central(y)


def _row_agrees(word: str, y: float) -> bool:
    if word.lower() in ("upper", "top"):
        return y <= 0.5 - _SIDE_SLACK
    if word.lower() in ("lower", "bottom"):
        return y >= 0.5 + _SIDE_SLACK
    return _is_central(y)


def _column_agrees(word: str, x: float) -> bool:
    if word.lower() == "left":
        return x <= 0.5 - _SIDE_SLACK
    if word.lower() == "right":
        return x >= 0.5 + _SIDE_SLACK
    return _is_central(x)


def _is_central(share: float) -> bool:
    return abs(share - 0.5) <= _CENTER_REACH
