"""What readers fill, and how they say that a record is wrong."""

from collections import Counter
from dataclasses import dataclass, field

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.text import one_line
from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.records import Choice, Record

MOST_LISTED = 1000


class BadRecord(EditFoundryError):
    """A record that cannot be used; names the file, the place in it, and what is wrong."""


@dataclass
class Judged:
    """What the sources hold. left_out: how many records had no usable scores, by reason. listed: where, and the details

    of the first thousand.
    """

    records: list[Record] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    listed: list[str] = field(default_factory=list)

    def leave_out(self, where: str, reason: str, detail: str) -> None:
        """Count and list a record that has no usable scores."""
        self.left_out[reason] += 1
        if len(self.listed) < MOST_LISTED:
            self.listed.append(f"{where}: {reason}: {one_line(detail, 160)}")


def score_of(value: object, rubric: Rubric, where: str) -> float:
    """A score on the rubric's scale. Raises BadRecord for what is none."""
    low, high = rubric.scale.low, rubric.scale.high
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadRecord(f"{where}: {one_line(repr(value)[:200], 40)} is no number from {low} to {high}")
    return float(value)
