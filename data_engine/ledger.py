"""What has been done: committed shards of every stage, under RUN/stages/<stage>-<fingerprint>/.

A shard exists once its commit record does. Its files are written under temporary names, made durable, renamed to names
that carry their content's hash, and only then is the record linked into place; of two racing writers one link succeeds.
Times and versions live in commit records only.
"""

import errno
import os
import platform
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from editfoundry import __version__
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import fingerprint, sha256_file
from editfoundry.data_engine.records import Record, Reject
from editfoundry.data_engine.shards import (
    REJECT_SCHEMA,
    ROW_SCHEMA,
    RejectRow,
    Row,
    Span,
    TableWriter,
    TarWriter,
    check_names,
    read_rejects,
    read_rows,
    reject_entry,
    row_entry,
)
from editfoundry.data_engine.stages.base import Item

TEMPORARY = ".tmp-"
ROWS, REJECTS, MEMBERS = "rows", "rejects", "members"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(EditFoundryError):
    """Nothing more can be written. Committed shards are intact and the run resumes where it stopped."""


class BrokenCommit(EditFoundryError):
    """A commit record that cannot be read or contradicts itself."""


class CommittedFile(Record):
    """One file of a shard. kind: rows, rejects or members; group: the tar's group (a split, for emit)."""

    name: str
    kind: str
    group: str = ""
    bytes: int
    sha256: str
    rows: int = 0


class Step(Record):
    """What a named step inside a stage cost in one shard, and how many inputs it turned away."""

    seconds: float = 0.0
    calls: int = 0
    refused: int = 0


class Commit(Record):
    """The record that makes a shard exist. inputs = accepted + rejected, always.

    rejects: inputs turned away, by reason. parts: rejects of regions and candidates, by unit and reason.
    digest: hash of the content as first made; it stays when `forget` compacts the files, so that what was built on the
    artifact keeps its fingerprint. upstream: stage and fingerprint whose same shard was read.
    """

    stage: str
    fingerprint: str
    shard: int
    upstream: tuple[str, str] | None = None
    files: tuple[CommittedFile, ...] = ()
    inputs: int
    accepted: int
    rejected: int
    outputs: int
    rejects: dict[str, int] = Field(default_factory=dict)
    parts: dict[str, dict[str, int]] = Field(default_factory=dict)
    digest: str
    elapsed_s: float = 0.0
    committed_at: str = ""
    worker: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    steps: dict[str, Step] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _accounts(self) -> Self:
        if self.inputs != self.accepted + self.rejected:
            raise ValueError(f"{self.inputs} inputs are not {self.accepted} accepted + {self.rejected} rejected")
        if self.rejected != sum(self.rejects.values()):
            raise ValueError(f"{self.rejected} rejected, but the reasons add up to {sum(self.rejects.values())}")
        return self

    def file(self, kind: str, group: str = "") -> CommittedFile | None:
        return next((file for file in self.files if file.kind == kind and file.group == group), None)


