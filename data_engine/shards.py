"""The two file formats of a shard: a deterministic tar of members, and Parquet tables of rows and rejects.

Equal content gives equal bytes: tar headers carry no times and no owner, Parquet writer options are fixed.
"""

import contextlib
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json
from editfoundry.data_engine.records import Record, Reject

ID_PATTERN = re.compile(r"[0-9a-z_]+")
MEMBER_PATTERN = re.compile(r"[0-9a-z_]+(\.[0-9a-z_]+)*")
BLOCK = 512
ROWS_PER_GROUP = 1024
PARQUET = {"compression": "zstd", "compression_level": 3, "use_dictionary": False, "write_statistics": False,
           "version": "2.6", "data_page_version": "1.0"}
ROW_SCHEMA = pa.schema([("id", pa.string()), ("input", pa.int64()), ("group", pa.string()), ("members", pa.string()),
                        ("record", pa.string())])
REJECT_SCHEMA = pa.schema([("id", pa.string()), ("input", pa.int64()), ("primary", pa.bool_()),
                           ("record", pa.string())])

Span = tuple[int, int]
R = TypeVar("R", bound=Record)


class DamagedFile(EditFoundryError):
    """A file of the run that is missing, cannot be read, or does not hold what it should."""

    def __init__(self, where: object, what: object) -> None:
        super().__init__(f"{where}: damaged ({' '.join(str(what).split())[:150]}); `editfoundry data verify` says what "
                         "is wrong in the run, `editfoundry data repair` mends it")


@dataclass(frozen=True)
class Row:
    """One output row of a stage: its record as JSON text, the position of the input it came from, and where its

    members lie: `members[name] = (offset, length)` in the tar of its `group`.
    """

    id: str
    input: int
    record: str
    group: str = ""
    members: Mapping[str, Span] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """The record as plain data. Raises DamagedFile if it is none."""
        try:
            data: dict[str, Any] = json.loads(self.record)
        except ValueError as error:
            raise DamagedFile(f"row {self.id!r}", error) from error
        return data

    def parse(self, model: type[R]) -> R:
        """The record as what it is. Raises DamagedFile if it is not."""
        try:
            return model.model_validate_json(self.record)
        except ValidationError as error:
            raise DamagedFile(f"row {self.id!r}", error) from error


@dataclass(frozen=True)
class RejectRow:
    """One reject; `primary` marks the one that accounts for its input, the others are of parts of it."""

    input: int
    primary: bool
    reject: Reject


class TarWriter:
    """Writes a ustar archive whose bytes depend only on the members. `sha256` and `size` are known after `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[bytes] = path.open("xb")
        self.size = 0
        self._hash = hashlib.sha256()

    def add(self, name: str, data: bytes) -> Span:
        """Append a member; returns offset and length of its data in the file."""
        self._write(tar_header(name, len(data)))
        span = (self.size, len(data))
        self._write(data)
        self._write(bytes(-len(data) % BLOCK))
        return span

    def close(self) -> None:
        """Write the end marker and make the bytes durable."""
        self._write(bytes(2 * BLOCK))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def abandon(self) -> None:
        """Close a file that will be deleted; what a full disk could not take does not matter then."""
        with contextlib.suppress(OSError):
            self.file.close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        self._hash.update(data)
        self.size += len(data)


def tar_header(name: str, size: int) -> bytes:
    """The ustar header of a plain file: no owner, no time. Raises ValueError for a name that ustar cannot hold."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    return info.tobuf(format=tarfile.USTAR_FORMAT, encoding="utf-8", errors="strict")


class TableWriter:
    """Streams dictionaries into a Parquet file in row groups of a fixed size. Metadata of the schema is kept."""

    def __init__(self, path: Path, schema: pa.Schema, rows_per_group: int = ROWS_PER_GROUP) -> None:
        self.path = path
        self.rows_per_group = rows_per_group
        self.file: IO[bytes] = path.open("xb")
        self.writer = pq.ParquetWriter(self.file, schema, store_schema=schema.metadata is not None, **PARQUET)
        self.schema = schema
        self.pending: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self.pending.append(row)
        if len(self.pending) == self.rows_per_group:
            self._flush()

    def close(self) -> None:
        """Write what is pending and the footer, and make the bytes durable."""
        self._flush()
        self.writer.close()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def abandon(self) -> None:
        """Close a file that will be deleted, without finishing the table."""
        self.writer.is_open = False
        with contextlib.suppress(OSError):
            self.file.close()

    def _flush(self) -> None:
        if self.pending:
            self.writer.write_table(pa.Table.from_pylist(self.pending, schema=self.schema))
            self.pending = []


def read_member(path: Path, span: Span) -> bytes:
    """A tar member's bytes. Raises DamagedFile if the file is missing or ends before the member does."""
    # No file object: making one would take longer than the read.
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            data = os.pread(descriptor, span[1], span[0])
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DamagedFile(path, error.strerror) from error
    if len(data) != span[1]:
        raise DamagedFile(path, f"it ends inside a member at byte {span[0]}")
    return data


def row_entry(row: Row) -> dict[str, Any]:
    """A row as its Parquet columns."""
    members = canonical_json({name: list(span) for name, span in row.members.items()})
    return {"id": row.id, "input": row.input, "group": row.group, "members": members, "record": row.record}


def reject_entry(row: RejectRow) -> dict[str, Any]:
    """A reject as its Parquet columns."""
    return {"id": row.reject.id, "input": row.input, "primary": row.primary, "record": row.reject.to_json()}


def read_rows(path: Path) -> Iterator[Row]:
    """Rows in stored order, a few hundred at a time."""
    for entry in read_table(path):
        try:
            members = {name: (span[0], span[1]) for name, span in json.loads(entry["members"]).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedFile(path, error) from error
        yield Row(entry["id"], entry["input"], entry["record"], entry["group"], members)


def read_rejects(path: Path) -> Iterator[RejectRow]:
    """Rejects in stored order."""
    for entry in read_table(path):
        try:
            reject = Reject.model_validate_json(entry["record"])
        except ValidationError as error:
            raise DamagedFile(path, error) from error
        yield RejectRow(entry["input"], entry["primary"], reject)


def read_table(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Any of the project's Parquet files, row by row, streamed; only some of its columns if they are named.

    Raises DamagedFile.
    """
    for batch in _batches(path, columns):
        yield from batch


def _batches(path: Path, columns: Sequence[str] | None) -> Iterator[list[dict[str, Any]]]:
    try:
        # Opened here: Arrow takes no path that is not UTF-8.
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(batch_size=256, use_threads=False, columns=columns):
                yield batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedFile(path, error) from error


def check_names(stage: str, record_id: str, members: Iterable[str]) -> None:
    """Tar members are named `<id>.<member>`; raises RuntimeError when either would not survive WebDataset."""
    if not ID_PATTERN.fullmatch(record_id):
        raise RuntimeError(f"{stage}: id {record_id!r} has pixels to store, so it must match {ID_PATTERN.pattern}")
    for member in members:
        if not MEMBER_PATTERN.fullmatch(member):
            raise RuntimeError(f"{stage}: {record_id}: member name {member!r} must match {MEMBER_PATTERN.pattern}")
