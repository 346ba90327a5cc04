"""The edges of a finished dataset, one by one, for whoever judges or shows them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import seed_for
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


def sample_edges(dataset: Path, most: int, seed: int = 0) -> list[Edge]:
    """At most so many edges of a dataset folder, spread over photographs and types, the same ones for the same seed.

    They are of the split val; those of train follow where val has too few. Photographs take turns in an order drawn by
    hash, and each gives an edge of the type that came up least so far. Memory grows with `most`, not with the dataset.
    Raises what `read_edges` does.
    """
    chosen = _spread(read_edges(dataset, "val"), most, seed)
    if len(chosen) < most:
        chosen += _spread(read_edges(dataset, "train"), most - len(chosen), seed)
    return chosen


def _spread(edges: Iterable[Edge], most: int, seed: int) -> list[Edge]:
    photographs: dict[tuple[int, str], list[Edge]] = {}
    for edge in edges:
        photograph = (seed_for("sample", seed, edge.photograph), edge.photograph)
        if photograph not in photographs and len(photographs) >= most:
            last = max(photographs)
            if photograph > last:
                continue
            del photographs[last]
        photographs.setdefault(photograph, []).append(edge)
    chosen: list[Edge] = []
    types = Counter[str]()
    while len(chosen) < most and (left := [photographs[one] for one in sorted(photographs) if photographs[one]]):
        for mine in left[: most - len(chosen)]:
            edge = min(mine, key=lambda one: (types[one.type], seed_for("sample", seed, one.key)))
            mine.remove(edge)
            types[edge.type] += 1
            chosen.append(edge)
    return chosen


def other_instructions(edges: Sequence[Edge]) -> list[str | None]:
    """For each edge the instruction of the next one of another type, around the end; None where all are of one type."""
    found: list[str | None] = [None] * len(edges)
    following: Edge | None = None
    for place in reversed(range(2 * len(edges))):
        edge, after = edges[place % len(edges)], edges[(place + 1) % len(edges)]
        following = after if after.type != edge.type else following
        found[place % len(edges)] = following.instruction if following is not None else None
    return found
