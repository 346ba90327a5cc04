"""Rejects of a run by stage and reason, with a few examples of each and their pictures where the pixels were kept."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from editfoundry.core.hashing import sha256
from editfoundry.core.pages.thumbnails import Thumbnails
from editfoundry.data_engine.ledger import StageStore
from editfoundry.data_engine.records import Reject, Sample, Source
from editfoundry.data_engine.shards import Row, read_member

EXAMPLES = 4
UNSURE = "unsure_label"
UNSURE_EXAMPLES = 12

# Negated hash and negated serial number, which order examples; shard; the reject.
Entry = tuple[int, int, int, Reject]


@dataclass(frozen=True)
class Example:
    """One reject. Pictures are keys of the page's image store: `before` alone for a source, both for a sample."""

    id: str
    detail: str
    type: str
    score: str | None
    instructions: tuple[str, ...] = ()
    before: str | None = None
    after: str | None = None
    mask: str | None = None
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class RejectGroup:
    """All rejects of one stage, unit and reason."""

    stage: str
    unit: str
    reason: str
    count: int
    examples: tuple[Example, ...]


def reject_groups(stores: Mapping[str, StageStore], thumbnails: Thumbnails) -> list[RejectGroup]:
    """Groups in pipeline order, the largest of a stage first. Examples are chosen by the hash of their id."""
    counts: Counter[tuple[str, str, str]] = Counter()
    kept: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
    for stage, store in stores.items():
        for commit in store.commits():
            for row in store.rejects(commit):
                group = (stage, row.reject.unit, row.reject.reason)
                counts[group] += 1
                entry = (-int(sha256(row.reject.to_json())[:15], 16), -counts[group], commit.shard, row.reject)
                room = UNSURE_EXAMPLES if row.reject.reason == UNSURE else EXAMPLES
                if len(kept[group]) < room:
                    heapq.heappush(kept[group], entry)
                elif entry > kept[group][0]:
                    heapq.heapreplace(kept[group], entry)
    order = list(stores)
    groups = sorted(counts, key=lambda group: (order.index(group[0]), -counts[group], group))
    examples = _Pictures(stores, thumbnails).examples(entry for group in groups for entry in kept[group])
    return [RejectGroup(*group, counts[group], tuple(examples[entry[3]] for entry in sorted(kept[group], reverse=True)))
            for group in groups]


class _Pictures:
    """Finds the pixels of rejects: the rendered sample that a gate refused, or else the photograph of the source."""

    def __init__(self, stores: Mapping[str, StageStore], thumbnails: Thumbnails) -> None:
        self.stores, self.thumbnails = stores, thumbnails

    def examples(self, entries: Iterable[Entry]) -> dict[Reject, Example]:
        """One shard after the other, so that only one shard's rows are in memory."""
        by_shard: dict[int, list[Reject]] = defaultdict(list)
        for _, _, shard, reject in entries:
            by_shard[shard].append(reject)
        found: dict[Reject, Example] = {}
        for shard, rejects in sorted(by_shard.items()):
            samples, sources = self._rows("render", shard), self._rows("ingest", shard)
            for reject in rejects:
                found[reject] = self._example(reject, shard, samples, sources)
        return found

    def _rows(self, stage: str, shard: int) -> dict[str, Row]:
        store = self.stores.get(stage)
        if store is None or shard not in store.shards():
            return {}
        return {row.id: row for row in store.rows(store.commit(shard)) if row.members}

    def _example(self, reject: Reject, shard: int, samples: Mapping[str, Row], sources: Mapping[str, Row]) -> Example:
        score = None if reject.score is None else f"{reject.score:.4g}"
        plain = Example(reject.id, reject.detail, reject.type, score)
        if reject.stage != "render" and reject.id in samples:
            return self._sample(plain, shard, samples[reject.id])
        row = sources.get(reject.id) or _of_content(sources, reject.source_sha256)
        return plain if row is None else self._source(plain, shard, row)

    def _sample(self, plain: Example, shard: int, row: Row) -> Example:
        """The whole way from the first image to the last result; the mask where there is only one edit."""
        sample = row.parse(Sample)
        first, last = sample.edges[0], sample.edges[-1]
        before = self._picture("render", shard, row, first.source_node, first.source_sha256)
        after = self._picture("render", shard, row, last.result_node, last.result_sha256)
        mask = None
        if first is last and first.mask:
            key = f"{row.id}.{first.mask}"
            mask = self.thumbnails.overlay(key, lambda: self._read("render", shard, row, first.mask))
        return Example(plain.id, plain.detail, plain.type, plain.score,
                       tuple(turn.instruction for turn in sample.turns), before, after, mask,
                       *self.thumbnails.sizes[before])

    def _source(self, plain: Example, shard: int, row: Row) -> Example:
        source = row.parse(Source)
        before = self._picture("ingest", shard, row, "original", f"original.{source.id}")
        return Example(plain.id, plain.detail, plain.type, plain.score, (), before, None, None,
                       *self.thumbnails.sizes[before])

    def _picture(self, stage: str, shard: int, row: Row, member: str, key: str) -> str:
        return self.thumbnails.picture(key, lambda: self._read(stage, shard, row, member))

    def _read(self, stage: str, shard: int, row: Row, member: str) -> bytes:
        store = self.stores[stage]
        return read_member(store.tar(store.commit(shard), row.group), row.members[member])


def _of_content(sources: Mapping[str, Row], digest: str) -> Row | None:
    """The source with that content hash: rejects of regions and candidates have ids of their own."""
    if not digest:
        return None
    return next((row for row in sources.values() if row.data()["sha256"] == digest), None)
