"""The loader: worker processes that build micro-batches ahead of the trainer, in the order of its positions."""

import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any, Protocol

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from editfoundry.core.errors import EditFoundryError
from editfoundry.training.data.order import GlobalBatches, Positions

GRACE_SECONDS = 30
"""How long a worker goes on after it was told to end: its trainer may want to finish a step."""


class WorkerLost(EditFoundryError):
    """A worker process of the loader ended on its own."""


class Builder(Protocol):
    """What makes the micro-batches of a trainer: `MicroBatchBuilder` of editors, `RowBuilder` of judges."""

    def build(self, rows: list[int], bucket: int, position: int, slots: range) -> Any:
        """The micro-batch of these rows, which stand at `slots` of the global batch at `position`."""
        ...


class MicroBatches(Dataset[Any]):  # type: ignore[misc]
    """The micro-batches of a rank by (position, accumulation step). An error is given back, so that it keeps its kind

    and its message on the way out of a worker process.
    """

    def __init__(self, builder: Builder, order: GlobalBatches, positions: Positions) -> None:
        self.builder, self.order, self.positions = builder, order, positions

    def __getitem__(self, place: tuple[int, int]) -> Any:
        position, micro = place
        bucket, rows = self.order.batch(position)
        slots = self.positions.slots(micro)
        try:
            return self.builder.build(rows[slots.start : slots.stop].tolist(), bucket, position, slots)
        except EditFoundryError as error:
            return error


class Loader(DataLoader[Any]):  # type: ignore[misc]
    """Gives the micro-batches of `positions`, in order. Raises what building them raises, and WorkerLost."""

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


def build_loader(
    builder: Builder, order: GlobalBatches, positions: Positions, workers: int, prefetch: int
) -> DataLoader[Any]:
    """A loader with `workers` processes (0: this one) that are `prefetch` micro-batches ahead each.

    Workers come from a fork server that has imported what they need: a fork of the trainer would copy its threads'
    locks and its GPU context, and a spawned process takes seconds to import. Like `spawn`, it needs a main module that
    can be imported (`if __name__ == "__main__":`).
    """
    ahead: dict[str, Any] = {}
    if workers:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, type(builder).__module__])
        ahead = {"multiprocessing_context": context, "prefetch_factor": prefetch, "worker_init_fn": settle_worker}
    return Loader(
        MicroBatches(builder, order, positions),
        sampler=positions,
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
