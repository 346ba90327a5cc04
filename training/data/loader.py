"""The loader: worker processes that build micro-batches ahead of the trainer, in the order of its positions."""

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from editfoundry.core.errors import EditFoundryError
from editfoundry.training.data.order import Order, Positions

Place = TypeVar("Place")
Result = TypeVar("Result")

GRACE_SECONDS = 30
"""How long a worker goes on after it was told to end: its trainer may want to finish a step."""


class WorkerLost(EditFoundryError):
    """A worker process of the loader ended on its own."""


class Built(Dataset[Result | EditFoundryError], Generic[Place, Result]):  # type: ignore[misc]
    """What a trainer takes, built by place. An error is given back, so that it keeps its kind and its message on the

    way out of a worker process.
    """

    def __getitem__(self, place: Place) -> Result | EditFoundryError:
        try:
            return self.build(place)
        except EditFoundryError as error:
            return error

    def build(self, place: Place) -> Result:
        """What belongs at a place."""
        raise NotImplementedError


class Builder(Protocol):
    """What makes micro-batches, as `MicroBatchBuilder` does."""

    def build(self, rows: list[int], bucket: int, position: int, slots: range) -> Any:
        """The micro-batch of these rows, which stand at `slots` of the global batch at `position`."""
        ...


class MicroBatches(Built[tuple[int, int], Any]):
    """The micro-batches of a rank by (position, accumulation step)."""

    def __init__(self, builder: Builder, order: Order, positions: Positions) -> None:
        self.builder, self.order, self.positions = builder, order, positions

    def build(self, place: tuple[int, int]) -> Any:
        """Raises what building raises."""
        position, micro = place
        bucket, rows = self.order.batch(position)
        slots = self.positions.slots(micro)
        return self.builder.build(rows[slots.start : slots.stop].tolist(), bucket, position, slots)


class Loader(DataLoader[Any]):  # type: ignore[misc]
    """Gives what is built at the sampler's places, in order. Raises what building raises, and WorkerLost."""

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
                if not _lost(error):
                    raise
                said = " ".join(str(error).split())[:150]
                raise WorkerLost(
                    f"a data worker process ended by itself ({said}); it may have said why above, else memory ran out: "
                    "lower data.workers or data.prefetch, then run the same command to go on"
                ) from error
            if isinstance(batch, EditFoundryError):
                raise batch
            yield batch


def build_loader(builder: Builder, order: Order, positions: Positions, workers: int, prefetch: int) -> DataLoader[Any]:
    """A loader of a rank's micro-batches; see `worker_loader`."""
    return worker_loader(MicroBatches(builder, order, positions), positions, workers, prefetch, type(builder))


def worker_loader(
    built: Built[Place, Result], places: Iterable[Place], workers: int, prefetch: int, imports: type
) -> DataLoader[Result]:
    """A loader with `workers` processes (0: this one) that are `prefetch` places ahead each.

    Workers come from a fork server that has imported what they need, the module of the class `imports`: a fork of the
    trainer would copy its threads' locks and its GPU context, and a spawned process takes seconds to import. Like
    `spawn`, it needs a main module that can be imported (`if __name__ == "__main__":`).
    """
    ahead: dict[str, Any] = {}
    if workers:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, imports.__module__])
        ahead = {"multiprocessing_context": context, "prefetch_factor": prefetch, "worker_init_fn": settle_worker}
    return Loader(
        built,
        sampler=places,
        batch_size=None,
        collate_fn=as_it_is,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # else every pass draws a number from torch's global generator
        **ahead,
    )


def _lost(error: Exception) -> bool:
    """Whether a worker is gone. torch notices at the next wait; before, the tensors of a batch that the worker had

    finished cannot be fetched from it: a connection refused or cut. What a worker itself raised starts with "Caught".
    """
    said = str(error)
    return not said.startswith("Caught ") and ("DataLoader worker" in said or not isinstance(error, RuntimeError))


def as_it_is(batch: Any) -> Any:
    """Instead of torch's conversion, which makes lists of tuples."""
    return batch


def settle_worker(_: int) -> None:
    """One thread, and no early end: Ctrl-C and a scheduler's signals reach every process of a job, and it is for the

    trainer to end in good order. A worker told to terminate goes on for a while.
    """
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))
