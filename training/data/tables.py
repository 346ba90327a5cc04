"""A dataset's `index.parquet`, read shard by shard, checked against manifest and shards, and made into index rows."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import sha256, sha256_file
from editfoundry.core.image_headers import DEFAULT_MAX_PIXELS
from editfoundry.data_engine.shards import BLOCK, DamagedFile
from editfoundry.training.config import DatasetSpec

MEMBERS = ("source", "result", "mask", "reference", "json")
REQUIRED = ("source", "result", "json")
TABLE, MANIFEST = "index.parquet", "manifest.json"
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("shard", pa.string()),
        ("type", pa.string()),
        ("instruction", pa.string()),
        ("parent_key", pa.string()),
        ("width", pa.int64()),
        ("height", pa.int64()),
    ]
    + [(f"{what}_{member}", pa.int64()) for member in MEMBERS for what in ("offset", "length")]
)
MIN_SIDE, MAX_SIDE, MAX_CAPTION, MAX_LENGTH = 16, 65535, 65535, 2**31 - 1
_SHARD_NAME = re.compile(r"(train|val)-[0-9]{6,}\.tar")
_BATCH, _HASHES = 1 << 14, 1 << 16


class FileEntry(BaseModel):
    """What a manifest says of one file."""

    bytes: int = Field(ge=0)
    rows: int = Field(ge=0)
    sha256: str


class Manifest(BaseModel):
    """A dataset's manifest.json."""

    files: dict[str, FileEntry]
    format: int = Field(ge=1, le=1)
    rows: int = Field(ge=0)


@dataclass(frozen=True)
class DatasetFiles:
    """A dataset folder (absolute), what its manifest says, and that file's sha256."""

    folder: Path
    manifest: Manifest
    manifest_sha256: str

    def shards(self, split: str) -> list[tuple[str, FileEntry]]:
        """Tars of a split by name."""
        return sorted(
            (name, entry)
            for name, entry in self.manifest.files.items()
            if name != TABLE and name.startswith(f"{split}-")
        )


def open_datasets(specs: Sequence[DatasetSpec]) -> list[DatasetFiles]:
    """The datasets of a configuration. Raises UsageError for a path that is none, or is named twice."""
    opened = [_open(Path(spec.path).absolute()) for spec in specs]
    for number, dataset in enumerate(opened):
        if dataset.folder in [other.folder for other in opened[:number]]:
            raise UsageError(f"{dataset.folder}: named twice in data.datasets; name it once, with the sum of weights")
    return opened


