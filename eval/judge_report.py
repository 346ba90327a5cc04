"""The page of a judge's scores: every pair with its pictures, scores and the judge's words, the worst first.

Deterministic: the same verdicts and pictures give the same page. No dates, no machine.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from editfoundry.core import charts
from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.pages import render
from editfoundry.core.pages.thumbnails import Thumbnails
from editfoundry.core.text import one_line
from editfoundry.data_engine.ledger import replace_file
from editfoundry.eval.judge_cards import Card, bands, card, words
from editfoundry.eval.judging import SCORE
from editfoundry.eval.pairs import Listed, read_pairs
from editfoundry.eval.verdicts import Row, read_meta, read_verdicts, settings
from editfoundry.models.judge.rubric import Scale

PAGE = ".html"
PICTURE = 320
MOST_SCORED, MOST_UNSCORED = 1000, 200
BINS = 16
NOTABLE = 0.5
"""Probability given to something else than a score, on average, from which the page says so."""
MINIATURE = (
    "A random-weight miniature: the real classes in the real layout, small enough for a laptop. Its scores show that "
    "the parts work, and say nothing about these edits."
)
UNTUNED = (
    "An untuned base: a model as it was released, never trained to score edits. Before using its scores, measure how "
    "far to believe them, with the commands judge check and judge agreement."
)
UNPINNED = (
    "The prompts are not the released revision that this version knows, so the scores compare to no published ones."
)
UNFINISHED = "The work is not finished: this page shows what is judged so far. Repeat the command to go on."


@dataclass
class Tally:
    """What all rows come to, in one pass; it holds the rows of the cards alone.

    scored: the lowest; unscored: the first. by_type: sums by type: pairs, judged, overall, and each dimension.
    """

    low: int
    high: int
    attempted: int = 0
    above_first: int = 0
    uncovered: float = 0.0
    read_from_probabilities: int = 0
    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    unanswered: Counter[str] = field(default_factory=Counter)
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    scored: list[tuple[float, int, Row]] = field(default_factory=list)
    unscored: list[tuple[int, Row]] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Count a row of the file."""
        number, self.attempted = self.attempted, self.attempted + 1
        if "error" in row:
            self.unanswered[row["error"]["reason"]] += 1
            if row["type"]:
                self._sums(row)
            if len(self.unscored) < MOST_UNSCORED:
                self.unscored.append((number, row))
            return
        sums = self._sums(row)
        for name, value in {"judged": 1, "overall": row["overall"], **prefixed(row["scores"])}.items():
            sums[name] = sums.get(name, 0) + value
        self.above_first += bool(row["above_first"])
        if "uncovered" in row:
            self.uncovered += row["uncovered"]
            self.read_from_probabilities += 1
        share = (row["overall"] - self.low) / (self.high - self.low)
        self.bins[min(BINS - 1, max(0, int(share * BINS)))] += 1
        keep = heapq.heappush if len(self.scored) < MOST_SCORED else heapq.heappushpop
        keep(self.scored, (-row["overall"], -number, row))

    def _sums(self, row: Row) -> dict[str, float]:
        sums = self.by_type.setdefault(row["type"], {"pairs": 0, "judged": 0, "overall": 0.0})
        sums["pairs"] += 1
        return sums

    @property
    def judged(self) -> int:
        """Pairs with scores."""
        return self.attempted - self.unanswered.total()

    def chosen(self) -> list[tuple[int, Row]]:
        """(place, row) of the pairs to show: those without scores, then the lowest."""
        lowest = sorted((-overall, -number, row) for overall, number, row in self.scored)
        return self.unscored + [(number, row) for _, number, row in lowest]


def prefixed(scores: Mapping[str, float]) -> dict[str, float]:
    """Dimensions by a name that no other sum has."""
    return {f"score {key}": score for key, score in scores.items()}


def write_report(verdicts: Path, pairs: Path | None = None) -> Path:
    """Write a page beside a file of scores and return its path. pairs: the pairs' file, where it is elsewhere now.

    Raises UsageError for a file that holds no scores or whose pairs are gone, EditFoundryError for a damaged one.
    """
    meta = read_meta(verdicts)
    if meta["kind"] != SCORE.kind:
        raise UsageError(f"{verdicts}: holds preferences; the page shows scores, which `judge score` makes")
    pairs = pairs or Path(meta["pairs"]["file"])
    if not pairs.is_file():
        raise UsageError(f"{pairs}: the pairs' file is gone; name it with --pairs")
    low, high = meta["scale"]
    tally = Tally(low, high)
    try:
        for row in read_verdicts(verdicts):
            tally.add(row)
        page = render("editfoundry.eval:judge_report.html.jinja", **_context(verdicts.name, meta, tally, pairs))
    except (KeyError, TypeError, AttributeError) as error:
        raise EditFoundryError(f"{verdicts}: damaged ({error}); judge again with another -o") from error
    target = verdicts.with_name(verdicts.name + PAGE)
    replace_file(target, page.encode())
    return target


