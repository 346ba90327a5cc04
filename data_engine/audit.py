"""Looking at what is committed: does it account for every source (funnel), are the bytes those recorded (verify)?"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from editfoundry.core.chat.ledger import check_ledger
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import sha256_file
from editfoundry.data_engine.dataset import build, emit_store, read_manifest
from editfoundry.data_engine.ledger import REJECTS, ROWS, BrokenCommit, Commit, StageStore
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.rundir import MARK_LENGTH, RunDir, StageState, State
from editfoundry.data_engine.shards import DamagedFile, read_table
from editfoundry.data_engine.stages.emit import Emit


class FunnelRow(Record):
    """What one stage took in and let through, over its committed shards. parts: rejects of regions and candidates."""

    stage: str
    barrier: bool
    shards: int
    expected_shards: int
    inputs: int = 0
    accepted: int = 0
    rejected: int = 0
    outputs: int = 0
    rejects: dict[str, int] = Field(default_factory=dict)
    parts: dict[str, dict[str, int]] = Field(default_factory=dict)
    elapsed_s: float = 0.0


class Funnel(Record):
    """The survival funnel; `problems` says every way in which the accounts do not add up, empty when they do."""

    rows: tuple[FunnelRow, ...]
    problems: tuple[str, ...]


class Finding(Record):
    """One thing `verify` found. shard None: not about a shard of a stage."""

    kind: str
    path: str
    detail: str
    stage: str = ""
    shard: int | None = None

    def line(self) -> str:
        return f"{self.kind}: {self.path}: {self.detail}"


def funnel(run: RunDir) -> Funnel:
    """Count every committed shard of the current configuration and check that nothing was lost or made up."""
    state = run.state()
    rows, problems = [], []
    above: dict[int, Commit] | None = None
    name_above = ""
    for stage in state.stages:
        expected = 1 if stage.barrier else state.shards
        commits, broken = _commits(run, stage)
        problems += broken
        missing = sorted(set(range(expected)) - set(commits))
        if missing:
            problems.append(f"{stage.name}: {len(missing)} of {expected} shards are not committed, first {missing[0]}")
        rows.append(_count(stage, commits, expected))
        if stage.fingerprint:
            problems += _row_counts(run.store(stage.name, stage.fingerprint), commits)
        if stage.barrier:
            continue
        if above is None and not missing and rows[-1].inputs != state.sources:
            problems.append(f"{stage.name}: took in {rows[-1].inputs} of {state.sources} sources")
        problems += _handed_down(name_above, above or {}, stage.name, commits)
        above, name_above = commits, stage.name
    return Funnel(rows=tuple(rows), problems=tuple(problems))


def verify(run: RunDir) -> list[Finding]:
    """Compare every committed file of the current configuration, and the dataset, with what is recorded of them."""
    state = run.state()
    findings = [finding for stage in state.stages for finding in _verify_stage(run, state, stage)]
    findings += [*_verify_folders(run, state), *_verify_settings(run)]
    if any(stage.name == Emit.name for stage in state.stages):
        findings += _verify_dataset(run, damaged=any(finding.stage == Emit.name for finding in findings))
    return findings


def _commits(run: RunDir, stage: StageState) -> tuple[dict[int, Commit], list[str]]:
    commits, problems = {}, []
    if stage.fingerprint:
        store = run.store(stage.name, stage.fingerprint)
        for shard in store.shards():
            try:
                commits[shard] = store.commit(shard)
            except BrokenCommit as error:
                problems.append(str(error))
    return commits, problems


def _count(stage: StageState, commits: dict[int, Commit], expected: int) -> FunnelRow:
    rejects: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    for commit in commits.values():
        rejects.update(commit.rejects)
        for unit, reasons in commit.parts.items():
            parts.setdefault(unit, Counter()).update(reasons)
    totals = {name: sum(getattr(commit, name) for commit in commits.values())
              for name in ("inputs", "accepted", "rejected", "outputs", "elapsed_s")}
    return FunnelRow(stage=stage.name, barrier=stage.barrier, shards=len(commits), expected_shards=expected,
                     rejects=dict(rejects.most_common()), **totals,
                     parts={unit: dict(reasons.most_common()) for unit, reasons in sorted(parts.items())})


def _row_counts(store: StageStore, commits: dict[int, Commit]) -> Iterator[str]:
    """The tables themselves must account for every input, as the record says they do."""
    for commit in commits.values():
        where = f"{store.stage} shard {commit.shard}"
        try:
            rows, rejects = ([list(read_table(store.files / file.name, columns)) if file else []
                              for file, columns in ((commit.file(ROWS), ["input"]),
                                                    (commit.file(REJECTS), ["input", "primary"]))])
        except DamagedFile as error:
            yield f"{where}: {error}"
            continue
        accepted = {row["input"] for row in rows}
        rejected = [row["input"] for row in rejects if row["primary"]]
        found = {"outputs": len(rows), "accepted": len(accepted), "rejected": len(rejected),
                 "parts rejected": len(rejects) - len(rejected)}
        recorded = {"outputs": commit.outputs, "accepted": commit.accepted, "rejected": commit.rejected,
                    "parts rejected": sum(sum(reasons.values()) for reasons in commit.parts.values())}
        yield from (f"{where}: {found[what]} {what} are stored, {recorded[what]} are recorded"
                    for what in found if found[what] != recorded[what])
        if accepted.union(rejected) != set(range(commit.inputs)) or accepted.intersection(rejected):
            yield f"{where}: its tables do not account for each of the {commit.inputs} inputs exactly once"


def _handed_down(above: str, given: dict[int, Commit], below: str, taken: dict[int, Commit]) -> Iterator[str]:
    for shard in sorted(set(given) & set(taken)):
        if given[shard].outputs != taken[shard].inputs:
            yield (f"{below} shard {shard}: {above} gave {given[shard].outputs} rows, "
                   f"but {taken[shard].inputs} were taken in")


def _verify_stage(run: RunDir, state: State, stage: StageState) -> Iterator[Finding]:
    expected = range(1 if stage.barrier else state.shards)
    if not stage.fingerprint:
        yield Finding(kind="missing_stage", path=stage.name, detail="not run yet; repeat `editfoundry data run`",
                      stage=stage.name)
        return
    store = run.store(stage.name, stage.fingerprint)
    named: set[str] = set()
    for shard in sorted({*expected, *store.shards()}):
        path = store.record_path(shard)
        where = {"path": _short(run, path), "stage": stage.name, "shard": shard}
        if shard not in expected:
            yield Finding(kind="extra_commit", detail=f"the stage has {len(expected)} shards", **where)
            continue
        try:
            commit = store.commit(shard)
        except FileNotFoundError:
            yield Finding(kind="missing_shard", detail="no commit record", **where)
        except BrokenCommit:
            yield Finding(kind="bad_commit", detail="the record is damaged or of another shard", **where)
        else:
            named |= {file.name for file in commit.files}
            yield from _verify_files(run, store, commit)
    yield from _strays(run, store, named)


def _verify_files(run: RunDir, store: StageStore, commit: Commit) -> Iterator[Finding]:
    for file in commit.files:
        problem = _difference(store.files / file.name, file.bytes, file.sha256)
        if problem:
            yield Finding(kind=problem[0], path=_short(run, store.files / file.name), detail=problem[1],
                          stage=store.stage, shard=commit.shard)


def _difference(path: Path, size: int, digest: str) -> tuple[str, str] | None:
    if not path.is_file():
        return "missing_file", "recorded, but not there"
    if path.stat().st_size != size:
        return "changed_file", f"{path.stat().st_size} bytes, recorded as {size}"
    if sha256_file(path) != digest:
        return "changed_file", "its bytes are not those recorded (sha256 differs)"
    return None


def _strays(run: RunDir, store: StageStore, named: set[str]) -> Iterator[Finding]:
    """Whatever lies in a stage's folder and is neither named by a record nor a record."""
    for path in sorted(store.path.rglob("*")) if store.path.is_dir() else []:
        record = path.parent == store.commits_folder and path == store.commits_folder / f"{path.stem}.json"
        known = path in (store.files, store.commits_folder) or (record and path.stem.isdigit())
        if not known and not (path.parent == store.files and path.name in named):
            yield Finding(kind="extra_file", path=_short(run, path), detail="no commit record names it",
                          stage=store.stage)


