"""Datasets that are all index: a real index.parquet and manifest over tars that are nothing but holes."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from training_data import write_manifest

from editfoundry.core.hashing import sha256_file
from editfoundry.training.config import DataConfig, DatasetSpec
from editfoundry.training.data.index import ShardIndex, build_index
from editfoundry.training.data.tables import MEMBERS, SCHEMA

SIDES = {"square": (512, 512), "wide": (768, 384), "tall": (384, 768)}


@dataclass(frozen=True)
class Many:
    """`count` samples of one edit type and shape (of `SIDES`), with a reference picture or without."""

    count: int
    type: str = "add"
    shape: str = "square"
    reference: bool = False


def hollow_dataset(folder: Path, samples: Sequence[Many], per_shard: int = 1000) -> Path:
    """Write the dataset; sample n takes 4096 bytes of its shard and has the key `s<n>`."""
    folder.mkdir(parents=True)
    ends = np.cumsum([many.count for many in samples])
    writer = pq.ParquetWriter(folder / "index.parquet", SCHEMA)
    files: dict[str, Any] = {}
    for first in range(0, int(ends[-1]), per_shard):
        name = f"train-{first // per_shard:06d}.tar"
        numbers = np.arange(first, min(first + per_shard, ends[-1]))
        chosen = [samples[place] for place in np.searchsorted(ends, numbers, side="right")]
        writer.write_table(_table(name, numbers, chosen))
        files[name] = _file(folder / name, 4096 * len(numbers) + 1024, len(numbers))
    writer.close()
    return _finish(folder, files, int(ends[-1]))


def _table(shard: str, numbers: NDArray[np.int64], samples: Sequence[Many]) -> pa.Table:
    starts = (numbers - numbers[0]) * 4096 + 512
    columns: dict[str, Any] = {
        "key": [f"s{number}" for number in numbers],
        "shard": [shard] * len(numbers),
        "type": [many.type for many in samples],
        "instruction": ["x" * (number % 50) for number in numbers],
        "parent_key": [None] * len(numbers),
        "width": [SIDES[many.shape][0] for many in samples],
        "height": [SIDES[many.shape][1] for many in samples],
    }
    for place, member in enumerate(MEMBERS):
        absent = np.array([member == "reference" and not many.reference for many in samples])
        columns[f"offset_{member}"] = pa.array(starts + place * 600, mask=absent)
        columns[f"length_{member}"] = pa.array(np.full(len(numbers), 100), mask=absent)
    return pa.table(columns, schema=SCHEMA)


def _file(path: Path, size: int, rows: int) -> dict[str, Any]:
    with path.open("xb") as file:
        os.truncate(file.fileno(), size)
    return {"bytes": size, "rows": rows, "sha256": "0" * 64}


def _finish(folder: Path, files: dict[str, Any], rows: int) -> Path:
    path = folder / "index.parquet"
    files["index.parquet"] = {"bytes": path.stat().st_size, "rows": rows, "sha256": sha256_file(path)}
    write_manifest(folder, files, rows)
    return folder


def rewrite(folder: Path, files: dict[str, Any], change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Change the rows of a dataset's index.parquet, and list the new file in the manifest as if it were right.

    files: the manifest's, whose rows per shard stay what they were.
    """
    path = folder / "index.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    _finish(folder, files, len(rows))


def index_of(folder: Path, *samples: Many) -> ShardIndex:
    """An index in `folder` of one dataset of those samples."""
    return build_index([DatasetSpec(path=str(hollow_dataset(folder / "dataset", samples)))], "train", folder / "index")


def data_config(*weights: float, types: dict[str, float] | None = None) -> DataConfig:
    """Data of datasets of those weights, whatever their paths, in buckets of three shapes of 512² pixels."""
    return DataConfig(
        datasets=tuple(
            DatasetSpec(path=f"d{number}", weight=weight) for number, weight in enumerate(weights or (1.0,))
        ),
        types=types or {},
        size=512,
        aspect_ratios=(0.5, 1.0, 2.0),
    )
