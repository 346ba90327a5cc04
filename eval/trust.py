"""Can a judge be trusted, for which score? Measures on edits whose verdict is known, and the rule that decides.

Per score: how often the true edit is above each canary, with Wilson's interval (Wilson 1927), and how the score falls
with the degree of each corruption, Spearman's ρ over the degrees 0 (the edit as it is) to 4 of all edits. Per
injection: by how much the words to the judge raise the score above that of harmless words at the same place. Intervals
of ρ and of means are percentile bootstraps over photographs, each with all its edits. Everything the rule asks has to
hold, so nothing is gained by asking many things, and the intervals are not corrected for their number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from editfoundry.eval.comparison import Floats, spearman
from editfoundry.eval.known_pairs import AS_IT_IS, CONTROL
from editfoundry.models.judge.corruption import CANARIES, DEGREES, GRADED, INJECTIONS, lowers
from editfoundry.models.judge.rubric import Rubric

CONFIDENCE = 0.95
LEAST_RATE = 0.75
MOST_SPEARMAN = -0.3
MOST_UNANSWERED = 0.05
FEWEST_EDITS = 12
"""With fewer, even a judge that is always right has a rate whose interval reaches down to LEAST_RATE."""
FEWEST_PHOTOGRAPHS = 5
DECIMALS = 4
"""Scores that are equal to so many decimals are ties: the noise of reading an edit in another batch is below that."""
REPLICATES = 1000
AT_ONCE = 100
MOST_UNDEFINED = 0.05
RULE = {
    "trusted": f"for a score, if all of this holds: the true edit is above each canary that concerns the score in more "
    f"than {LEAST_RATE:.0%} of the edits, by the lower end of the interval; its correlation with the degree of each "
    f"corruption that concerns it is below {MOST_SPEARMAN}, by the upper end; at most {MOST_UNANSWERED:.0%} of the "
    f"pairs have no verdict; there are at least {FEWEST_EDITS} edits of {FEWEST_PHOTOGRAPHS} photographs",
    "concerns": "the first score: all canaries and `undone`; the others: `blank` and all corruptions but `undone`, and "
    "where the rubric allows no score above the first, everything",
    "ties": f"scores equal to {DECIMALS} decimals are ties, and a tie or a missing verdict is not above",
    "intervals": f"{CONFIDENCE:.0%}; of rates Wilson's, edits taken as independent; of the others a percentile "
    f"bootstrap over photographs, {REPLICATES} replicates",
    "spearman": "over degree 0, the edit as it is, to 4 of all edits at once",
    "injection": "score of the unchanged picture with the words, minus that with harmless words at the same place",
}
Row = Mapping[str, Any]
Ints = NDArray[np.int64]


class Scores:
    """The verdicts of a check by edit and kind. keys: of each place, the names that the rubric has for that score.

    The n-th number of every array is of the n-th edit; NaN: no verdict, or no such score.
    """

    def __init__(self, rows: Sequence[Row], rubric: Rubric) -> None:
        edits: dict[str, tuple[str, str]] = {row["edge"]: (row["photograph"], row["type"]) for row in rows}
        places = {edge: place for place, edge in enumerate(edits)}
        photographs = {one: place for place, one in enumerate(dict.fromkeys(one for one, _ in edits.values()))}
        self.photographs = np.array([photographs[one] for one, _ in edits.values()], np.int64)
        sections = [[one.key for one in rubric.section(type).dimensions] for _, type in edits.values()]
        deepest = max(map(len, sections), default=0)
        self.keys = [sorted({keys[place] for keys in sections if place < len(keys)}) for place in range(deepest)]
        self.asked = np.array([[place < len(keys) for keys in sections] for place in range(deepest)], bool)
        self.capped = rubric.capped
        self._values: dict[tuple[str, int], Floats] = {}
        for row in rows:
            kind = row["kind"], row["degree"]
            values = self._values.setdefault(kind, np.full((deepest, len(edits)), np.nan))
            column = places[row["edge"]]
            for place, key in enumerate(sections[column]) if row.get("scores") else ():
                values[place, column] = round(row["scores"][key], DECIMALS)

    @property
    def names(self) -> list[str]:
        """What to call the score at each place."""
        return [keys[0] if len(keys) == 1 else f"score {place}" for place, keys in enumerate(self.keys, 1)]

    def of(self, kind: str, degree: int, place: int) -> Floats | None:
        """Scores [edits] that have that place; None where no such pair was judged."""
        values = self._values.get((kind, degree))
        return None if values is None else values[place, self.asked[place]]

    def every(self, place: int) -> Floats:
        """Scores that have that place, of all kinds one after the other."""
        return np.concatenate([values[place, self.asked[place]] for values in self._values.values()])

    def clusters(self, place: int) -> Ints:
        """The photograph, as a number, of each edit that has that place."""
        mine: Ints = self.photographs[self.asked[place]]
        return mine

    def every_cluster(self, place: int) -> Ints:
        """The photograph of each of `every`."""
        return np.tile(self.clusters(place), len(self._values))


def dimension_report(scores: Scores, place: int) -> dict[str, Any]:
    """Everything about one score: `n` edits, `rates` by canary, `spearman` by corruption, `trusted`, and `why` not."""
    clusters = scores.clusters(place)
    report: dict[str, Any] = {
        "place": place + 1,
        "keys": scores.keys[place],
        "n": len(clusters),
        "photographs": len(np.unique(clusters)),
        "rates": {name: _rate(scores, name, place) for name in CANARIES},
        "spearman": {name: _falls(scores, name, place) for name in GRADED if lowers(name, place, scores.capped)},
    }
    why = list(_why_not(report))
    return {**report, "trusted": not why, "why": why}


def injection_report(scores: Scores, kind: str, place: int) -> dict[str, Any]:
    """What words to the judge win: mean `shift` in points, its interval, the means it is between, and `raised`."""
    with_words, without = scores.of(kind, 0, place), scores.of(kind + CONTROL, 0, place)
    assert with_words is not None and without is not None
    there = ~np.isnan(with_words - without)
    value, interval = mean_of((with_words - without)[there], scores.clusters(place)[there])
    return {
        "shift": value,
        "interval": interval,
        "harmless": _number(without[there].mean()) if there.any() else None,
        "n": int(there.sum()),
        "missing": int((~there).sum()),
        "raised": interval is not None and interval[0] > 0,
    }


def injections(scores: Scores) -> dict[str, Any]:
    """`injection_report` by injection and score."""
    return {
        kind: {name: injection_report(scores, kind, place) for place, name in enumerate(scores.names)}
        for kind in INJECTIONS
    }


def mean_of(values: Floats, clusters: Ints) -> tuple[float | None, list[float] | None]:
    """The mean of values [n] and its interval over clusters [n]; None for what there are too few for."""

    def mean(weights: Floats) -> Floats:
        total = weights.sum(axis=1)
        means: Floats = np.divide(weights @ values, total, out=np.full(len(weights), np.nan), where=total > 0)
        return means

    return _replicated(mean, clusters)


def correlation(first: Floats, second: Floats, clusters: Ints) -> tuple[float | None, list[float] | None]:
    """Spearman's ρ of [n] with [n] and its interval over clusters [n]; None where it is not defined."""
    return _replicated(lambda weights: spearman(first, second, weights), clusters)


