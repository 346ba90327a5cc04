"""Judges whose behaviour is known, to test the test of judges on, and a dataset of edits that they can measure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from training_data import COLOURS, edits, write_dataset

from editfoundry.core.hashing import rng_for
from editfoundry.models.judge.corruption import DRAWN_TEXT, WRITTEN_TEXT, drawn
from editfoundry.models.judge.rubric import load_rubric
from editfoundry.models.judge.types import Case, Comparison, Preference, Scored
from editfoundry.models.protocols import Unanswered

Scorer = Callable[[Case], Sequence[float] | Unanswered]


class KnownJudge:
    """An `EditJudge` that scores by a function of the case: its scores in the rubric's order, or no verdict.

    calls: ids of each call, in the order asked.
    """

    def __init__(self, scorer: Scorer, rubric: str = "edit", **facts: Any) -> None:
        self.rubric, self._scorer, self._facts = load_rubric(rubric), scorer, facts
        self.served = frozenset({"known-1"})
        self.calls: list[list[str]] = []

    def provenance(self) -> dict[str, Any]:
        rubric = self.rubric
        about = {"name": rubric.name, "version": rubric.version, "digest": rubric.digest}
        return {"kind": "known", "model": "known", "rubric": about, **self._facts}

    def load(self) -> None:
        pass

    def score(self, cases: Sequence[Case]) -> list[Scored | Unanswered]:
        self.calls.append([case.id for case in cases])
        return [self._one(case) for case in cases]

    def _one(self, case: Case) -> Scored | Unanswered:
        said = self._scorer(case)
        if isinstance(said, Unanswered):
            return said
        keys = [one.key for one in self.rubric.section(case.type).dimensions]
        return Scored(dict(zip(keys, said, strict=False)))

    def prefer(self, comparisons: Sequence[Comparison]) -> list[Preference | Unanswered]:
        raise NotImplementedError


def fair(case: Case) -> list[float]:
    """Is there a square of the colour asked for that was not there, and is all else as it was? Of drawn scenes."""
    before, after = (picture.astype(np.float64) for picture in (case.source, case.result))
    colour = next((value for name, value in COLOURS.items() if f" {name} " in case.instruction), (0, 255, 255))
    near = (1 - np.linalg.norm(after - colour, axis=2) / 100).clip(0)
    fresh = np.abs(after - before).max(axis=2) > 8
    wanted = max(1, min(after.shape[:2]) // 3) ** 2
    following = 1 + 4 * min(1.0, float((near * fresh).sum()) / wanted)
    elsewhere = near < 0.9
    changed = np.abs(after - before).mean(axis=2)[elsewhere].mean() if elsewhere.any() else 0.0
    natural = 1 + 4 * max(0.0, 1 - float(changed) / 40)
    return [following, natural, natural]


def guessing(case: Case) -> list[float]:
    """Any scores, the same ones whenever it is asked."""
    return list(rng_for("guess", case.id).uniform(1, 5, 3))


def constant(case: Case) -> list[float]:
    """Always the same."""
    del case
    return [3.0, 3.0, 3.0]


def obedient(case: Case) -> list[float]:
    """Fair, but gives two points more to whom asks for them in words it knows."""
    told = any(case.instruction.endswith(words) for words in WRITTEN_TEXT)
    shown = any(np.array_equal(case.result, drawn(case.source, words)) for words in DRAWN_TEXT)
    following, *others = fair(case)
    return [min(5.0, following + 2 * (told or shown)), *others]


def known_dataset(folder: Path, count: int = 16, *, split: str = "val", **common: Any) -> Path:
    """A dataset of drawn edits, each of its own photograph, of two types whose instructions name different colours."""
    drawn = edits(count, split=split, **common)
    return write_dataset(folder, [replace(one, type=("add", "replace")[place % 2]) for place, one in enumerate(drawn)])
