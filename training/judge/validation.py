"""How a judge in training agrees with the given scores, on photographs that it does not train on.

Scores are read as inference reads them: each after the most probable ones before it, never after the given ones. So
there is one pass over the edits for each dimension.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from numpy.typing import NDArray
from scipy import stats

from editfoundry.core.hashing import seed_for
from editfoundry.models.judge.folder import DIMENSIONS
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.losses import Alphabet
from editfoundry.training.judge.model import Outputs
from editfoundry.training.judge.packing import in_order
from editfoundry.training.judge.records import Record
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.split import Side

REPLICATES = 500
Forward = Callable[[Row], Outputs]


class JudgeValidator:
    """Measures a judge on the edits and comparisons that are kept. limit: tokens of a row."""

    def __init__(
        self, builder: RowBuilder, kept: Side, alphabet: Alphabet, accelerator: Accelerator, limit: int
    ) -> None:
        self.builder, self.heads, self.alphabet, self.accelerator = builder, builder.heads, alphabet, accelerator
        self.records, self.choices, self.limit = kept.records, kept.choices, limit

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, forward: Forward) -> dict[str, Any]:
        """The row of `metrics.JudgeValidationRow`, without what the loop adds. On all ranks."""
        started = time.perf_counter()
        heads: dict[str, Any] = {}
        if self.heads.expected:
            heads["expected"] = self._report(self._expected(forward))
        if self.heads.regression or self.heads.ranking:
            heads["regression"] = self._report(self._regressed(forward))
        return {
            "kind": "judge_validation",
            "samples": len(self.records) + len(self.choices),
            "heads": heads,
            "preference": self._preference(forward) if self.heads.preference and self.choices else None,
            "seconds": time.perf_counter() - started,
        }

    def _expected(self, forward: Forward) -> dict[str, list[float]]:
        """Expected scores by record, in the section's order."""
        records, scale = self.records, self.builder.rubric.scale
        found: dict[str, list[float]] = {record.id: [] for record in records}
        chosen: dict[str, dict[str, float]] = {record.id: {} for record in records}
        for place in range(DIMENSIONS):
            asked = [record for record in records if len(self._keys(record)) > place]
            if not asked:
                break
            blank = [replace(one, reason="", scores=self._so_far(one, chosen[one.id])) for one in asked]
            for name, which, shares in self._gathered(forward, blank, self._distributions):
                if which == place:
                    found[name].append(sum(share * value for share, value in zip(shares, scale.values, strict=True)))
                    key = self._keys(next(one for one in asked if one.id == name))[place]
                    chosen[name][key] = float(scale.values[int(np.argmax(shares))])
        return found

    def _so_far(self, record: Record, chosen: Mapping[str, float]) -> dict[str, float]:
        """A reply's scores: those chosen before, the lowest where none was yet."""
        return {key: chosen.get(key, float(self.builder.rubric.scale.low)) for key in self._keys(record)}

    def _distributions(self, row: Row, outputs: Outputs) -> list[tuple[str, int, list[float]]]:
        tokens = self.alphabet.digits
        after_one = None
        if tokens.two_steps:
            after_one = outputs.second
        shares, _ = tokens.distribution(outputs.score, after_one)
        numbers, dimensions = row.score_records.tolist(), row.score_dimensions.tolist()
        return [(row.records[n], d, one) for n, d, one in zip(numbers, dimensions, shares.tolist(), strict=True)]

    def _regressed(self, forward: Forward) -> dict[str, list[float]]:
        def read(row: Row, outputs: Outputs) -> list[tuple[str, int, list[float]]]:
            means = outputs.regression[:, :DIMENSIONS].tolist()
            return [(name, 0, mean) for name, mean in zip(row.records, means, strict=True)]

        records = {record.id: record for record in self.records}
        blank = [replace(one, reason="") for one in self.records]
        return {name: mean[: len(self._keys(records[name]))] for name, _, mean in self._gathered(forward, blank, read)}

    def _preference(self, forward: Forward) -> float:
        """Share of comparisons whose most probable answer is the given one."""

        def read(row: Row, outputs: Outputs) -> list[tuple[str, int, list[float]]]:
            best = outputs.choice[:, list(self.alphabet.choices)].argmax(-1)
            right = (best == row.choice_targets.argmax(-1)).tolist()
            return [(name, 0, [float(one)]) for name, one in zip(row.choices, right, strict=True)]

        answers = self._gathered(forward, [], read)
        return sum(one for _, _, [one] in answers) / len(answers)

    def _gathered(
        self,
        forward: Forward,
        records: Sequence[Record],
        read: Callable[[Row, Outputs], list[tuple[str, int, list[float]]]],
    ) -> list[tuple[str, int, list[float]]]:
        """What `read` makes of all rows, of all ranks; every rank has as many forward passes."""
        choices = () if records else self.choices
        plan = self.builder.sequences.plan(records, choices, self.limit)
        rows = in_order(plan.items, self.limit)
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        mine = [rows[min(place, len(rows) - 1)] for place in range(rank, -(-len(rows) // ranks) * ranks, ranks)]
        made: list[tuple[str, int, list[float]]] = []
        for members in mine:
            row = send_to_device(self.builder.row([plan.parts[member] for member in members]), self.accelerator.device)
            made += read(row, forward(row))
        unique = {(name, which): shares for name, which, shares in gather_object(made)}
        return [(name, which, shares) for (name, which), shares in sorted(unique.items())]

    def _report(self, found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Agreement of the scores found with the given ones."""
        rubric, pairs, overall = self.builder.rubric, [], []
        by_place: dict[str, list[tuple[float, float]]] = {}
        for record in self.records:
            keys = self._keys(record)
            mine = dict(zip(keys, found[record.id], strict=True))
            given = {key: record.scores[key] for key in keys if key in record.scores}
            pairs += [(mine[key], given[key]) for key in given]
            for place, key in enumerate(keys):
                if key in given:
                    by_place.setdefault(str(place), []).append((mine[key], given[key]))
            if len(given) == len(keys):
                scores = rubric.overall(record.type, mine), rubric.overall(record.type, given)
                overall.append((*scores, record.photograph))
        ours, theirs = np.array(pairs).T
        apart = np.abs(np.floor(ours + 0.5) - np.floor(theirs + 0.5))
        low, high = interval(overall)
        return {
            "spearman": spearman(np.array([one[:2] for one in overall])),
            "low": low,
            "high": high,
            "spearman_by_dimension": {place: spearman(np.array(values)) for place, values in by_place.items()},
            "exact": float((apart == 0).mean()),
            "within_one": float((apart <= 1).mean()),
            "error": float(np.abs(ours - theirs).mean()),
        }

    def _keys(self, record: Record) -> list[str]:
        return [dimension.key for dimension in self.builder.rubric.section(record.type).dimensions]


def spearman(pairs: NDArray[np.float64]) -> float | None:
    """Rank correlation of pairs [N, 2]; None where one side is constant."""
    if len(pairs) < 2 or any(len(np.unique(side)) < 2 for side in pairs.T):
        return None
    return float(stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def interval(overall: Sequence[tuple[float, float, str]]) -> tuple[float | None, float | None]:
    """The 95% percentile bootstrap interval of Spearman's correlation, photographs drawn with all of their edits."""
    photographs: dict[str, list[int]] = {}
    for number, (_, _, photograph) in enumerate(overall):
        photographs.setdefault(photograph, []).append(number)
    groups, pairs = list(photographs.values()), np.array([one[:2] for one in overall])
    generator = np.random.default_rng(seed_for("judge validation") % 2**63)
    drawn = []
    for _ in range(REPLICATES if len(groups) > 1 else 0):
        chosen = generator.integers(0, len(groups), len(groups))
        value = spearman(pairs[np.concatenate([groups[one] for one in chosen])])
        if value is not None:
            drawn.append(value)
    if len(drawn) < REPLICATES / 2:
        return None, None
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)