class StageStore:
    """The folder of one stage at one fingerprint: `shards/` holds files, `commits/` the records."""

    def __init__(self, root: Path, stage: str, stage_fingerprint: str) -> None:
        self.stage, self.fingerprint = stage, stage_fingerprint
        self.path = root / f"{stage}-{stage_fingerprint}"
        self.files, self.commits_folder = self.path / "shards", self.path / "commits"

    def shards(self) -> list[int]:
        """Numbers of the committed shards, ascending."""
        if not self.commits_folder.is_dir():
            return []
        return sorted(int(path.stem) for path in self.commits_folder.glob("*.json") if path.stem.isdigit())

    def record_path(self, shard: int) -> Path:
        return self.commits_folder / f"{shard:05d}.json"

    def commit(self, shard: int) -> Commit:
        """The commit record of a shard. Raises BrokenCommit if it is damaged, FileNotFoundError if there is none."""
        path = self.record_path(shard)
        try:
            commit = Commit.model_validate_json(path.read_bytes())
        except ValidationError as error:
            reason = " ".join(str(error).split())[:200]
            raise BrokenCommit(f"{path}: damaged commit record ({reason}); run `editfoundry data repair`") from error
        if (commit.stage, commit.fingerprint, commit.shard) != (self.stage, self.fingerprint, shard):
            raise BrokenCommit(f"{path}: a commit record of another shard; run `editfoundry data repair`")
        return commit

    def commits(self) -> Iterator[Commit]:
        """Commit records in shard order."""
        for shard in self.shards():
            yield self.commit(shard)

    def digest(self) -> str:
        """Hash of everything committed, in shard order; it names the artifact in fingerprints below it."""
        return fingerprint([commit.digest for commit in self.commits()])

    def rows(self, commit: Commit) -> Iterator[Row]:
        """Output rows of a committed shard, in stored order."""
        file = commit.file(ROWS)
        if file:
            yield from read_rows(self.files / file.name)

    def rejects(self, commit: Commit) -> Iterator[RejectRow]:
        """Rejects of a committed shard, in stored order."""
        file = commit.file(REJECTS)
        if file:
            yield from read_rejects(self.files / file.name)

    def tar(self, commit: Commit, group: str) -> Path:
        """The tar that holds the members of a group. Raises RuntimeError when the shard has none."""
        file = commit.file(MEMBERS, group)
        if file is None:
            raise RuntimeError(f"{self.stage} shard {commit.shard}: no members are stored in group {group!r}")
        return self.files / file.name

    def writer(self, shard: int, upstream: tuple[str, str] | None = None) -> "ShardWriter":
        return ShardWriter(self, shard, upstream)

    def remove_strays(self) -> None:
        """Delete files no commit record names: what killed writers left. Only under the run's lock."""
        if not self.path.is_dir():
            return
        kept = {file.name for commit in self.commits() for file in commit.files}
        for path in self.files.iterdir() if self.files.is_dir() else ():
            if path.name not in kept:
                path.unlink(missing_ok=True)
        for path in self.commits_folder.glob(f"{TEMPORARY}*"):
            path.unlink(missing_ok=True)


