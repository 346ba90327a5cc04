"""Groups sources that show the same photograph, so that sizes, twins and crops of it count once."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Barrier, Item

TILE = 1024


class DuplicatesConfig(Config):
    """max_distance: differing bits of the 64-bit perceptual hash up to which two photographs are the same picture.

    crops: compare the hashes of their crops as well, which finds stereo twins and crops, for a hundred times the work;
    turn it off from some hundred thousand photographs on.
    """

    max_distance: int = Field(default=6, ge=0, le=64)
    crops: bool = True


class DuplicateGroup(Record):
    """One group of two or more sources. `keeper_uri` goes on; `uris` are all members, `sha256s` their contents' hashes.

    `id` is the smallest content hash of the group, cut to 16 digits.
    """

    id: str
    keeper: str
    keeper_sha256: str
    keeper_uri: str
    uris: tuple[str, ...]
    sha256s: tuple[str, ...]


class Duplicates(Barrier):
    """Joins sources with the same content, and photographs whose perceptual hashes lie close; closeness chains.

    Of a group the source with the most pixels is kept, then the one with the smallest uri. Frame pairs of one video
    resemble each other by design: only their content (video and frame) is compared.
    """

    name: ClassVar[str] = "duplicates"
    row: ClassVar[type[Record]] = DuplicateGroup
    reads: ClassVar[tuple[str, ...]] = ("ingest",)
    config: DuplicatesConfig

    def gather(self, rows: Callable[[str], Iterator[tuple[int, dict[str, Any]]]]) -> Iterator[Item]:
        sources = [_Entry(Source.model_validate(row), self.config.crops) for _, row in rows("ingest")]
        sources.sort(key=lambda entry: (entry.id, entry.uri))
        groups = (_group(members) for members in _joined(sources, self.config.max_distance) if len(members) > 1)
        yield from (Item(group) for group in sorted(groups, key=lambda group: (group.id, group.keeper_uri)))


class _Entry:
    """What grouping needs of a source; a run has millions, so nothing else is kept."""

    __slots__ = ("hashes", "id", "pixels", "sha256", "uri")

    def __init__(self, source: Source, crops: bool) -> None:
        self.id, self.sha256, self.uri = source.id, source.sha256, source.uri
        self.pixels = source.width * source.height
        photograph = source.kind == "photograph"
        texts = (source.phash, *(source.phash_crops if crops else ())) if photograph else ()
        self.hashes = np.array([int(text, 16) for text in texts], np.uint64)


def _group(members: Sequence[_Entry]) -> DuplicateGroup:
    keeper = min(members, key=lambda entry: (-entry.pixels, entry.uri))
    return DuplicateGroup(
        id=min(entry.id for entry in members),
        keeper=keeper.id,
        keeper_sha256=keeper.sha256,
        keeper_uri=keeper.uri,
        uris=tuple(sorted(entry.uri for entry in members)),
        sha256s=tuple(sorted({entry.sha256 for entry in members})),
    )


def _joined(entries: Sequence[_Entry], max_distance: int) -> list[list[_Entry]]:
    """Connected groups of entries, by union-find over equal ids and close hashes."""
    parent = list(range(len(entries)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(a: int, b: int) -> None:
        low, high = sorted((root(a), root(b)))
        parent[high] = low

    for index in range(1, len(entries)):
        if entries[index].id == entries[index - 1].id:
            join(index - 1, index)
    owner = [index for index, entry in enumerate(entries) for _ in entry.hashes]
    hashes = np.concatenate([np.zeros(0, np.uint64), *(entry.hashes for entry in entries)])
    for a, b in _close_pairs(hashes, max_distance):
        join(owner[a], owner[b])
    groups: dict[int, list[_Entry]] = {}
    for index, entry in enumerate(entries):
        groups.setdefault(root(index), []).append(entry)
    return list(groups.values())


def _close_pairs(hashes: NDArray[np.uint64], max_distance: int) -> Iterator[tuple[int, int]]:
    """Pairs of 64-bit hashes that differ in at most `max_distance` bits; a pair may come more than once.

    Cut into `max_distance` + 1 bands, two such hashes agree in at least one whole band (pigeonhole), so only hashes
    that share a band's value are compared.
    """
    bands = min(max_distance + 1, 64)
    edges = [64 * band // bands for band in range(bands + 1)]
    for low, high in pairwise(edges):
        values = hashes >> np.uint64(low) & np.uint64((1 << (high - low)) - 1)
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.diff(values[order], prepend=values[order][:1] ^ np.uint64(1)))
        for bucket in np.split(order, starts[1:]):
            yield from _compared(hashes, bucket, max_distance)


def _compared(
    hashes: NDArray[np.uint64], bucket: NDArray[np.intp], max_distance: int
) -> Iterator[tuple[int, int]]:
    """Close pairs among the hashes at the indices in `bucket`, a tile at a time to bound memory."""
    for top in range(0, len(bucket), TILE):
        for left in range(top, len(bucket), TILE):
            rows, columns = bucket[top : top + TILE], bucket[left : left + TILE]
            close = np.bitwise_count(hashes[rows, None] ^ hashes[None, columns]) <= max_distance
            for row, column in np.argwhere(close).tolist():
                if rows[row] < columns[column]:
                    yield int(rows[row]), int(columns[column])
