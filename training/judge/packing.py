"""Which sequences stand in which row: a plan that is a pure function of (seed, epoch), and rows by position.

Items (a judged edit, or all results of one picture and instruction that are ranked against each other) are drawn in a
random order and put first-fit into rows of at most `pack` tokens, a few of which are open at a time. Rows of all epochs
are one endless list; global batch p is rows p·G to (p + 1)·G of it, so resuming needs nothing but p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.hashing import seed_for

OPEN_ROWS = 16
"""Rows that are filled at the same time."""


@dataclass(frozen=True)
class Item:
    """Sequences that stay together. members: their numbers; tokens: of all of them."""

    members: tuple[int, ...]
    tokens: int


def pack(items: Sequence[Item], limit: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """The rows of an epoch, each the numbers of its sequences. Every item is in exactly one row.

    Every item has at most `limit` tokens.
    """
    order = np.random.default_rng(seed_for(seed, "judge", epoch) % 2**63).permutation(len(items))
    done: list[tuple[int, ...]] = []
    rows: list[tuple[list[int], int]] = []
    for number in order.tolist():
        item = items[number]
        place = next((n for n, (_, used) in enumerate(rows) if used + item.tokens <= limit), None)
        if place is None:
            if len(rows) == OPEN_ROWS:
                fullest = max(range(len(rows)), key=lambda n: rows[n][1])
                done.append(tuple(rows.pop(fullest)[0]))
            rows.append((list(item.members), item.tokens))
        else:
            members, used = rows[place]
            members.extend(item.members)
            rows[place] = members, used + item.tokens
    return done + [tuple(members) for members, _ in rows]


class RowOrder:
    """Rows by global batch, with `global_batch` and `batch(position)` as `training.data.order.Order` has them."""

    def __init__(self, items: Sequence[Item], limit: int, global_batch: int, seed: int) -> None:
        self.items, self.limit, self.global_batch, self.seed = tuple(items), limit, global_batch, seed
        self._plans: dict[int, list[tuple[int, ...]]] = {}
        self._starts = [0]

    def batch(self, position: int) -> tuple[int, NDArray[np.int64]]:
        """Bucket 0, and the numbers of the global batch's rows in the endless list."""
        first = position * self.global_batch
        return 0, np.arange(first, first + self.global_batch)

    def row(self, number: int) -> tuple[int, ...]:
        """The sequences of a row of the endless list."""
        epoch = self._epoch_of(number)
        return self._plan(epoch)[number - self._starts[epoch]]

    def epoch(self, position: int) -> float:
        """How many epochs are done before global batch `position`."""
        number = position * self.global_batch
        epoch = self._epoch_of(number)
        return epoch + (number - self._starts[epoch]) / len(self._plan(epoch))

    def fill(self) -> float:
        """Share of the tokens of the first epoch's rows that are used."""
        return sum(item.tokens for item in self.items) / (len(self._plan(0)) * self.limit)

    def _epoch_of(self, number: int) -> int:
        while self._starts[-1] <= number:
            self._starts.append(self._starts[-1] + len(self._plan(len(self._starts) - 1)))
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _plan(self, epoch: int) -> list[tuple[int, ...]]:
        if epoch not in self._plans:
            if len(self._plans) > 2:
                self._plans.pop(min(self._plans))
            self._plans[epoch] = pack(self.items, self.limit, self.seed, epoch)
        return self._plans[epoch]
