"""The shard index: one memory-mapped row per sample, so that a run opens ten million of them as fast as ten.

Built once per run and split from each dataset's `index.parquet`, which has to agree with its `manifest.json` and both
with the shards on disk.
"""

import json
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json, fingerprint
from editfoundry.data_engine.ledger import replace_file, sync_folder
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.training.config import DatasetSpec
from editfoundry.training.data.tables import MEMBERS, DatasetFiles, open_datasets, write_rows

FORMAT = 1
INDEX, ROWS = "index.json", "rows.bin"
ROW = np.dtype(
    [
        ("dataset", "<u2"),
        ("shard", "<u4"),
        ("type", "u1"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("caption", "<u2"),
        ("parent", "<i8"),
    ]
    + [(f"{member}_{what}", kind) for member in MEMBERS for what, kind in (("offset", "<i8"), ("length", "<i4"))]
)
"""A sample. dataset, shard, type: numbers into the index's lists. caption: characters of the instruction, at most

65535. parent: the row of the turn before, or -1. offset and length of each member in its shard; length 0: it has none.
"""


class NoSamples(EditFoundryError):
    """A split, or a mixture, without any sample."""


class Shard(NamedTuple):
    """A tar of samples: where it lies, the number of its dataset, and its size."""

    path: Path
    dataset: int
    bytes: int


class ShardIndex:
    """An index folder. rows: [samples] of `ROW`, memory-mapped and read-only. types: names of edit types by number.

    digest: of the content, not of where it lies; equal digests mean equal rows. Pickles as its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        content = _read(folder)
        self.digest: str = content["digest"]
        self.split: str = content["split"]
        self.types: tuple[str, ...] = tuple(content["types"])
        self.datasets = tuple(Path(path) for path in content["datasets"])
        self.shards = tuple(
            Shard(self.datasets[dataset] / name, dataset, size) for dataset, name, size in content["shards"]
        )
        path = folder / ROWS
        if not path.is_file() or path.stat().st_size != content["rows"] * ROW.itemsize:
            raise EditFoundryError(
                f"{path}: not the {content['rows']} rows that {INDEX} says; delete {folder} to have it built again"
            )
        self.rows = map_array(path, ROW)

    def __len__(self) -> int:
        return len(self.rows)

    def shard_path(self, shard: int) -> Path:
        """Where the shard of that number lies."""
        return self.shards[shard].path

    def __reduce__(self) -> tuple[type["ShardIndex"], tuple[Path]]:
        return ShardIndex, (self.folder,)


def map_array(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A file as a read-only array, memory-mapped for access at random: each page that is touched is read, and no others

    ahead of it, which for 256 rows of a cold index of 10 million makes 40 ms of 800. Raises OSError and ValueError.
    """
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, dtype)


def open_index(folder: Path) -> ShardIndex:
    """An index that was built before. Raises EditFoundryError when it is missing or damaged."""
    return ShardIndex(folder)


def build_index(datasets: Sequence[DatasetSpec], split: str, out: Path) -> ShardIndex:
    """The index of a split (`train` or `val`) of the datasets, in `out`; one of the same content is reused.

    Checks what a run relies on: sizes of tables and shards, every span inside its shard, known edit types, sides,
    unique keys, parents before their children. Memory does not grow with the number of samples.
    Raises UsageError for a path that is no dataset, DamagedFile for one that disagrees with itself, NoSamples for a
    split without samples, and EditFoundryError if `out` is an index of other data.
    """
    opened = open_datasets(datasets)
    digest = fingerprint(FORMAT, split, [dataset.manifest_sha256 for dataset in opened])
    if out.exists():
        return _reused(out, digest, opened)
    if not any(entry.rows for dataset in opened for _, entry in dataset.shards(split)):
        raise NoSamples(
            f"no sample of the split `{split}` in {', '.join(str(dataset.folder) for dataset in opened)}; "
            "add a dataset that has some"
        )
    building = out.with_name(f".{out.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    types = sorted(TYPES)
    shards = [
        (number, name, entry.bytes) for number, dataset in enumerate(opened) for name, entry in dataset.shards(split)
    ]
    with (building / ROWS).open("xb") as file:
        rows = write_rows(opened, split, types, ROW, file, building)
        file.flush()
        os.fsync(file.fileno())
    _write(
        building,
        {
            "format": FORMAT,
            "digest": digest,
            "split": split,
            "rows": rows,
            "types": types,
            "datasets": [str(dataset.folder) for dataset in opened],
            "manifests": [dataset.manifest_sha256 for dataset in opened],
            "shards": shards,
        },
    )
    sync_folder(building)
    building.rename(out)
    sync_folder(out.parent)
    return ShardIndex(out)


def _reused(out: Path, digest: str, opened: Sequence[DatasetFiles]) -> ShardIndex:
    """The index in `out`, told where its datasets are now. Raises EditFoundryError if they are not what it was of."""
    content = _read(out)
    if content["digest"] != digest:
        known = set(content["manifests"])
        changed = [str(dataset.folder) for dataset in opened if dataset.manifest_sha256 not in known]
        what = f"{', '.join(changed)} changed" if changed else "other datasets, order of datasets, or split"
        raise EditFoundryError(
            f"{out}: the run's index is of other data ({what}); go on with the data it was started "
            "with, or start a new run"
        )
    folders = [str(dataset.folder) for dataset in opened]
    if content["datasets"] != folders:
        _write(out, {**content, "datasets": folders})
    return ShardIndex(out)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise EditFoundryError(f"{path}: no index ({error.strerror}); delete {folder} to have it built") from error
    except ValueError as error:
        raise EditFoundryError(f"{path}: not JSON; delete {folder} to have it built again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EditFoundryError(f"{path}: not an index of format {FORMAT}; delete {folder} to have it built again")
    return content


def _write(folder: Path, content: dict[str, Any]) -> None:
    replace_file(folder / INDEX, (canonical_json(content) + "\n").encode())
