"""Mending a run: delete exactly what `verify` finds broken, run it again, publish again."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.log import close_log, open_log
from editfoundry.data_engine.audit import Finding, verify
from editfoundry.data_engine.ledger import BrokenCommit, Commit, StageStore
from editfoundry.data_engine.rundir import RunDir, State


class NotRepaired(EditFoundryError):
    """Something is still broken after the repair."""


def repair(run: RunDir, rerun: Callable[[State], object]) -> list[Finding]:
    """Delete what is broken, call `rerun(state)` to make it again, and check. Returns what was found broken.

    Normally what is made again has the same bytes and everything below it stands. Where it has not (what was forgotten
    since can change what its neighbours draw), the same shard is made again in the stages below too.
    Raises NotRepaired, naming the first thing still broken.
    """
    state = run.state()
    with run.lock():
        open_log(run.logs, "repair")
        try:
            findings = verify(run)
            removed = _remove(run, state, findings)
        finally:
            close_log()
    rerun(state)
    stale = _stale(run, state, removed)
    if stale:
        with run.lock():
            for store, shard in stale:
                _drop(store, shard)
        rerun(state)
    left = verify(run)
    if left:
        raise NotRepaired(f"{len(left)} problems are left after the repair; the first: {left[0].line()}")
    return findings


def drop_rejected(run: RunDir, reasons: Sequence[str]) -> int:
    """Delete every shard that rejected something for one of the reasons, and the same shards below; returns how many

    shards the reasons stand in. The next run makes them again, and asks again for what had failed. Barriers below are
    made again too, since other sources may now reach them. Raises UsageError for a reason that nothing was rejected
    for, naming those there are.
    """
    state = run.state()
    known: set[str] = set()
    with run.lock():
        order = [(stage, run.store(stage.name, stage.fingerprint)) for stage in state.stages if stage.fingerprint]
        found: list[tuple[int, int]] = []
        for position, (_, store) in enumerate(order):
            for commit in store.commits():
                here = {row.reject.reason for row in store.rejects(commit)}
                known |= here
                if here & set(reasons):
                    found.append((position, commit.shard))
        unknown = sorted(set(reasons) - known)
        if unknown:
            raise UsageError(f"--retry {unknown[0]}: nothing of this run was rejected for it; reasons: "
                             f"{', '.join(sorted(known)) or 'none'}")
        for position, shard in found:
            for stage, store in order[position:]:
                _drop(store, 0 if stage.barrier else shard)
    return len(found)


def _remove(run: RunDir, state: State, findings: Sequence[Finding]) -> dict[tuple[str, int], Commit | None]:
    """Delete broken shards and stray files; returns the broken shards with their records, where still readable."""
    stores = {stage.name: run.store(stage.name, stage.fingerprint) for stage in state.stages if stage.fingerprint}
    removed: dict[tuple[str, int], Commit | None] = {}
    for finding in findings:
        if finding.stage and finding.shard is not None:
            key = (finding.stage, finding.shard)
            if key not in removed:
                removed[key] = _drop(stores[finding.stage], finding.shard)
        elif finding.kind == "extra_file":
            _delete(run.path / finding.path)
    return removed


def _drop(store: StageStore, shard: int) -> Commit | None:
    """Delete a shard: its record first, so that it never points at nothing."""
    try:
        commit = store.commit(shard)
    except (FileNotFoundError, BrokenCommit):
        commit = None
    store.record_path(shard).unlink(missing_ok=True)
    for path in store.files.glob(f"{shard:05d}.*"):
        path.unlink()
    return commit


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _stale(run: RunDir, state: State, removed: dict[tuple[str, int], Commit | None]) -> list[tuple[StageStore, int]]:
    """Shards below a remade one that came out different, in the stages that map shards."""
    order = [stage for stage in state.stages if not stage.barrier and stage.fingerprint]
    stale: dict[tuple[str, int], StageStore] = {}
    for (name, shard), before in removed.items():
        position = next((i for i, stage in enumerate(order) if stage.name == name), None)
        if position is None or before is None:
            continue
        store = run.store(name, str(order[position].fingerprint))
        if shard not in store.shards():
            continue
        now = store.commit(shard)
        if [file.sha256 for file in now.files] != [file.sha256 for file in before.files]:
            stale.update({(stage.name, shard): run.store(stage.name, str(stage.fingerprint))
                          for stage in order[position + 1:]})
    return [(store, shard) for (_, shard), store in stale.items()]

