"""Running one stage on one shard: read, prepare a batch ahead, process, write, commit. Every executor comes here."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from editfoundry.core.errors import EditFoundryError, ImageError
from editfoundry.core.log import run_log
from editfoundry.data_engine.access import CommittedArtifacts
from editfoundry.data_engine.ledger import Commit, ShardWriter, StageStore, Step, is_disk_full, record_key
from editfoundry.data_engine.records import Record, Reject, Sample
from editfoundry.data_engine.stages.base import Barrier, Item, Outcome, Stage
from editfoundry.data_engine.tombstones import Tombstones, forgotten_reject

Notify = Callable[["Event"], None]
INPUT_UNITS = ("source", "sample")


@dataclass(frozen=True)
class Plan:
    """All a worker needs to run a stage on any of its shards. Pickles.

    upstream: name of the stage whose shards it maps, None for the first; upstream_row: record class of its rows.
    fingerprints: of every stage finished so far, by name.
    """

    stages: Path
    config: Any
    stage: type[Stage]
    fingerprint: str
    upstream: str | None
    upstream_row: type[Record] | None
    fingerprints: Mapping[str, str]
    tombstones: Tombstones = field(default_factory=Tombstones)

    def store(self) -> StageStore:
        return StageStore(self.stages, self.stage.name, self.fingerprint)

    def stores(self) -> dict[str, StageStore]:
        return {name: StageStore(self.stages, name, mark) for name, mark in self.fingerprints.items()}


@dataclass(frozen=True)
class Task:
    """One shard of a stage. sources: the first stage's inputs. careful: batches to run one item at a time, because a

    worker died in or near them. verdicts: inputs, by position, that killed their worker twice, and the reason to give.
    """

    shard: int
    sources: Sequence[Any] = ()
    careful: frozenset[int] = frozenset()
    verdicts: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """Where a shard's work stands: before batch `batch` (or, in a careful one, before input `item`); `done` inputs are

    finished. Both are None while the shard is committed.
    """

    batch: int | None
    item: int | None
    done: int


@dataclass
class Loaded:
    """An input position with what reading it gave: an item ready for `process`, or the reject it became."""

    position: int
    result: Item | Reject


class Session:
    """A stage set up in this process, ready to run any number of its shards."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stage = plan.stage(plan.config)
        self.artifacts = CommittedArtifacts(plan.stores())
        self.stage.setup(self.artifacts)

    def run(self, task: Task, worker: str, notify: Notify = lambda _: None) -> Commit:
        """Run one shard and commit it. Returns the record that stands, which another worker may have made."""
        if isinstance(self.stage, Barrier):
            return run_barrier(self.plan, self.stage, worker)
        return run_shard(self.plan, self.stage, task, self.artifacts, worker, notify)


def run_shard(plan: Plan, stage: Stage, task: Task, artifacts: CommittedArtifacts, worker: str, notify: Notify,
              ) -> Commit:
    """Map one committed input shard to one committed output shard.

    Raises DiskFull when nothing can be written, RuntimeError when the stage breaks its contract, and any
    EditFoundryError other than ImageError that the stage raises; nothing is half-committed then.
    """
    started = time.perf_counter()
    stage.start_shard()
    upstream = (plan.upstream, plan.fingerprints[plan.upstream]) if plan.upstream else None
    done = 0
    with plan.store().writer(task.shard, upstream) as writer:
        for number, batch in _loaded_batches(plan, stage, task, artifacts, notify):
            ready = [loaded for loaded in batch if isinstance(loaded.result, Item)]
            outcomes: dict[int, Outcome] = _process(stage, task.shard, ready) if ready else {}
            outcomes |= {loaded.position: [loaded.result] for loaded in batch if isinstance(loaded.result, Reject)}
            for loaded in batch:
                _write(plan, writer, loaded.position, outcomes[loaded.position])
            done += len(batch)
            notify(Event(number, None, done))
        notify(Event(None, None, done))
        return writer.commit(done, worker, time.perf_counter() - started, _steps(stage))