def _context(name: str, meta: Mapping[str, Any], tally: Tally, pairs: Path) -> dict[str, Any]:
    """Everything the template shows."""
    thumbnails, chosen = Thumbnails(PICTURE), tally.chosen()
    wanted = {row["id"] for _, row in chosen}
    listed = {
        entry.id: entry
        for entry in read_pairs(pairs, SCORE.slots)
        if isinstance(entry, Listed) and entry.id in wanted
    }  # fmt: skip
    scale = Scale(tally.low, tally.high)
    cards = [card(number, row, listed.get(row["id"]), scale, thumbnails) for number, row in chosen]
    edges = [tally.low + (tally.high - tally.low) * number / BINS for number in range(BINS + 1)]
    return {
        "title": f"{one_line(name, 80)} · judge report",
        "name": one_line(name, 80),
        "lede": _lede(meta, tally),
        "made": _made(meta["judge"]),
        "notices": list(_notices(meta, tally)),
        "headline": list(_headline(tally)),
        "histogram": charts.histogram(edges, tally.bins, label="Pairs by overall score", title="overall score"),
        "types": list(_types(tally)),
        "unanswered": tally.unanswered.most_common(),
        "cards": cards,
        "cards_note": _cards_note(tally),
        "filters": _filters(cards, tally),
        "unsure": any(card.unsure for card in cards),
        "facts": [*_facts(meta)],
        "scale": (tally.low, tally.high),
        "images": thumbnails.images,
    }


def _lede(meta: Mapping[str, Any], tally: Tally) -> str:
    lines = meta["pairs"]["lines"]
    said = f"{tally.attempted:,} pairs" if tally.attempted == lines else f"{tally.attempted:,} of {lines:,} pairs"
    return f"{said} of {one_line(Path(meta['pairs']['file']).name, 80)}: {tally.judged:,} with scores."


def _made(judge: Mapping[str, Any]) -> str:
    """Which judge, rubric, order and head made the numbers."""
    rubric = judge["rubric"]
    steps = f" ({judge['steps']})" if judge.get("steps") else ""
    return (
        f"Judge {judge['model']}, rubric {rubric['name']} version {rubric['version']}, head {judge['head']}{steps}, "
        f"order {judge['order']}; reason: {judge['reason']}."
    )


def _notices(meta: Mapping[str, Any], tally: Tally) -> Iterator[str]:
    judge = meta["judge"]
    if judge.get("miniature"):
        yield MINIATURE
    elif judge.get("trained") is False:
        yield UNTUNED
    if judge["rubric"].get("pinned") is False:
        yield UNPINNED
    if not meta["finished"]:
        yield UNFINISHED
    elsewhere = tally.uncovered / max(tally.read_from_probabilities, 1)
    if elsewhere >= NOTABLE:
        yield (
            f"On average {elsewhere:.1%} of the probability where a score should stand went to something else than a "
            "score; the scores are read from the rest."
        )


def _headline(tally: Tally) -> Iterator[tuple[str, str, str]]:
    sums = tally.by_type.values()
    if tally.judged:
        mean = sum(one["overall"] for one in sums) / tally.judged
        yield "Mean overall", f"{mean:.2f}", f"on a scale from {tally.low} to {tally.high}"
        by_type = [one["overall"] / one["judged"] for one in sums if one["judged"]]
        types = f"of {len(by_type)} type{'s' * (len(by_type) != 1)}"
        yield "Mean of the types' means", f"{sum(by_type) / len(by_type):.2f}", types
    yield "With scores", f"{tally.judged:,}", f"of {tally.attempted:,}"
    yield "Without scores", f"{tally.unanswered.total():,}", "counted apart, never as a score"
    yield (
        "Above the first score",
        f"{tally.above_first:,}",
        "pairs with a later score above the first, where that is barred",
    )


def _types(tally: Tally) -> Iterator[tuple[str, int, int, str, str]]:
    """(type, pairs, judged, mean overall, means by dimension)."""
    for name, sums in sorted(tally.by_type.items()):
        judged = int(sums["judged"])
        keys = [key for key in sums if key.startswith("score ")]
        means = ", ".join(f"{words(key[6:])} {sums[key] / judged:.2f}" for key in keys)
        overall = f"{sums['overall'] / judged:.2f}" if judged else "none"
        yield one_line(words(name), 60), int(sums["pairs"]), judged, overall, means


def _cards_note(tally: Tally) -> str:
    parts = []
    if tally.judged > len(tally.scored):
        parts.append(f"Of the pairs with scores the {len(tally.scored):,} lowest are shown.")
    if tally.unanswered.total() > len(tally.unscored):
        parts.append(f"Of those without, the first {len(tally.unscored):,}.")
    return " ".join(parts)


def _filters(cards: Sequence[Card], tally: Tally) -> dict[str, list[tuple[str, str]]]:
    """(value, words) of the choices by filter."""
    held_bands = {card.band for card in cards}
    verdicts = {"none": "without scores", "scored": "with scores", "above": "above the first score"}
    held = {card.verdict for card in cards}
    return {
        "type": [(name, one_line(words(name), 60)) for name in sorted({card.type for card in cards if card.type})],
        "verdict": [(key, said) for key, said in verdicts.items() if key in held],
        "band": [(band, band) for band in bands(Scale(tally.low, tally.high)) if band in held_bands],
    }


def _facts(meta: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in settings({"judge": meta["judge"], "pairs": meta["pairs"]}):
        if value is not None:
            yield key, one_line(str(value), 200)
    if meta.get("served"):
        yield "answered as", one_line(", ".join(meta["served"]), 200)