def _open(folder: Path) -> DatasetFiles:
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); data.datasets takes the `dataset` folder of a "
            "finished `editfoundry data run`"
        ) from error
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise DamagedFile(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    for name in manifest.files:
        if name != TABLE and not _SHARD_NAME.fullmatch(name):
            raise DamagedFile(path, f"{name!r} is not the name of a shard")
    if TABLE not in manifest.files:
        raise DamagedFile(path, f"it does not list {TABLE}")
    return DatasetFiles(folder, manifest, sha256(text))


def write_rows(
    datasets: Sequence[DatasetFiles],
    split: str,
    types: Sequence[str],
    row: np.dtype[Any],
    out: IO[bytes],
    scratch: Path,
) -> int:
    """Append the split's samples of all datasets to `out` as items of `row`, in stored order; returns how many.

    scratch: a folder for 8 bytes per sample, removed in the end. Raises DamagedFile and EditFoundryError.
    """
    written = 0
    first_shard = 0
    for number, dataset in enumerate(datasets):
        _check_sizes(dataset, split)
        shards = {name: (first_shard + place, entry) for place, (name, entry) in enumerate(dataset.shards(split))}
        first_shard += len(shards)
        table = dataset.folder / TABLE
        rows_of: dict[str, int] = {}
        hashes = scratch / "keys"
        with hashes.open("xb") as keys:
            for name, part in _by_shard(table):
                if name in rows_of:
                    raise DamagedFile(table, f"rows of {name} are not together")
                rows_of[name] = part.num_rows
                keys.write(_hashed(part["key"]).tobytes())
                if name in shards:
                    shard, entry = shards[name]
                    rows = _rows(part, row, types, f"{table}, {name}", entry.bytes, written)
                    rows["dataset"], rows["shard"] = number, shard
                    out.write(rows.tobytes())
                    written += len(rows)
        _check_counts(dataset, rows_of)
        _check_unique(table, hashes)
        hashes.unlink()
    return written


def _check_sizes(dataset: DatasetFiles, split: str) -> None:
    for name, entry in [*dataset.shards(split), (TABLE, dataset.manifest.files[TABLE])]:
        path = dataset.folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DamagedFile(path, f"{error.strerror}, but {MANIFEST} lists it") from error
        if size != entry.bytes:
            raise DamagedFile(path, f"it has {size} bytes, {MANIFEST} says {entry.bytes}")
    table = dataset.folder / TABLE
    if sha256_file(table) != dataset.manifest.files[TABLE].sha256:
        raise DamagedFile(table, f"its sha256 is not the one in {MANIFEST}")


def _check_counts(dataset: DatasetFiles, rows_of: dict[str, int]) -> None:
    table = dataset.folder / TABLE
    expected = {name: entry.rows for name, entry in dataset.manifest.files.items() if name != TABLE}
    for name in sorted(expected.keys() | rows_of.keys()):
        if rows_of.get(name, 0) != expected.get(name, 0):
            raise DamagedFile(table, f"{rows_of.get(name, 0)} rows of {name}, {MANIFEST} says {expected.get(name, 0)}")
    if dataset.manifest.rows != sum(rows_of.values()):
        raise DamagedFile(table, f"{sum(rows_of.values())} rows, {MANIFEST} says {dataset.manifest.rows}")


def _by_shard(table: Path) -> Iterator[tuple[str, pa.Table]]:
    """Runs of rows of one shard, in stored order: at most one shard's rows and a batch are in memory."""
    pending: list[pa.Table] = []
    name = ""
    for part in _batches(table):
        runs = pc.run_end_encode(part["shard"].combine_chunks())
        start = 0
        for end, run in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            if pending and run != name:
                yield name, pa.concat_tables(pending)
                pending = []
            name = str(run)
            pending.append(part.slice(start, end - start))
            start = end
    if pending:
        yield name, pa.concat_tables(pending)


def _batches(table: Path) -> Iterator[pa.Table]:
    """The table's rows in order. One row group at a time: a reader of the whole file keeps part of what it has read."""
    try:
        file = pq.ParquetFile(table)
        if missing := set(SCHEMA.names) - set(file.schema_arrow.names):
            raise DamagedFile(table, f"it has no column {', '.join(sorted(missing))}")
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(_BATCH, row_groups=[group], columns=SCHEMA.names):
                yield pa.Table.from_batches([batch]).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(table, error) from error


def _rows(part: pa.Table, row: np.dtype[Any], types: Sequence[str], where: str, size: int, first: int) -> NDArray[Any]:
    """Index rows of one shard's samples; `first` is the row of the first. Raises naming the first wrong sample."""
    keys = part["key"]
    if part["key"].null_count or part["type"].null_count:
        raise DamagedFile(where, "a sample without key or type")
    rows = np.zeros(part.num_rows, row)
    for member in MEMBERS:
        offset, length = (_numbers(part[f"{what}_{member}"]) for what in ("offset", "length"))
        absent = (offset == 0) & (length == 0)
        inside = (offset >= BLOCK) & (length > 0) & (length <= MAX_LENGTH) & (offset <= size - length)
        _refuse(
            ~inside & ~(absent & (member not in REQUIRED)),
            keys,
            where,
            f"its {member} is not inside the shard's {size} bytes",
        )
        rows[f"{member}_offset"], rows[f"{member}_length"] = offset, length
    width, height = _numbers(part["width"]), _numbers(part["height"])
    sides = (np.minimum(width, height) >= MIN_SIDE) & (np.maximum(width, height) <= MAX_SIDE)
    _refuse(
        ~(sides & (width * height <= DEFAULT_MAX_PIXELS)),
        keys,
        where,
        f"width and height are not {MIN_SIDE} to {MAX_SIDE} pixels with at most {DEFAULT_MAX_PIXELS} in all",
    )
    rows["width"], rows["height"] = width, height
    rows["caption"] = np.minimum(_numbers(pc.utf8_length(part["instruction"])), MAX_CAPTION)
    rows["type"] = _types(part["type"], keys, types, where)
    rows["parent"] = _parents(part["parent_key"], keys, where, first)
    return rows


def _types(column: pa.ChunkedArray, keys: pa.ChunkedArray, types: Sequence[str], where: str) -> NDArray[np.int64]:
    numbers = _numbers(pc.index_in(column, value_set=pa.array(types)), absent=-1)
    if np.any(unknown := numbers < 0):
        place = int(np.argmax(unknown))
        name = column[place].as_py()
        near = get_close_matches(name, types, n=1)
        raise EditFoundryError(
            f"{where}: sample {keys[place].as_py()!r} is of the unknown edit type {name[:80]!r}"
            f"{f' (nearest: {near[0]})' if near else ''}; known: {', '.join(types)}"
        )
    return numbers


def _parents(column: pa.ChunkedArray, keys: pa.ChunkedArray, where: str, first: int) -> NDArray[np.int64]:
    """The row of each sample's parent, which has to lie before it in the same shard, or -1."""
    place = _numbers(pc.index_in(column, value_set=keys.combine_chunks(), skip_nulls=True), absent=-1)
    has = np.asarray(pc.is_valid(column).to_numpy())
    _refuse(
        has & ((place < 0) | (place >= np.arange(len(place)))),
        keys,
        where,
        "its parent_key is not of a sample before it in the same shard",
    )
    return np.where(has, first + place, -1)


def _numbers(column: pa.ChunkedArray, absent: int = 0) -> NDArray[np.int64]:
    return np.asarray(pc.fill_null(column, absent).to_numpy(), np.int64)


def _refuse(wrong: NDArray[np.bool_], keys: pa.ChunkedArray, where: str, what: str) -> None:
    if np.any(wrong):
        raise DamagedFile(where, f"sample {keys[int(np.argmax(wrong))].as_py()!r}: {what}")


def _hashed(keys: pa.ChunkedArray) -> NDArray[np.uint64]:
    """64 bits of each key's BLAKE2b. Null keys hash as empty ones; `_rows` refuses them where they matter."""
    digests = b"".join(hashlib.blake2b((key or "").encode(), digest_size=8).digest() for key in keys.to_pylist())
    return np.frombuffer(digests, "<u8")


def _check_unique(table: Path, hashes: Path) -> None:
    """Raise DamagedFile if a key occurs twice: sorts the hashes on disk, and reads the keys again if two are equal."""
    if not hashes.stat().st_size:
        return
    values = np.memmap(hashes, "<u8", mode="r+")
    values.sort()
    twice = np.concatenate(
        [
            part[:-1][part[:-1] == part[1:]]
            for part in (values[start : start + _HASHES + 1] for start in range(0, len(values), _HASHES))
        ]
    )
    if not len(twice):
        return
    seen: set[str] = set()
    for _, part in _by_shard(table):
        suspects = np.isin(_hashed(part["key"]), twice)
        for key in pc.filter(part["key"], pa.array(suspects)).to_pylist():
            if key in seen:
                raise DamagedFile(table, f"the key {key!r} occurs twice")
            seen.add(key)
