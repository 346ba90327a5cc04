"""The loader of packed rows: the trainer's process plans which sequences stand in them, workers build them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch.utils.data import DataLoader

from editfoundry.training.data.loader import Built, worker_loader
from editfoundry.training.data.order import Positions
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.packing import RowOrder
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.sequences import Part


class RowRequest(NamedTuple):
    """What a worker is told: all that a row depends on."""

    parts: tuple[Part, ...]
    position: int
    slot: int
    epoch: int


class RowRequests(Iterable[RowRequest]):
    """The rows of a rank, in the order of its positions."""

    def __init__(self, order: RowOrder, parts: Sequence[Part], positions: Positions) -> None:
        self.order, self.parts, self.positions = order, parts, positions

    def __iter__(self) -> Iterator[RowRequest]:
        for position, micro in self.positions:
            [slot] = self.positions.slots(micro)
            planned = self.order.row(position, slot)
            yield RowRequest(tuple(self.parts[member] for member in planned.members), position, slot, planned.epoch)


class BuiltRows(Built[RowRequest, Row]):
    """Rows as they are asked for."""

    def __init__(self, builder: RowBuilder) -> None:
        self.builder = builder

    def build(self, request: RowRequest) -> Row:
        """Raises BadPicture."""
        return self.builder.row(*request)


def row_loader(
    builder: RowBuilder, order: RowOrder, parts: Sequence[Part], positions: Positions, workers: int, prefetch: int
) -> DataLoader[Row]:
    """A loader of a rank's rows, as `training.data.loader.build_loader` is of micro-batches. positions: of `order`,

    with a micro_batch of 1.
    """
    return worker_loader(BuiltRows(builder), RowRequests(order, parts, positions), workers, prefetch, BuiltRows)
