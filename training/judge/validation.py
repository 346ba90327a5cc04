"""How a judge in training agrees with the given scores, on photographs that it does not train on.

Scores are read as inference reads them: each after those that the judge writes before it, never after the given ones.
So there is one pass over the edits for each dimension.
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
from editfoundry.models.judge.rubric import Dimension
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads
from editfoundry.training.judge.losses import Alphabet
from editfoundry.training.judge.model import Outputs
from editfoundry.training.judge.packing import in_order
from editfoundry.training.judge.records import Choice, Record
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.split import Side

REPLICATES = 500
Forward = Callable[[Row], Outputs]
Found = tuple[str, int, list[float]]
"""What a row says of a record or comparison, by id: which of several things, and its numbers."""
MEANS = -1
"""The thing said that is the regression's means; the others are, by dimension, the expected and the written score."""


class JudgeValidator:
    """Measures a judge on the edits and comparisons that are kept. limit: tokens of a row.

    Where replies are trained word by word, their scores are read as those of the head `expected` are: no reply is
    written, so nothing can be misread.
    """

    def __init__(
        self, builder: RowBuilder, kept: Side, alphabet: Alphabet, accelerator: Accelerator, limit: int
    ) -> None:
        heads = builder.heads
        self.expects, self.regresses = bool(heads.expected or heads.generate), bool(heads.regression or heads.ranking)
        asked = Heads(expected=self.expects, regression=self.regresses, preference=bool(heads.preference))
        self.builder = RowBuilder(builder.rubric, builder.encoder, builder.sequences.order, asked, builder.weights)
        self.alphabet, self.accelerator, self.limit = alphabet, accelerator, limit
        self.records = {record.id: record for record in kept.records}
        self.choices = kept.choices if heads.preference else []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, forward: Forward) -> dict[str, Any]:
        """The row of `metrics.JudgeValidationRow`, without what the loop adds. On all ranks."""
        started = time.perf_counter()
        return {
            "kind": "judge_validation",
            "samples": len(self.records) + len(self.choices),
            "heads": {name: self._report(scores) for name, scores in self._scores(forward).items()},
            "preference": self._preference(forward) if self.choices else None,
            "seconds": time.perf_counter() - started,
        }

    def _scores(self, forward: Forward) -> dict[str, dict[str, list[float]]]:
        """Scores by head and record, in the order of the section's dimensions."""
        expected: dict[str, list[float]] = {id: [] for id in self.records} if self.expects else {}
        regressed: dict[str, list[float]] = {}
        written: dict[str, list[float]] = {id: [] for id in self.records}
        for place in range(DIMENSIONS if self.expects else 1):
            asked = [record for id, record in self.records.items() if len(self._keys(record)) > place]
            if not asked:
                break
            for id, which, numbers in self._all(forward, [self._written(one, written[one.id]) for one in asked]):
                if which == place and self.expects:
                    expected[id].append(numbers[0])
                    written[id].append(numbers[1])
                elif which == MEANS and self.regresses:
                    regressed[id] = numbers[: len(self._keys(self.records[id]))]
        return {name: found for name, found in (("expected", expected), ("regression", regressed)) if found}

    def _written(self, record: Record, scores: Sequence[float]) -> Record:
        """The record with a reply of these scores, and where the next one stands any, without a reason.

        On a scale to 10 it is 1, after which is read whether 0 follows.
        """
        unread = 1.0 if self.alphabet.digits.two_steps else float(self.builder.rubric.scale.low)
        return replace(record, reason="", scores=dict(zip(self._keys(record), [*scores, unread], strict=False)))

    def _said(self, row: Row, outputs: Outputs) -> list[Found]:
        """Scores, and means of the regression."""
        found: list[Found] = []
        if self.expects:
            digits, end = self.alphabet.digits, self.alphabet.end
            expected = digits.mean(digits.distribution(outputs.score, outputs.second)[0]).tolist()
            places = zip(row.score_records.tolist(), row.score_dimensions.tolist(), strict=True)
            for number, (record, place) in enumerate(places):
                id = row.records[record]
                layout = self.builder.layout(self._dimensions(self.records[id]))
                second = outputs.second[number] if digits.two_steps else None
                written = layout.written(place, outputs.score[number], second, end)
                found.append((id, place, [expected[number], float(written)]))
        means = outputs.regression[:, :DIMENSIONS].tolist()
        return found + [(id, MEANS, mean) for id, mean in zip(row.records, means, strict=True)]

    def _preference(self, forward: Forward) -> float:
        """Share of comparisons whose most probable answer is the given one."""
        answers = self._all(forward, [], self.choices)
        return sum(right for _, _, [right] in answers) / len(answers)

    def _answered(self, row: Row, outputs: Outputs) -> list[Found]:
        """Whether each comparison was answered as given."""
        best = outputs.choice[:, list(self.alphabet.choices)].argmax(-1)
        right = (best == row.choice_targets.argmax(-1)).tolist()
        return [(id, 0, [float(one)]) for id, one in zip(row.choices, right, strict=True)]

    def _all(self, forward: Forward, records: Sequence[Record], choices: Sequence[Choice] = ()) -> list[Found]:
        """What the rows of these say, of all ranks; every rank has as many forward passes."""
        plan = self.builder.sequences.plan(records, choices, self.limit)
        rows = in_order(plan.items, self.limit)
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        made: list[Found] = []
        for place in range(rank, -(-len(rows) // ranks) * ranks, ranks):
            members = rows[min(place, len(rows) - 1)]
            row = send_to_device(self.builder.row([plan.parts[member] for member in members]), self.accelerator.device)
            outputs = forward(row)
            made += self._answered(row, outputs) if choices else self._said(row, outputs)
        once = {(id, which): numbers for id, which, numbers in gather_object(made)}
        return [(id, which, numbers) for (id, which), numbers in sorted(once.items())]

    def _report(self, found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Agreement of the scores found with the given ones: see `metrics.HeadReport`."""
        rubric = self.builder.rubric
        overall: list[tuple[float, float, str]] = []
        by_place: dict[int, list[tuple[float, float]]] = {}
        for id, record in self.records.items():
            keys = self._keys(record)
            scores = dict(zip(keys, found[id], strict=True))
            for place, key in enumerate(keys):
                if key in record.scores:
                    by_place.setdefault(place, []).append((scores[key], record.scores[key]))
            if all(key in record.scores for key in keys):
                both = rubric.overall(record.type, scores), rubric.overall(record.type, record.scores)
                overall.append((*both, record.photograph))
        pairs = np.array([pair for place in sorted(by_place) for pair in by_place[place]])
        ours, theirs = pairs.T
        apart = np.abs(np.floor(ours + 0.5) - np.floor(theirs + 0.5))
        low, high = interval(overall)
        return {
            "spearman": spearman(np.array([one[:2] for one in overall])),
            "low": low,
            "high": high,
            "spearman_by_dimension": {str(place): spearman(np.array(by_place[place])) for place in sorted(by_place)},
            "exact": float((apart == 0).mean()),
            "within_one": float((apart <= 1).mean()),
            "error": float(np.abs(ours - theirs).mean()),
        }

    def _dimensions(self, record: Record) -> tuple[Dimension, ...]:
        return self.builder.rubric.section(record.type).dimensions

    def _keys(self, record: Record) -> list[str]:
        return [dimension.key for dimension in self._dimensions(record)]


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