def _verify_folders(run: RunDir, state: State) -> Iterator[Finding]:
    """Folders under RUN/stages that are no stage's, of this configuration or an older one."""
    names = {stage.name for stage in state.stages}
    for path in sorted(run.stages.iterdir()) if run.stages.is_dir() else ():
        stage, _, mark = path.name.rpartition("-")
        if not path.is_dir() or stage not in names or len(mark) != MARK_LENGTH:
            yield Finding(kind="extra_file", path=_short(run, path), detail="belongs to no stage")


def _verify_settings(run: RunDir) -> Iterator[Finding]:
    """The run's own files: its configuration, what was forgotten, what models were asked, an interrupted forgetting."""
    for path, read in ((run.config_file, run.settings), (run.tombstone_file, run.tombstones),
                       (run.chat, partial(check_ledger, run.chat))):
        try:
            read()
        except EditFoundryError as error:
            yield Finding(kind="bad_file", path=_short(run, path), detail=str(error))
    if run.journal_file.exists():
        yield Finding(kind="unfinished_forget", path=_short(run, run.journal_file),
                      detail="a forget was interrupted; repeat it, or repair the run")


def _verify_dataset(run: RunDir, damaged: bool) -> Iterator[Finding]:
    try:
        manifest = read_manifest(run.dataset)
        files: dict[str, Any] = manifest["files"]
        recorded = {name: (file["bytes"], file["sha256"]) for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        yield Finding(kind="bad_manifest", path="dataset/manifest.json", detail="missing or damaged")
        return
    for name, (size, digest) in sorted(recorded.items()):
        problem = _difference(run.dataset / name, size, digest)
        if problem:
            yield Finding(kind=problem[0], path=f"dataset/{name}", detail=problem[1])
    for path in sorted(run.dataset.iterdir()):
        if path.name != "manifest.json" and path.name not in recorded:
            yield Finding(kind="extra_file", path=f"dataset/{path.name}", detail="the manifest does not name it")
    if damaged:
        return
    with tempfile.TemporaryDirectory() as folder:
        if build(emit_store(run), Path(folder), link=False) != manifest:
            yield Finding(kind="bad_manifest", path="dataset/manifest.json",
                          detail="is not what emit's committed shards amount to")


def _short(run: RunDir, path: Path) -> str:
    return str(path.relative_to(run.path))