class ShardWriter:
    """Collects one shard's rows, rejects and members, and commits them, or leaves nothing behind.

    Use as a context manager; leaving it without `commit` discards everything. Raises DiskFull when the disk is.
    """

    def __init__(self, store: StageStore, shard: int, upstream: tuple[str, str] | None) -> None:
        self.store, self.shard, self.upstream = store, shard, upstream
        self._stem = f"{TEMPORARY}{shard:05d}-{secrets.token_hex(8)}"
        self._tables: dict[str, TableWriter] = {}
        self._tars: dict[str, TarWriter] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._rejects: Counter[str] = Counter()
        self._parts: dict[str, Counter[str]] = {}
        self._accepted: set[int] = set()
        self._rejected: set[int] = set()
        store.files.mkdir(parents=True, exist_ok=True)
        store.commits_folder.mkdir(parents=True, exist_ok=True)

    def add(self, position: int, item: Item) -> None:
        """Accept an output item of the input at `position`, with its members."""
        record_id = record_key(item.record)
        members = {}
        if item.blobs:
            check_names(self.store.stage, record_id, item.blobs)
            members = self.add_members(record_id, item.group, item.blobs)
        self.add_row(Row(record_id, position, item.record.to_json(), item.group, members))

    def add_members(self, record_id: str, group: str, blobs: dict[str, bytes]) -> dict[str, Span]:
        """Append the members of one id to its group's tar, sorted by name; returns where they lie."""
        with full_disk_stops(self.store.files):
            tar = self._tars.get(group)
            if tar is None:
                tar = self._tars[group] = TarWriter(self.store.files / f"{self._stem}-{len(self._tars)}.tar")
            return {name: tar.add(f"{record_id}.{name}", blobs[name]) for name in sorted(blobs)}

    def add_row(self, row: Row) -> None:
        """Add an output row whose members are stored already."""
        self._accepted.add(row.input)
        self._counts[MEMBERS, row.group] += bool(row.members)
        self._append(ROWS, ROW_SCHEMA, row_entry(row))

    def reject(self, position: int, reject: Reject, primary: bool) -> None:
        """Record a reject; a primary one accounts for its input, others are of parts of it."""
        if primary:
            if position in self._rejected:
                raise RuntimeError(f"{self.store.stage}: {reject.id} is rejected twice")
            self._rejected.add(position)
            self._rejects[reject.reason] += 1
        else:
            self._parts.setdefault(reject.unit, Counter())[reject.reason] += 1
        self._append(REJECTS, REJECT_SCHEMA, reject_entry(RejectRow(position, primary, reject)))

    def commit(self, inputs: int, worker: str = "", elapsed_s: float = 0.0, steps: dict[str, Step] | None = None,
               ) -> Commit:
        """Make the shard exist; if another writer was first, discard this one. Returns the record that stands.

        Raises RuntimeError when an input is neither accepted nor rejected, or both.
        """
        commit = self.seal(inputs, worker, elapsed_s, steps)
        with full_disk_stops(self.store.commits_folder):
            if link_exclusive(self.store.record_path(self.shard), commit.to_json().encode()):
                return commit
        winner = self.store.commit(self.shard)
        for file in {file.name for file in commit.files} - {file.name for file in winner.files}:
            (self.store.files / file).unlink(missing_ok=True)
        return winner

    def seal(self, inputs: int, worker: str = "", elapsed_s: float = 0.0, steps: dict[str, Step] | None = None,
             ) -> Commit:
        """Make the files durable under their final names and return the record, without linking it into place."""
        self._check(inputs)
        with full_disk_stops(self.store.files):
            files = tuple(self._finish())
            sync_folder(self.store.files)
        return Commit(
            stage=self.store.stage, fingerprint=self.store.fingerprint, shard=self.shard, upstream=self.upstream,
            files=files, inputs=inputs, accepted=len(self._accepted), rejected=len(self._rejected),
            outputs=self._counts[ROWS, ""], rejects=dict(self._rejects),
            parts={unit: dict(reasons) for unit, reasons in self._parts.items()},
            digest=fingerprint([[file.kind, file.group, file.sha256] for file in files]),
            elapsed_s=round(elapsed_s, 3), committed_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            worker=worker, versions=_versions(), steps=steps or {},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tar in self._tars.values():
            tar.abandon()
        for table in self._tables.values():
            table.abandon()
        for path in self.store.files.glob(f"{self._stem}*"):
            path.unlink(missing_ok=True)

    def _check(self, inputs: int) -> None:
        both = self._accepted & self._rejected
        lost = set(range(inputs)) - self._accepted - self._rejected
        if both or lost or len(self._accepted) + len(self._rejected) != inputs:
            raise RuntimeError(
                f"{self.store.stage} shard {self.shard}: {inputs} inputs, but positions {sorted(lost)[:5]} have no "
                f"outcome and positions {sorted(both)[:5]} are both accepted and rejected")

    def _append(self, kind: str, schema: Any, entry: dict[str, Any]) -> None:
        with full_disk_stops(self.store.files):
            if kind not in self._tables:
                self._tables[kind] = TableWriter(self.store.files / f"{self._stem}-{kind}.parquet", schema)
            self._tables[kind].add(entry)
        self._counts[kind, ""] += 1

    def _finish(self) -> Iterator[CommittedFile]:
        for kind, table in sorted(self._tables.items()):
            table.close()
            yield self._place(table.path, kind, "", sha256_file(table.path))
        for group, tar in sorted(self._tars.items()):
            tar.close()
            yield self._place(tar.path, MEMBERS, group, tar.sha256)

    def _place(self, path: Path, kind: str, group: str, digest: str) -> CommittedFile:
        name = f"{self.shard:05d}.{kind}{'.' if group else ''}{group}-{digest[:16]}{path.suffix}"
        size = path.stat().st_size
        path.rename(self.store.files / name)
        return CommittedFile(name=name, kind=kind, group=group, bytes=size, sha256=digest,
                             rows=self._counts[kind, group])


def record_key(record: Any) -> str:
    """The name a record goes by: its `id`, or its content's hash where that is its identity (donors)."""
    key: str = getattr(record, "id", None) or record.sha256
    return key


@contextmanager
def full_disk_stops(where: Path) -> Iterator[None]:
    """Turn 'no space left' into the one-line error that ends the run; other errors pass."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(f"{where}: {error.strerror}; committed shards are intact: free some space and repeat the "
                           "command to continue") from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that no more bytes may be written here."""
    return isinstance(error, OSError) and error.errno in _FULL


def link_exclusive(path: Path, data: bytes) -> bool:
    """Create `path` durably with its whole content or not at all. False if it exists already."""
    temporary = write_temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    return True


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` durably in one step: readers see the old content or the new."""
    write_temporary(path, data).replace(path)
    sync_folder(path.parent)


def write_temporary(path: Path, data: bytes) -> Path:
    """A durable temporary file beside `path`; the caller links or renames it. Leaves nothing behind on an error."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def sync_folder(path: Path) -> None:
    """Make renames and links inside a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@cache
def _versions() -> dict[str, str]:
    names = ("numpy", "pyarrow", "pillow")
    return {"editfoundry": __version__, "python": platform.python_version(), **{name: version(name) for name in names}}