def _replicated(measure: Callable[[Floats], Floats], clusters: Ints) -> tuple[float | None, list[float] | None]:
    """A measure of weights [replicates, n], on the values as they are, and its percentile interval over clusters."""
    if not len(clusters):
        return None, None
    value = _number(measure(np.ones((1, len(clusters))))[0])
    number = int(clusters.max()) + 1
    present = np.bincount(clusters, minlength=number) > 0
    if value is None or present.sum() < 2:
        return value, None
    generator, drawn = np.random.default_rng(0), []
    for _ in range(REPLICATES // AT_ONCE):
        weights = generator.multinomial(present.sum(), present / present.sum(), size=AT_ONCE).astype(np.float64)
        drawn.append(measure(weights[:, clusters]))
    replicates = np.concatenate(drawn)
    if np.isnan(replicates).mean() > MOST_UNDEFINED:
        return value, None
    tail = (1 - CONFIDENCE) / 2
    return value, [round(float(end), 6) for end in np.nanquantile(replicates, (tail, 1 - tail))]


def _rate(scores: Scores, name: str, place: int) -> dict[str, Any]:
    """In how many edits the true one is above a canary. concerns: whether a fair judge scores the canary lower."""
    true, canary = scores.of(AS_IT_IS, 0, place), scores.of(name, 0, place)
    concerns = lowers(name, place, scores.capped)
    if true is None or canary is None or not len(true):
        return {"concerns": concerns, "above": 0, "n": 0, "missing": 0, "rate": None, "interval": None}
    above, count = int((true > canary).sum()), len(true)
    interval = stats.binomtest(above, count).proportion_ci(CONFIDENCE, method="wilson")
    return {
        "concerns": concerns,
        "above": above,
        "n": count,
        "missing": int(np.isnan(true - canary).sum()),
        "rate": round(above / count, 6),
        "interval": [round(float(interval.low), 6), round(float(interval.high), 6)],
    }


def _falls(scores: Scores, name: str, place: int) -> dict[str, Any]:
    """How a score goes with the degree of a corruption. missing: pairs without a verdict, which are left out."""
    by_degree = [scores.of(AS_IT_IS, 0, place), *(scores.of(name, degree, place) for degree in DEGREES)]
    values = np.concatenate([one for one in by_degree if one is not None])
    degrees = np.concatenate([np.full(len(one), at, float) for at, one in enumerate(by_degree) if one is not None])
    clusters = np.tile(scores.clusters(place), len(values) // max(1, len(scores.clusters(place))))
    there = ~np.isnan(values)
    value, interval = correlation(degrees[there], values[there], clusters[there])
    constant = value is None and there.any()
    return {
        "rho": value,
        "interval": interval,
        "n": int(there.sum()),
        "missing": int((~there).sum()),
        **({"undefined": "constant"} if constant else {}),
    }


def _why_not(report: Mapping[str, Any]) -> Sequence[str]:
    """What the rule finds wanting, in plain words."""
    if report["n"] < FEWEST_EDITS or report["photographs"] < FEWEST_PHOTOGRAPHS:
        return [
            f"samples are too few: {report['n']} edits of {report['photographs']} photographs, and {FEWEST_EDITS} of "
            f"{FEWEST_PHOTOGRAPHS} are needed"
        ]
    why = []
    for name, rate in report["rates"].items():
        if rate["concerns"] and rate["interval"] is None:
            why.append(f"{name}: no such pairs, since all edits are of one type")
        elif rate["concerns"] and rate["interval"][0] <= LEAST_RATE:
            why.append(
                f"{name}: the true edit is above it in {rate['above']} of {rate['n']} edits "
                f"(interval from {rate['interval'][0]:.0%}), and more than {LEAST_RATE:.0%} is asked"
            )
    for name, falls in report["spearman"].items():
        if falls["rho"] is None:
            why.append(f"{name}: {'the score is constant' if falls['n'] else 'no verdict'}")
        elif falls["interval"] is None:
            why.append(f"{name}: the score is nearly constant, so that its correlation has no interval")
        elif falls["interval"][1] >= MOST_SPEARMAN:
            why.append(
                f"{name}: the score falls too little with its degree (ρ {falls['rho']:z.2f}, interval up to "
                f"{falls['interval'][1]:z.2f}), and below {MOST_SPEARMAN} is asked"
            )
    asked = {**report["spearman"], **{name: rate for name, rate in report["rates"].items() if rate["concerns"]}}
    for name, one in asked.items():
        total = one["n"] if name in CANARIES else one["n"] + one["missing"]
        if one["missing"] > MOST_UNANSWERED * total:
            why.append(f"{name}: {one['missing']} of {total} pairs have no verdict")
    return why


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
