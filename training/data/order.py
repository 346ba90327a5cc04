"""The order of the data as a pure function of a seed and one global position.

The unit is a global batch: `global_batch` samples of one bucket. How many ranks, workers and accumulation steps share
it does not change it, and any position opens as fast as the first.

Mixture: a group (bucket, dataset, edit type) of n samples has round(weight * n) items per epoch, at least one where
its weight is not 0. From epoch to epoch its items run through its samples in one shuffled pass after the other: at the
end of an epoch each of them has been seen as often as any other, give or take once. Each bucket is an endless stream
of its epochs' shuffled items, cut into batches: what is left of an epoch starts the next one's first batch, and nothing
is dropped.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import seed_for
from editfoundry.training.config import DataConfig
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.groups import Group, grouped
from editfoundry.training.data.index import NoSamples, ShardIndex
from editfoundry.training.data.permutation import permute, splitmix

_MOST_ITEMS = 2**48


class Share(NamedTuple):
    """A group, and how many items it has in an epoch."""

    group: Group
    items: int


class Order:
    """What is seen when. shares: the groups that are seen at all. items: samples per epoch, repeats counted.

    folder: where the sorted rows are kept, built if missing. Raises NoSamples when weights leave nothing, and
    EditFoundryError when `folder` is damaged.
    """

    def __init__(
        self, index: ShardIndex, buckets: Buckets, data: DataConfig, global_batch: int, seed: int, folder: Path
    ) -> None:
        self._arguments = (index, buckets, data, global_batch, seed, folder)
        groups, self._rows = grouped(index, buckets, folder)
        self.global_batch = global_batch
        self.shares = tuple(Share(group, items) for group in groups if (items := _items(group, index, data)))
        if not self.shares:
            raise NoSamples(
                f"{index.folder}: no sample is left of {len(index)}; raise a weight of data.types or data.datasets"
            )
        self.items = sum(share.items for share in self.shares)
        if self.items > _MOST_ITEMS:
            raise UsageError(f"data: weights make an epoch of {self.items} samples; lower them")
        self._streams = [
            _Stream([share for share in self.shares if share.group.bucket == bucket], index, seed)
            for bucket in sorted({share.group.bucket for share in self.shares})
        ]
        self._key = seed_for(seed, "order", "batches")

    def __reduce__(self) -> tuple[type["Order"], tuple[Any, ...]]:
        return Order, self._arguments

    def batch(self, position: int) -> tuple[int, NDArray[np.int64]]:
        """The bucket and the rows of the index, [global_batch], of the global batch at `position` (from 0)."""
        epoch, place = self._locate(position)
        count = self.epoch_batches(epoch)
        place = int(permute(place, count, splitmix(self._key, epoch)))
        for stream in self._streams:
            first, end = stream.batches(epoch, self.global_batch), stream.batches(epoch + 1, self.global_batch)
            if place < end - first:
                start = (first + place) * self.global_batch
                return stream.bucket, self._rows[stream.places(start, self.global_batch)]
            place -= end - first
        raise AssertionError("a batch beyond its epoch")

    def epoch(self, position: int) -> float:
        """Epochs of the mixture before `position`."""
        epoch, place = self._locate(position)
        return epoch + place / self.epoch_batches(epoch)

    def epoch_batches(self, epoch: int) -> int:
        """Batches in an epoch (from 0): up to one more or less per bucket than in another."""
        return self._before(epoch + 1) - self._before(epoch)

    def _before(self, epoch: int) -> int:
        return sum(stream.batches(epoch, self.global_batch) for stream in self._streams)

    def _locate(self, position: int) -> tuple[int, int]:
        """Epoch of a position, and batches before it in that epoch.

        epoch * items / global_batch bounds the batches before an epoch from above, and less one per bucket from below;
        between the two epochs that this leaves, bisect.
        """
        if position < 0:
            raise ValueError(f"position {position} is negative")
        low = position * self.global_batch // self.items
        high = (position + len(self._streams)) * self.global_batch // self.items + 1
        epoch = low + bisect_right(range(low, high + 1), position, key=self._before) - 1
        return epoch, position - self._before(epoch)


class _Stream:
    """The endless items of a bucket: epoch after epoch of all its groups' items, each epoch shuffled."""

    def __init__(self, shares: list[Share], index: ShardIndex, seed: int) -> None:
        groups = [share.group for share in shares]
        self.bucket = groups[0].bucket
        self._items = np.array([share.items for share in shares], np.int64)
        self._ends = np.cumsum(self._items)
        self._starts = np.array([group.start for group in groups], np.int64)
        self._sizes = np.array([group.rows for group in groups], np.int64)
        names = [(self.bucket, group.dataset, index.types[group.type]) for group in groups]
        self._keys = np.array([seed_for(seed, "order", "samples", *name) for name in names], np.uint64)
        self._key = seed_for(seed, "order", "items", self.bucket)
        self._total = int(self._ends[-1])

    def batches(self, epoch: int, size: int) -> int:
        """Whole batches in the epochs before `epoch`."""
        return epoch * self._total // size

    def places(self, start: int, count: int) -> NDArray[np.int64]:
        """Places in the file of rows of items start, start + 1, ..."""
        epoch, item = np.divmod(start + np.arange(count, dtype=np.int64), self._total)
        item = permute(item, self._total, splitmix(self._key, epoch)).astype(np.int64)
        group = np.searchsorted(self._ends, item, side="right")
        items = self._items[group]
        seen = epoch * items + item - (self._ends[group] - items)
        passes, sample = np.divmod(seen, self._sizes[group])
        return self._starts[group] + permute(sample, self._sizes[group], splitmix(self._keys[group], passes)).astype(
            np.int64
        )


