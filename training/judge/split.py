"""What is trained on, and what is kept for validation: all edits of a photograph are on one side."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import seed_for
from editfoundry.training.judge.records import Choice, Record

Shown = TypeVar("Shown", Record, Choice)


class Side(NamedTuple):
    """Edits and comparisons of one side."""

    records: list[Record]
    choices: list[Choice]


def split(records: Sequence[Record], choices: Sequence[Choice], holdout: float) -> tuple[Side, Side]:
    """The side to train on and the side kept: photographs of which anything is held out, and a share of the others

    by hash. Raises UsageError when a side is empty.
    """
    everything: list[Record | Choice] = [*records, *choices]
    out = {one.photograph for one in everything if one.held_out}
    kept = {one.photograph for one in everything if one.photograph in out or _drawn(one.photograph, holdout)}
    train = Side(
        [one for one in records if one.photograph not in kept], [one for one in choices if one.photograph not in kept]
    )
    held = Side([one for one in records if one.photograph in kept], [one for one in choices if one.photograph in kept])
    if not any(train) or not any(held):
        raise UsageError(
            f"data.holdout {holdout}: leaves one side without an edit; the sources have too few photographs for it"
        )
    return train, held


def sample(side: Side, most: int) -> Side:
    """At most so many edits and so many comparisons, drawn by hash, in the order they came."""
    return Side(_sampled(side.records, most), _sampled(side.choices, most))


def _drawn(photograph: str, holdout: float) -> bool:
    return seed_for("holdout", photograph) < holdout * 2**63


def _sampled(ones: Sequence[Shown], most: int) -> list[Shown]:
    chosen = sorted(range(len(ones)), key=lambda number: seed_for("validation", ones[number].id))[:most]
    return [ones[number] for number in sorted(chosen)]
