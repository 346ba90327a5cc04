"""A judged pair as the page of a judge's scores shows it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from editfoundry.core.errors import ImageError
from editfoundry.core.pages.thumbnails import Thumbnails
from editfoundry.core.text import one_line
from editfoundry.eval.pairs import Listed, UnusablePicture, content, read_picture
from editfoundry.eval.verdicts import Row
from editfoundry.models.judge.rubric import Scale

BANDS = 4
LONGEST_REPLY = 2000


@dataclass(frozen=True)
class Line:
    """A dimension of a card. at: its place on the scale, 0 to 1. shares: (value, probability), lowest first."""

    name: str
    score: float
    at: float
    shares: tuple[tuple[int, float], ...]
    deviation: float | None


@dataclass(frozen=True)
class Shown:
    """The pictures of a card: keys of the page's store, their size, and what is to be said of them."""

    before: str
    after: str
    width: int
    height: int
    note: str


@dataclass(frozen=True)
class Card:
    """A pair on the page. order: its place in the file. unsure: the largest spread of a dimension's score."""

    order: int
    id: str
    type: str
    instruction: str
    overall: float | None
    band: str
    verdict: str
    lines: tuple[Line, ...]
    unsure: float
    above_first: tuple[str, ...]
    uncovered: float
    reason: str
    reply: str
    error: Mapping[str, str]
    pictures: Shown | None
    missing: str


def card(number: int, row: Row, listed: Listed | None, scale: Scale, thumbnails: Thumbnails) -> Card:
    """The card of a row. number: its place in the file. listed: its pair, where the pairs' file still has it."""
    error = row.get("error", {})
    if "line" in row and (listed is None or listed.line != row["line"]):
        listed = None
    pictures, missing = _pictures(row, listed, thumbnails)
    overall = row.get("overall")
    lines = tuple(_lines(row, scale))
    return Card(
        order=number,
        id=one_line(row["id"] or f"line {row['line']}", 200),
        type=row["type"] or "",
        instruction=listed.instruction if listed else "",
        overall=overall,
        band="" if overall is None else bands(scale)[min(BANDS - 1, int(_share(overall, scale) * BANDS))],
        verdict="none" if overall is None else "above" if row["above_first"] else "scored",
        lines=lines,
        unsure=max((_spread(line) for line in lines), default=0.0),
        above_first=tuple(row.get("above_first", ())),
        uncovered=row.get("uncovered", 0.0),
        reason=row.get("reason", ""),
        reply=row.get("reply", "")[:LONGEST_REPLY],
        error=error,
        pictures=pictures,
        missing=missing,
    )


def _lines(row: Row, scale: Scale) -> Iterator[Line]:
    for key, score in row.get("scores", {}).items():
        shares = row.get("probabilities", {}).get(key, ())
        yield Line(
            name=words(key),
            score=score,
            at=_share(score, scale),
            shares=tuple(zip(scale.values, shares, strict=True)) if shares else (),
            deviation=row.get("deviations", {}).get(key),
        )


def _spread(line: Line) -> float:
    """Standard deviation of a score, as the head says it."""
    if line.deviation is not None:
        return line.deviation
    return math.sqrt(sum(share * (value - line.score) ** 2 for value, share in line.shares))


def _pictures(row: Row, listed: Listed | None, thumbnails: Thumbnails) -> tuple[Shown | None, str]:
    """The pictures that were judged, or why they cannot be shown."""
    if listed is None or "pair" not in row:
        return None, "No pictures to show"
    try:
        files = {slot: read_picture(path) for slot, path in listed.pictures.items()}
        if content(listed, {slot: digest for slot, (digest, _) in files.items()}) != row["pair"]:
            return None, "The pair has changed since it was judged"
        before, after = (thumbnails.picture(digest, partial(bytes, data)) for digest, data in files.values())
    except (UnusablePicture, ImageError) as error:
        return None, one_line(str(error), 200)
    size, other = thumbnails.sizes[before], thumbnails.sizes[after]
    note = "" if abs(size[0] * other[1] - size[1] * other[0]) <= max(*size, *other) else "of another shape than before"
    return Shown(before, after, *size, note), ""


def bands(scale: Scale) -> list[str]:
    """Parts of the scale by which pairs are told apart."""
    step = (scale.high - scale.low) / BANDS
    return [f"{scale.low + step * number:g} to {scale.low + step * (number + 1):g}" for number in range(BANDS)]


def words(name: str) -> str:
    """A key as people write it."""
    return name.replace("_", " ")


def _share(score: float, scale: Scale) -> float:
    """A score's place on the scale, 0 to 1."""
    return min(1.0, max(0.0, (score - scale.low) / (scale.high - scale.low)))
