"""What a stage is. A stage knows nothing of executors, paths or resume: items in, items or rejects out."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import ConfigError
from editfoundry.data_engine.records import Record, Reject
from editfoundry.models.registry import REGISTRY, create

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig


@dataclass
class Item:
    """A record with its tar members by name, and its decoded pixels once `prepare` has run.

    `group` names the tar the runner writes the members to (emit groups by split; others leave it empty).
    """

    record: Any
    blobs: dict[str, bytes] = field(default_factory=dict)
    pixels: list[NDArray[np.uint8]] = field(default_factory=list)
    group: str = ""


Outcome = list[Item | Reject]


@dataclass
class Meter:
    """What the named steps of a stage (the gates of verify) cost and turned away. The runner empties it per shard,

    and stores it in commit records, never in the dataset. `seconds`, `calls` and `refused` count by step.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str, calls: int = 1) -> Iterator[None]:
        """Adds the time inside the block to the step and counts its calls."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - started
            self.calls[step] = self.calls.get(step, 0) + calls

    def refuse(self, step: str) -> None:
        """Counts one input that the step turned away."""
        self.refused[step] = self.refused.get(step, 0) + 1

    def clear(self) -> None:
        self.seconds.clear()
        self.calls.clear()
        self.refused.clear()


class Artifacts(ABC):
    """Read access to what is committed, given to `setup`: rows of barrier artifacts, tar members of any shard."""

    @abstractmethod
    def rows(self, stage: str) -> Iterator[dict[str, Any]]:
        """Every row of a committed barrier artifact, in its stored order."""

    @abstractmethod
    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        """One tar member of a committed shard (`shard` 0 for a barrier artifact)."""


class Stage(ABC):
    """Maps a shard of items to a shard of items. Subclasses set the class attributes and implement `process`.

    name: also its section of the configuration and its folder under RUN/stages.
    version: raised by hand when the code changes what it writes.
    row: record class of its output rows; `blobs`: stage whose tar supplies the items' members ("" for none).
    roles: model roles it may load, named by the configuration's `models` section; `needs` says which it does.
    artifacts: barrier stages whose artifacts `setup` reads; their digests enter the fingerprint.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    row: ClassVar[type[Record]]
    blobs: ClassVar[str] = ""
    roles: ClassVar[tuple[str, ...]] = ()
    artifacts: ClassVar[tuple[str, ...]] = ()
    barrier: ClassVar[bool] = False
    batch_size: ClassVar[int] = 8

    def __init__(self, config: "RunConfig") -> None:
        self.run = config
        self.config: Any = getattr(config, self.name)
        self.meter = Meter()
        self.models: dict[str, Any] = {role: create(role, self._spec(role)) for role in self.needs(config)}

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """The model roles that the stage loads under this configuration; `roles` unless it depends on it."""
        del config
        return cls.roles

    def _spec(self, role: str) -> Any:
        if role not in self.run.models:
            raise ConfigError(f"models.{role}: {self.name} needs one and none is named; "
                              f"available: {', '.join(sorted(REGISTRY[role]))}")
        return self.run.models[role]

    def start_shard(self) -> None:
        """Called before the first batch of every shard."""
        self.meter.clear()

    def settings(self) -> dict[str, Any]:
        """What, beyond models and upstream, decides the output: the stage's own section of the configuration."""
        settings: dict[str, Any] = self.config.model_dump(mode="json")
        return settings

    def digests(self) -> dict[str, str]:
        """Digest of every model used, by role."""
        return {role: model.digest() for role, model in self.models.items()}

    def setup(self, artifacts: Artifacts) -> None:
        """Load models and barrier artifacts; called once per worker before the first batch."""
        del artifacts
        for model in self.models.values():
            model.load()

    def prepare(self, item: Item) -> Item:
        """Decode what `process` needs. Runs on the worker's reading thread, a batch ahead.

        An ImageError raised here becomes the item's reject, under the error's reason.
        """
        return item

    @abstractmethod
    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        """One outcome per input, in order.

        An input is accepted if its outcome holds an item; otherwise the outcome must hold at least one reject.
        Rejects beside items are of parts (regions, candidates).
        """


class Barrier(Stage):
    """Reads every committed shard of the stages in `reads`, writes one committed artifact (shard 0)."""

    barrier: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ()

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        raise TypeError(f"{self.name} is a barrier: it gathers, it does not process batches")

    @abstractmethod
    def gather(self, rows: Callable[[str], Iterator[tuple[int, dict[str, Any]]]]) -> Iterator[Item | Reject]:
        """`rows(stage)` yields (shard, row) over all committed shards in order; yields the artifact's items in order.

        What could not be taken in is yielded as a Reject, so that the funnel shows it.
        """