def run_barrier(plan: Plan, stage: Barrier, worker: str) -> Commit:
    """Gather a barrier's artifact and commit it as shard 0."""
    started = time.perf_counter()
    stage.start_shard()
    stores = plan.stores()

    def rows(name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        if name not in stage.reads:
            raise RuntimeError(f"{stage.name}: reads {name!r} without declaring it in `reads`")
        for commit in stores[name].commits():
            for row in stores[name].rows(commit):
                yield commit.shard, row.data()

    count = 0
    with plan.store().writer(0) as writer:
        for count, result in enumerate(stage.gather(rows), start=1):
            _write(plan, writer, count - 1, [result])
        return writer.commit(count, worker, time.perf_counter() - started, _steps(stage))


def _loaded_batches(plan: Plan, stage: Stage, task: Task, artifacts: CommittedArtifacts, notify: Notify,
                    ) -> Iterator[tuple[int, list[Loaded]]]:
    """Batches whose items are read and prepared: one batch ahead on a thread, or, in a careful shard, just in time."""
    batches = enumerate(_batched(enumerate(_records(plan, task)), stage.batch_size))

    def load(batch: Sequence[tuple[int, Any]]) -> list[Loaded]:
        return [Loaded(position, _load(plan, stage, task, artifacts, position, record)) for position, record in batch]

    if task.careful:
        for number, batch in batches:
            if number not in task.careful:
                notify(Event(number, None, batch[0][0]))
                yield number, load(batch)
                continue
            for position, record in batch:
                notify(Event(number, position, position))
                yield number, load([(position, record)])
        return

    def load_next() -> tuple[int, list[Loaded]] | None:
        for number, batch in batches:
            return number, load(batch)
        return None

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader") as reader:
        ahead = reader.submit(load_next)
        while (loaded := ahead.result()) is not None:
            ahead = reader.submit(load_next)
            notify(Event(loaded[0], None, loaded[1][0].position))
            yield loaded


def _records(plan: Plan, task: Task) -> Iterator[Any]:
    if plan.upstream is None:
        yield from task.sources
        return
    assert plan.upstream_row is not None
    store = plan.stores()[plan.upstream]
    for row in store.rows(store.commit(task.shard)):
        yield row.parse(plan.upstream_row)


def _load(plan: Plan, stage: Stage, task: Task, artifacts: CommittedArtifacts, position: int, record: Any,
          ) -> Item | Reject:
    if position in task.verdicts:
        return _reject(stage, record, task.verdicts[position], "killed its worker twice, alone in a batch")
    if plan.upstream is None and (anonymous := plan.tombstones.match(record)):
        return forgotten_reject(stage.name, anonymous)
    blobs = {}
    if stage.blobs:
        owner = record.source.id if stage.blobs == "ingest" and isinstance(record, Sample) else record.id
        blobs = artifacts.members(stage.blobs, task.shard).read(owner)
    try:
        return stage.prepare(Item(record=record, blobs=blobs))
    except Exception as error:  # noqa: BLE001 - logged, and the item's reject
        return _failure(stage, task.shard, record, error)


def _process(stage: Stage, shard: int, ready: Sequence[Loaded]) -> dict[int, Outcome]:
    """Outcomes by position. When a batch fails, its items are tried one by one and the guilty one is rejected."""
    items = [loaded.result for loaded in ready if isinstance(loaded.result, Item)]
    try:
        outcomes = stage.process(items)
    except Exception as error:  # noqa: BLE001 - logged, and the guilty item's reject
        if len(ready) == 1:
            return {ready[0].position: [_failure(stage, shard, items[0].record, error)]}
        _stop_if_fatal(error)
        run_log().warning("a batch failed; trying its items one by one", exc_info=error,
                          extra={"stage": stage.name, "shard": shard, "ids": [_name(item.record) for item in items]})
        return {position: outcome for loaded in ready for position, outcome in _process(stage, shard, [loaded]).items()}
    if len(outcomes) != len(items):
        raise RuntimeError(f"{stage.name} shard {shard}: {len(items)} inputs gave {len(outcomes)} outcomes, "
                           f"first id {_name(items[0].record)}")
    return {loaded.position: outcome for loaded, outcome in zip(ready, outcomes, strict=True)}


def _failure(stage: Stage, shard: int, record: Any, error: Exception) -> Reject:
    """The reject an exception becomes: an unusable image under its own reason, anything else as `stage_error`."""
    if isinstance(error, ImageError):
        return _reject(stage, record, error.reason, str(error))
    _stop_if_fatal(error)
    run_log().error("an item failed", exc_info=error,
                    extra={"stage": stage.name, "shard": shard, "ids": [_name(record)]})
    return _reject(stage, record, "stage_error", " ".join(f"{type(error).__name__}: {error}".split()))


def _stop_if_fatal(error: Exception) -> None:
    """Raise again what is no item's fault: a full disk, a missing model, a wrong configuration."""
    if is_disk_full(error) or (isinstance(error, EditFoundryError) and not isinstance(error, ImageError)):
        raise error


def _write(plan: Plan, writer: ShardWriter, position: int, outcome: Outcome) -> None:
    """Write an input's outcome: its items, and the rejects; without items one reject accounts for the input."""
    items = [result for result in outcome if isinstance(result, Item)]
    rejects = [result for result in outcome if isinstance(result, Reject)]
    anonymous = [plan.tombstones.match(item.record) for item in items]
    kept = [item for item, forgotten in zip(items, anonymous, strict=True) if forgotten is None]
    primary = None if items else next((r for r in rejects if r.unit in INPUT_UNITS), next(iter(rejects), None))
    if primary:
        anonymous.append(plan.tombstones.match({"sha256": primary.source_sha256}))
    forgotten = next(filter(None, anonymous), None)
    if forgotten and not kept:
        writer.reject(position, forgotten_reject(plan.stage.name, forgotten), primary=True)
        return
    if not items and not rejects:
        raise RuntimeError(f"{plan.stage.name}: the input at position {position} of shard {writer.shard} was neither "
                           "accepted nor rejected")
    for item in kept:
        writer.add(position, item)
    for reject in rejects:
        writer.reject(position, reject, primary=reject is primary)


def _reject(stage: Stage, record: Any, reason: str, detail: str) -> Reject:
    source = record.source if isinstance(record, Sample) else record
    return Reject(stage=stage.name, id=_name(record), reason=reason, detail=detail,
                  unit="sample" if isinstance(record, Sample) else "source",
                  source_sha256=getattr(source, "sha256", ""), donors=tuple(getattr(record, "donors", ())))


def _name(record: Any) -> str:
    return record_key(record) if hasattr(record, "id") or hasattr(record, "sha256") else str(record.uri)


def _steps(stage: Stage) -> dict[str, Step]:
    meter = stage.meter
    names = sorted({*meter.seconds, *meter.refused})
    return {name: Step(seconds=round(meter.seconds.get(name, 0.0), 6), calls=meter.calls.get(name, 0),
                       refused=meter.refused.get(name, 0)) for name in names}


def _batched(values: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(values, size)):
        yield batch
