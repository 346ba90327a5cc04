"""The gallery of a report: which accepted samples it shows, and each one's pictures and facts."""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from editfoundry.core.hashing import sha256
from editfoundry.core.pages.thumbnails import Thumbnails
from editfoundry.data_engine.report_ranks import worst_ranks
from editfoundry.data_engine.shards import read_member
from editfoundry.data_engine.stages.emit import SINGLE

MAX_CARDS = 400
_MIN_PER_STRATUM = 4
_GATE = "gate_"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Edit:
    """One edge as the gallery shows it. Pictures are keys of the page's image store; `start` says what it starts from.

    `facts` and `gates` are (name, value) as shown.
    """

    key: str
    type: str
    turn: int
    instruction: str
    start: str
    before: str
    after: str
    mask: str | None
    reference: str | None
    width: int
    height: int
    facts: tuple[tuple[str, str], ...]
    gates: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Card:
    """One sample: a single edit or a conversation.

    worst: its lowest rank among the gates, 0 to 1000; weakest: that gate and its value. text: what the search looks at.
    """

    id: str
    kind: str
    types: tuple[str, ...]
    origins: tuple[str, ...]
    split: str
    premise: str
    edits: tuple[Edit, ...]
    worst: int
    weakest: str
    text: str


class Sampler:
    """A stratified sample of samples, by type (or kind of conversation) and origin; all of them up to `limit`.

    Within a stratum samples are taken in the order of the hash of their id, so the choice depends on neither order nor
    size of the index. Shares are proportional, at least four of each stratum. Holds at most `limit` ids per stratum.
    """

    def __init__(self, limit: int = MAX_CARDS) -> None:
        self.limit = limit
        self._counts: Counter[tuple[str, str]] = Counter()
        self._kept: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)

    def add(self, row: Row) -> None:
        """Offer the sample of an index row; rows of later turns are ignored."""
        if row["turn"] > 1:
            return
        stratum = (row["type"] if is_single(row) else row["conversation_kind"], row["origin"])
        self._counts[stratum] += 1
        entry = (-int(sha256(row["conversation_id"])[:15], 16), row["conversation_id"])
        keep = heapq.heappush if len(self._kept[stratum]) < self.limit else heapq.heappushpop
        keep(self._kept[stratum], entry)

    @property
    def offered(self) -> int:
        """Samples seen."""
        return self._counts.total()

    def chosen(self) -> set[str]:
        """Ids of the samples to show."""
        total = self.offered
        share = min(1.0, self.limit / total) if total else 1.0
        ids: set[str] = set()
        for stratum, kept in self._kept.items():
            quota = max(_MIN_PER_STRATUM, int(self._counts[stratum] * share))
            ids.update(unit for _, unit in sorted(kept, reverse=True)[:quota])
        return ids


def is_single(row: Row) -> bool:
    """Whether an index row is a single edit, not a turn of a conversation."""
    return bool(row["conversation_kind"] == SINGLE)


def split_of(row: Row) -> str:
    """train or val, which the name of the row's shard begins with."""
    return str(row["shard"]).partition("-")[0]


class Gallery:
    """Builds cards from the index rows of chosen samples, reading each picture once into the page's store."""

    def __init__(self, dataset: Path, thumbnails: Thumbnails) -> None:
        self.dataset, self.thumbnails = dataset, thumbnails

    def cards(self, rows: Iterable[Row]) -> list[Card]:
        """One card a sample, in the order of the samples' first rows. Raises ImageError for a damaged picture."""
        samples: dict[str, list[Row]] = {}
        for row in rows:
            samples.setdefault(row["conversation_id"], []).append(row)
        ranks = worst_ranks({unit: [dict(_gates(row)) for row in edges] for unit, edges in samples.items()})
        return [self._card(unit, sorted(edges, key=_turn), ranks[unit]) for unit, edges in samples.items()]

    def _card(self, unit: str, rows: Sequence[Row], rank: tuple[int, str]) -> Card:
        first = rows[0]
        turns = {row["key"]: _turn(row) for row in rows}
        edits = tuple(self._edit(row, turns.get(row["parent_key"])) for row in rows)
        premise = "" if is_single(first) else json.loads(self._read(first, "json"))["conversation"]["premise"]
        words = [*(f"{edit.key} {edit.type} {edit.instruction}" for edit in edits), first["conversation_kind"], premise,
                 first["licence"], first["source_url"], first["photograph_sha256"]]
        return Card(unit, first["conversation_kind"], tuple(dict.fromkeys(edit.type for edit in edits)),
                    tuple(sorted({row["origin"] for row in rows})), split_of(first), premise, edits, *rank,
                    " ".join(words).casefold())

    def _edit(self, row: Row, parent: int | None) -> Edit:
        key = row["key"]
        return Edit(
            key, row["type"], _turn(row), row["instruction"], f"turn {parent}’s result" if parent else "the start",
            self.thumbnails.picture(row["source_sha256"], lambda: self._read(row, "source")),
            self.thumbnails.picture(row["result_sha256"], lambda: self._read(row, "result")),
            self.thumbnails.overlay(f"{key}.mask", lambda: self._read(row, "mask")) if row["length_mask"] else None,
            self.thumbnails.picture(f"{key}.reference", lambda: self._read(row, "reference"))
            if row["length_reference"] else None,
            row["width"], row["height"], tuple(_facts(row)),
            tuple((name, _readable(value)) for name, value in _gates(row)))

    def _read(self, row: Row, member: str) -> bytes:
        return read_member(self.dataset / row["shard"], (row[f"offset_{member}"], row[f"length_{member}"]))


def _turn(row: Row) -> int:
    return int(row["turn"])


def _gates(row: Row) -> Iterator[tuple[str, Any]]:
    """The gate values that this edge has, by name."""
    return ((name.removeprefix(_GATE), value) for name, value in row.items()
            if name.startswith(_GATE) and value is not None)


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    yield "Key", row["key"]
    yield "Size", f"{row['width']} × {row['height']}"
    yield "Mask", f"{row['mask_area']:.1%} of the image" if row["length_mask"] else "whole image"
    yield "Licence", row["licence"]
    if row["source_url"]:
        yield "Source", row["source_url"]
    yield "Photograph", row["photograph_sha256"][:16]
    if row["donors"]:
        yield "Donors", ", ".join(donor[:16] for donor in row["donors"])
    yield "Stack", row["stack"]
    yield "Shard", row["shard"]


def _readable(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
