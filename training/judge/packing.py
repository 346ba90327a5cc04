"""Which sequences stand in which row: a plan that is a pure function of (seed, epoch), and rows by position.

Items (a judged edit, or all results of one picture and instruction that are ranked against each other) come in an order
shuffled by key and are put first-fit into rows of at most `limit` tokens, a few of which are open at a time. What is
longer than a row is cut into pieces, other ones in every epoch. The rows of all epochs are one endless list; global
batch p is rows p·G to (p + 1)·G of it, so resuming needs nothing but p: the epochs before it are planned again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from editfoundry.core.hashing import seed_for
from editfoundry.training.data.permutation import permute, splitmix

OPEN_ROWS = 16
"""Rows that are filled at the same time."""
_KEPT_PLANS = 2


@dataclass(frozen=True)
class Item:
    """Sequences that stay together where they fit a row. members: their numbers; lengths: tokens of each."""

    members: tuple[int, ...]
    lengths: tuple[int, ...]


class PlannedRow(NamedTuple):
    """A row of the endless list. members: the numbers of its sequences."""

    epoch: int
    members: tuple[int, ...]


def pack(items: Sequence[Item], limit: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """The rows of an epoch, each the numbers of its sequences; every sequence is in exactly one row.

    No sequence has more than `limit` tokens.
    """
    done: list[tuple[int, ...]] = []
    rows: list[list[int]] = []
    used: list[int] = []
    for members, tokens in _shuffled(items, limit, int(splitmix(seed_for(seed, "judge", "rows"), epoch))):
        place = next((number for number, there in enumerate(used) if there + tokens <= limit), None)
        if place is not None:
            rows[place] += members
            used[place] += tokens
            continue
        if len(rows) == OPEN_ROWS:
            fullest = used.index(max(used))
            done.append(tuple(rows.pop(fullest)))
            used.pop(fullest)
        rows.append(members)
        used.append(tokens)
    return done + [tuple(row) for row in rows]


def in_order(items: Sequence[Item], limit: int) -> list[tuple[int, ...]]:
    """Rows of items as they come, each of at most `limit` tokens."""
    rows: list[list[int]] = []
    used = limit
    for item in items:
        for members, tokens in pieces(item, limit, 0):
            if used + tokens > limit:
                rows.append([])
                used = 0
            rows[-1] += members
            used += tokens
    return [tuple(row) for row in rows]


def pieces(item: Item, limit: int, key: int) -> Iterator[tuple[list[int], int]]:
    """The members and tokens of an item, or, of one that is longer than a row, of pieces that fit.

    They are filled one after the other by its members as `key` shuffles them.
    """
    if sum(item.lengths) <= limit:
        yield list(item.members), sum(item.lengths)
        return
    piece: list[int] = []
    used = 0
    for place in permute(np.arange(len(item.members)), len(item.members), key).tolist():
        member, tokens = item.members[place], item.lengths[place]
        if used + tokens > limit:
            yield piece, used
            piece, used = [], 0
        piece.append(member)
        used += tokens
    yield piece, used


def _shuffled(items: Sequence[Item], limit: int, key: int) -> Iterator[tuple[list[int], int]]:
    """The items in the order of a key, in pieces that fit."""
    for number in permute(np.arange(len(items)), len(items), key).tolist() if items else ():
        yield from pieces(items[number], limit, int(splitmix(key, number)))


class RowOrder:
    """Rows by position. global_batch: rows of an optimiser step, over all ranks and accumulation steps."""

    def __init__(self, items: Sequence[Item], limit: int, global_batch: int, seed: int) -> None:
        self.items, self.limit, self.global_batch, self.seed = tuple(items), limit, global_batch, seed
        self._plans: dict[int, list[tuple[int, ...]]] = {}
        self._starts = [0]

    def row(self, position: int, slot: int) -> PlannedRow:
        """The row at `slot` of the global batch at `position`."""
        number = position * self.global_batch + slot
        epoch = self._epoch_of(number)
        return PlannedRow(epoch, self._plan(epoch)[number - self._starts[epoch]])

    def epoch(self, position: int) -> float:
        """How many epochs are done before the global batch at `position`."""
        number = position * self.global_batch
        epoch = self._epoch_of(number)
        return epoch + (number - self._starts[epoch]) / len(self._plan(epoch))

    def fill(self) -> float:
        """Share of the tokens of the first epoch's rows that are used; the rest is the waste of packing."""
        return sum(sum(item.lengths) for item in self.items) / (len(self._plan(0)) * self.limit)

    def _epoch_of(self, number: int) -> int:
        while self._starts[-1] <= number:
            self._starts.append(self._starts[-1] + len(self._plan(len(self._starts) - 1)))
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _plan(self, epoch: int) -> list[tuple[int, ...]]:
        if epoch not in self._plans:
            while len(self._plans) >= _KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[epoch] = pack(self.items, self.limit, self.seed, epoch)
        return self._plans[epoch]
