"""Weights of scores against how often they are given: judges see few bad edits, and should still know them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.records import Record

MOST_WEIGHT = 10.0


@dataclass(frozen=True)
class Weighting:
    """Weight of each score by (dimension's place, nearest whole score), on average 1 over the records."""

    table: Mapping[tuple[int, int], float]

    def of(self, place: int, score: float) -> float:
        """Weight of a score; 1 for one that was not among the records."""
        return self.table.get((place, nearest(score)), 1.0)


def weighting(records: Sequence[Record], rubric: Rubric, balance: Literal["none", "sqrt", "inverse"]) -> Weighting:
    """How scores are weighed; see `JudgeData.balance`. The mean is 1 unless the limit of 10 takes from it."""
    counts: Counter[tuple[int, int]] = Counter()
    for record in records:
        for place, dimension in enumerate(rubric.section(record.type).dimensions):
            if dimension.key in record.scores:
                counts[place, nearest(record.scores[dimension.key])] += 1
    power = {"none": 0.0, "sqrt": 0.5, "inverse": 1.0}[balance]
    raw = {key: count**-power for key, count in counts.items()}
    mean = sum(raw[key] * count for key, count in counts.items()) / max(1, sum(counts.values()))
    return Weighting({key: min(MOST_WEIGHT, value / mean) for key, value in raw.items()})


def nearest(score: float) -> int:
    """The nearest whole score, halves up: what a reply writes for a fractional one."""
    return int(score + 0.5)
