"""The edges of a finished dataset, one by one, for whoever judges or shows them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import UsageError
from editfoundry.core.images import decode, decode_mask_png
from editfoundry.data_engine.shards import DamagedFile, read_member, read_table
from editfoundry.models.protocols import Image

TABLE = "index.parquet"
_SHARD = re.compile(r"(train|val)-[0-9]{6,}\.tar")
_COLUMNS = ("key", "shard", "type", "instruction", "photograph_sha256", "source_sha256", "width", "height")


@dataclass(frozen=True)
class Edge:
    """A row of a dataset's index, and its pictures when asked for. row: all columns.

    Pictures are uint8 [H, W, 3]; the mask is bool [H, W], None for an edit of the whole picture. They raise DamagedFile
    and ImageError.
    """

    dataset: Path
    row: Mapping[str, Any]

    @property
    def key(self) -> str:
        return str(self.row["key"])

    @property
    def type(self) -> str:
        return str(self.row["type"])

    @property
    def instruction(self) -> str:
        return str(self.row["instruction"])

    @property
    def photograph(self) -> str:
        """SHA-256 of the photograph that the edit, or its conversation, began with."""
        return str(self.row["photograph_sha256"])

    @property
    def split(self) -> str:
        """train or val."""
        return self.row["shard"].partition("-")[0]  # type: ignore[no-any-return]

    @cached_property
    def source(self) -> Image:
        return decode(self.read("source"))

    @cached_property
    def result(self) -> Image:
        return decode(self.read("result"))

    @cached_property
    def mask(self) -> NDArray[np.bool_] | None:
        return decode_mask_png(self.read("mask")).array if self.row["length_mask"] else None

    def span(self, member: str) -> tuple[Path, int, int]:
        """The file that holds a member's bytes, their offset and their length."""
        return self.dataset / self.row["shard"], self.row[f"offset_{member}"], self.row[f"length_{member}"]

    def read(self, member: str) -> bytes:
        """A member's bytes, as stored."""
        path, offset, length = self.span(member)
        return read_member(path, (offset, length))


def read_edges(dataset: Path, split: str | None = None) -> Iterator[Edge]:
    """The edges of a dataset folder in the order of its index, of one split or of both; nothing is decoded yet.

    Raises UsageError for a folder that is no dataset, DamagedFile for an index that names other files than its shards,
    or lacks a column.
    """
    table = dataset / TABLE
    if not table.is_file():
        raise UsageError(f"{dataset}: not a dataset (no {TABLE}); name the `dataset` folder of a finished run")
    for number, row in enumerate(read_table(table)):
        if missing := [name for name in _COLUMNS if row.get(name) is None]:
            raise DamagedFile(table, f"row {number} has no {missing[0]}")
        spans = [row[f"{what}_{member}"] for member in ("source", "result") for what in ("offset", "length")]
        if not _SHARD.fullmatch(row["shard"]) or not all(isinstance(value, int) and value >= 0 for value in spans):
            raise DamagedFile(table, f"row {number} names {row['shard'][:60]!r}, which is no shard, or no place in it")
        edge = Edge(dataset, row)
        if split is None or edge.split == split:
            yield edge
