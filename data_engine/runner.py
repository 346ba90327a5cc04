"""Running a pipeline: stages in order, a wave of shards per stage, whatever is committed already left as it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from editfoundry.core.chat.ledger import use_ledger
from editfoundry.core.errors import ModelMissing, UsageError
from editfoundry.core.hashing import fingerprint
from editfoundry.core.log import close_log, open_log, run_log
from editfoundry.core.progress import Advance, progress
from editfoundry.data_engine.dataset import publish
from editfoundry.data_engine.execution import Plan, Task
from editfoundry.data_engine.executors.base import Executor
from editfoundry.data_engine.executors.local import LocalExecutor
from editfoundry.data_engine.forget import finish_journal
from editfoundry.data_engine.layouts.base import Listed
from editfoundry.data_engine.ledger import StageStore, full_disk_stops
from editfoundry.data_engine.rundir import RunDir, StageState, State
from editfoundry.data_engine.stages.base import Barrier, Stage
from editfoundry.data_engine.stages.emit import Emit

Bar = Callable[[str, int], AbstractContextManager[Advance]]


class Listing:
    """The sources of a run, listed once and only when something needs them. Shard k is a slice of the listing."""

    def __init__(self, config: Any, find: Callable[[Any], Sequence[Any]], known: State | None = None) -> None:
        self.shard_size: int = config.shard_size
        self.known = known
        self._find: Callable[[], Sequence[Any]] = lambda: find(config.ingest)

    @cached_property
    def sources(self) -> Sequence[Any]:
        """Every source. Raises UsageError if there is none, or if they changed since the run that is repaired."""
        sources = self._find()
        if not sources:
            raise UsageError("ingest.sources: nothing to ingest was found; check the paths in the configuration")
        if self.known and _listing_digest(sources) != self.known.listing:
            raise UsageError("the sources changed since this run (files added, removed or touched); "
                             "`editfoundry data run` makes a new version from them")
        return sources

    @cached_property
    def digest(self) -> str:
        """Hash over every source's identity. Made once: it looks at each file."""
        return self.known.listing if self.known else _listing_digest(self.sources)

    @property
    def count(self) -> int:
        return self.known.sources if self.known else len(self.sources)

    @property
    def shards(self) -> int:
        return -(-self.count // self.shard_size)

    def shard(self, number: int) -> Sequence[Any]:
        return self.sources[number * self.shard_size:(number + 1) * self.shard_size]


@dataclass
class Chain:
    """Where a walk over the stages stands: fingerprints so far, and the last stage that maps shards."""

    run: RunDir
    config: Any
    listing: Listing
    fingerprints: dict[str, str]
    above: type[Stage] | None = None

    def plan(self, stage: type[Stage]) -> Plan:
        """Fingerprint the stage, given that those above are committed, and say how to run it."""
        mark = stage_fingerprint(stage(self.config), self.above, self.listing.digest, self.stores())
        if self.listing.known:
            mark = self._known(stage.name, mark, self.listing.known)
        above = None if issubclass(stage, Barrier) else self.above
        return Plan(self.run.stages, self.config, stage, mark, above.name if above else None,
                    above.row if above else None, dict(self.fingerprints), self.run.tombstones())

    def _known(self, stage: str, mark: str, state: State) -> str:
        """While repairing: the fingerprint the run had. Another one now means that code, models or settings changed,

        unless sources were forgotten, which takes texts out of config.yaml and donors out of artifacts.
        """
        known = next((entry.fingerprint for entry in state.stages if entry.name == stage), None)
        if known is None or known == mark:
            return mark
        if not self.run.tombstones().hashes:
            raise UsageError(f"{stage}: its code, models or settings changed since this run, so its shards cannot be "
                             "made again; `editfoundry data run` makes a new version")
        return known

    def stores(self) -> dict[str, StageStore]:
        return {name: self.run.store(name, mark) for name, mark in self.fingerprints.items()}

    def advance(self, plan: Plan) -> None:
        """The stage is finished; go to the next."""
        self.fingerprints[plan.stage.name] = plan.fingerprint
        if not issubclass(plan.stage, Barrier):
            self.above = plan.stage

    def tasks(self, plan: Plan) -> list[Task]:
        """The shards of the stage that are not committed yet."""
        done = set(plan.store().shards())
        count = 1 if issubclass(plan.stage, Barrier) else self.listing.shards
        first = plan.upstream is None and not issubclass(plan.stage, Barrier)
        return [Task(shard, self.listing.shard(shard) if first else ()) for shard in range(count) if shard not in done]

    def inputs(self, plan: Plan, tasks: Sequence[Task]) -> int:
        """How many inputs the tasks have together, for the progress bar; a barrier counts as one."""
        if issubclass(plan.stage, Barrier):
            return len(tasks)
        if plan.upstream is None:
            return sum(len(task.sources) for task in tasks)
        store = self.run.store(plan.upstream, self.fingerprints[plan.upstream])
        return sum(store.commit(task.shard).outputs for task in tasks)


def stage_fingerprint(stage: Stage, above: type[Stage] | None, listing: str, stores: Mapping[str, StageStore]) -> str:
    """Hash of everything that decides what a stage writes: itself, its settings and models, and all it reads."""
    upstream: Any = listing if above is None else stores[above.name].fingerprint
    if isinstance(stage, Barrier):
        upstream = {name: stores[name].fingerprint for name in stage.reads}
    return fingerprint({
        "stage": stage.name, "version": stage.version, "settings": stage.settings(), "shared": stage.run.shared(),
        "models": stage.digests(), "upstream": upstream,
        "artifacts": {name: stores[name].digest() for name in stage.artifacts},
    })


def run(config: Any, path: Path, *, workers: int = 1, executor: Executor | None = None,
        stages: Sequence[type[Stage]] | None = None, find: Callable[[Any], Sequence[Any]] | None = None,
        bar: Bar = progress, known: State | None = None) -> Path | None:
    """Run `config` in the folder `path`, resuming what is there; returns the dataset's folder, None without emit.

    stages: the pipeline (default: the engine's). find: lists the sources of `config.ingest` (default: ingest's).
    known: the state of a run being repaired, whose sources must be unchanged if any has to be read again.
    Raises RunLocked, DiskFull, ModelMissing, WorkerFailure, ConfigError: all resume when the cause is gone.
    """
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least one worker is needed")
    with full_disk_stops(path), RunDir.create(path).lock() as folder:
        open_log(folder.logs, "driver")
        use_ledger(folder.chat, alone=True)
        try:
            return _run(config, folder, stages or default_stages(), Listing(config, find or default_find(path), known),
                        executor or LocalExecutor(path, workers, config.batch_timeout_s), bar)
        finally:
            use_ledger(None)
            close_log()


def check_models(stages: Sequence[Stage]) -> None:
    """Find missing weights now, not when the run comes to their stage. Raises ModelMissing naming all of them."""
    missing: dict[str, None] = {}
    for stage in stages:
        for role, model in stage.models.items():
            try:
                model.digest()
                for weights in getattr(model, "weights", ()):
                    model.store.path(weights)
            except ModelMissing as error:
                missing[f"models.{role}: {error}"] = None
    if missing:
        raise ModelMissing("; ".join(missing))


def default_stages() -> tuple[type[Stage], ...]:
    """The engine's pipeline; imported late, since it brings every stage's models' code with it."""
    from editfoundry.data_engine.pipeline import STAGES

    return STAGES


def default_find(run: Path) -> Callable[[Any], Sequence[Any]]:
    """How the engine's ingest lists the sources of `run`; imported late, like the stages."""
    from editfoundry.data_engine.sources import list_sources

    return partial(list_sources, run=run)


def _run(config: Any, run: RunDir, stages: Sequence[type[Stage]], listing: Listing, executor: Executor, bar: Bar,
         ) -> Path | None:
    check_models([stage(config) for stage in stages])
    finish_journal(run)
    chain = Chain(run, config, listing, {})
    before = run.last_state()
    state = State(listing=listing.digest, sources=listing.count, shards=listing.shards, stages=())
    run.save_config(config)
    with executor:
        for stage in stages:
            plan = chain.plan(stage)
            entries = tuple(_states(stages, {**chain.fingerprints, stage.name: plan.fingerprint}, before))
            run.save_state(state.model_copy(update={"stages": entries}))
            try:
                _wave(chain, plan, executor, bar)
            except BaseException as error:
                executor.__exit__(type(error), error, error.__traceback__)
                plan.store().remove_strays()
                raise
            chain.advance(plan)
    return publish(run) if Emit.name in chain.fingerprints else None


def _wave(chain: Chain, plan: Plan, executor: Executor, bar: Bar) -> None:
    plan.store().remove_strays()
    tasks = chain.tasks(plan)
    name = plan.stage.name
    run_log().info("%d of its shards are to be run", len(tasks), extra={"stage": name})
    if not tasks:
        return
    with bar(name, chain.inputs(plan, tasks)) as advance:
        for commit in executor.execute(plan, tasks, advance):
            advance(issubclass(plan.stage, Barrier))
            run_log().info("committed by %s: %d inputs, %d accepted, %d rejected, %d outputs", commit.worker,
                           commit.inputs, commit.accepted, commit.rejected, commit.outputs,
                           extra={"stage": name, "shard": commit.shard})


def _states(stages: Sequence[type[Stage]], fingerprints: Mapping[str, str], before: State | None,
            ) -> Iterator[StageState]:
    """Where every stage stands. Those not reached yet keep the fingerprint they had before, as long as nothing above

    them changed: a run that is complete stays so while it is looked through again.
    """
    kept = {stage.name: stage.fingerprint for stage in before.stages} if before else {}
    unchanged = all(kept.get(name) == mark for name, mark in fingerprints.items())
    for stage in stages:
        mark = fingerprints.get(stage.name) or (kept.get(stage.name) if unchanged else None)
        yield StageState(name=stage.name, barrier=issubclass(stage, Barrier), fingerprint=mark)


def _listing_digest(sources: Sequence[Any]) -> str:
    if isinstance(sources, Listed):
        return fingerprint(list(sources.identities()))
    return fingerprint([cast(Any, source).identity() for source in sources])
