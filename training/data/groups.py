"""Rows of an index sorted into groups of one bucket, dataset and edit type, in one memory-mapped file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json, fingerprint
from editfoundry.data_engine.ledger import replace_file
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.index import ROW, ROWS, ShardIndex, map_array

FORMAT = 1
_CHUNK = 1 << 16


class Group(NamedTuple):
    """Samples of one bucket, dataset and type (numbers of the index): `rows` many, from `start` in the file on."""

    bucket: int
    dataset: int
    type: int
    start: int
    rows: int


def grouped(index: ShardIndex, buckets: Buckets, folder: Path) -> tuple[tuple[Group, ...], NDArray[np.int64]]:
    """Groups in order of (bucket, dataset, type), and the rows of all of them, memory-mapped.

    Built in `folder` where it is not there yet, in two passes over the index: memory does not grow with its rows.
    Raises EditFoundryError when what is there is damaged.
    """
    grids = [[grid.width, grid.height] for grid in buckets.grids]
    name = f"groups-{fingerprint(FORMAT, index.digest, grids)}"
    listing, rows = folder / f"{name}.json", folder / f"{name}.bin"
    if not listing.is_file():
        _build(index, buckets, listing, rows)
    try:
        groups = tuple(Group(*group) for group in json.loads(listing.read_bytes()))
        found = map_array(rows, np.dtype(np.int64))
    except (OSError, ValueError, TypeError) as error:
        raise EditFoundryError(f"{listing}: damaged ({error}); delete it to have it built again") from error
    if not len(found) == len(index) == sum(group.rows for group in groups):
        raise EditFoundryError(
            f"{rows}: not the {len(index)} rows of the index; delete {listing} to have it built again"
        )
    return groups, found


def _build(index: ShardIndex, buckets: Buckets, listing: Path, path: Path) -> None:
    shape = (len(buckets), len(index.datasets), len(index.types))
    counts = np.zeros(shape, np.int64).ravel()
    for numbers in _group_numbers(index, buckets, shape):
        counts += np.bincount(numbers, minlength=len(counts))
    starts = np.cumsum(counts) - counts
    temporary = path.with_name(f".{path.name}")
    rows = np.memmap(temporary, np.int64, mode="w+", shape=(len(index),))
    filled, start = starts.copy(), 0
    for numbers in _group_numbers(index, buckets, shape):
        by_group = np.argsort(numbers, kind="stable")
        here = np.bincount(numbers, minlength=len(counts))
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(here) - here, here)
        rows[filled[numbers[by_group]] + within] = start + by_group
        filled += here
        start += len(numbers)
    rows.flush()
    temporary.replace(path)
    groups = [
        [int(part) for part in np.unravel_index(number, shape)] + [int(starts[number]), int(counts[number])]
        for number in np.flatnonzero(counts)
    ]
    replace_file(listing, (canonical_json(groups) + "\n").encode())


def _group_numbers(index: ShardIndex, buckets: Buckets, shape: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
    """The group of each row, some rows at a time, read in order and not through the index's mapping."""
    with (index.folder / ROWS).open("rb") as file:
        while len(rows := np.fromfile(file, ROW, _CHUNK)):
            bucket = buckets.of_rows(rows)
            yield np.ravel_multi_index((bucket, rows["dataset"], rows["type"]), shape).astype(np.int64)