def _items(group: Group, index: ShardIndex, data: DataConfig) -> int:
    weight = data.datasets[group.dataset].weight * data.types.get(index.types[group.type], 1.0)
    return max(1, round(weight * group.rows)) if weight else 0


def slots(rank: int, ranks: int, micro: int, micro_batch: int) -> range:
    """Which samples of a global batch are a rank's in one accumulation step; over both they cover it exactly once."""
    start = (micro * ranks + rank) * micro_batch
    return range(start, start + micro_batch)


class GlobalBatches(Protocol):
    """An order of global batches of `global_batch` samples or rows."""

    global_batch: int


class Positions(Iterable[tuple[int, int]]):
    """(position, accumulation step) of a rank's micro-batches, from global batch `start` up to `stop`.

    Its iterators keep their place (`state_dict`, `load_state_dict`), as torchdata's StatefulDataLoader asks.
    Raises UsageError unless ranks * accumulation * micro_batch is the order's global batch.
    """

    def __init__(
        self,
        order: GlobalBatches,
        rank: int,
        ranks: int,
        accumulation: int,
        micro_batch: int,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        if ranks * accumulation * micro_batch != order.global_batch or not 0 <= rank < ranks:
            raise UsageError(
                f"rank {rank}: {ranks} ranks x {accumulation} accumulation steps x micro_batch "
                f"{micro_batch} is not the global batch of {order.global_batch}"
            )
        self.rank, self.ranks, self.accumulation, self.micro_batch = rank, ranks, accumulation, micro_batch
        self.start, self.stop = start, stop

    def __iter__(self) -> "PositionsIterator":
        return PositionsIterator(self)

    def slots(self, micro: int) -> range:
        """Which samples of a global batch are this rank's in accumulation step `micro`."""
        return slots(self.rank, self.ranks, micro, self.micro_batch)


class PositionsIterator(Iterator[tuple[int, int]]):
    """One pass over `Positions`."""

    def __init__(self, positions: Positions) -> None:
        self._accumulation, self._stop = positions.accumulation, positions.stop
        self._position, self._micro = positions.start, 0

    def __next__(self) -> tuple[int, int]:
        position, micro = self._position, self._micro
        if self._stop is not None and position >= self._stop:
            raise StopIteration
        self._micro = (micro + 1) % self._accumulation
        self._position += self._micro == 0
        return position, micro

    def state_dict(self) -> dict[str, int]:
        """Where it is: the next position and accumulation step."""
        return {"position": self._position, "micro": self._micro, "accumulation": self._accumulation}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there. Raises UsageError inside a global batch that was cut into other accumulation steps."""
        if state["micro"] and state["accumulation"] != self._accumulation:
            raise UsageError(
                f"stopped inside global batch {state['position']} with {state['accumulation']} "
                f"accumulation steps, now there are {self._accumulation}; resume from a whole batch"
            )
        self._position, self._micro = state["position"], state["micro"]
