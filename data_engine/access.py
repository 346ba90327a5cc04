"""Reading what other stages committed: members by record id, and barrier artifacts for `Stage.setup`."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from editfoundry.data_engine.ledger import StageStore
from editfoundry.data_engine.shards import Span, read_member
from editfoundry.data_engine.stages.base import Artifacts

SHARDS_IN_MEMORY = 32
Index = dict[str, tuple[Path, Mapping[str, Span]]]


class ShardMembers:
    """The members of one committed shard, by record id."""

    def __init__(self, store: StageStore, shard: int) -> None:
        self.store, self.shard = store, shard
        commit = store.commit(shard)
        tars = {file.group: store.files / file.name for file in commit.files if file.kind == "members"}
        self.index: Index = {row.id: (tars[row.group], row.members) for row in store.rows(commit) if row.members}

    def read(self, record_id: str) -> dict[str, bytes]:
        """Every member of a record. Raises RuntimeError if the shard stores none under that id."""
        tar, members = self._find(record_id)
        return {name: read_member(tar, span) for name, span in members.items()}

    def member(self, record_id: str, name: str) -> bytes:
        """One member of a record."""
        tar, members = self._find(record_id)
        if name not in members:
            raise RuntimeError(f"{self.store.stage} shard {self.shard}: {record_id} has no member {name!r}; "
                               f"it has {', '.join(sorted(members))}")
        return read_member(tar, members[name])

    def _find(self, record_id: str) -> tuple[Path, Mapping[str, Span]]:
        if record_id not in self.index:
            raise RuntimeError(f"{self.store.stage} shard {self.shard}: no pixels are stored for {record_id!r}")
        return self.index[record_id]


class CommittedArtifacts(Artifacts):
    """Artifacts of the stages already committed, at the fingerprints of the current configuration.

    The indexes of the last few shards stay in memory.
    Safe to use from the reading thread and the computing one.
    """

    def __init__(self, stores: Mapping[str, StageStore]) -> None:
        self.stores = stores
        self._lock = threading.Lock()
        self._members: OrderedDict[tuple[str, int], ShardMembers] = OrderedDict()

    def rows(self, stage: str) -> Iterator[dict[str, Any]]:
        store = self.stores[stage]
        for commit in store.commits():
            for row in store.rows(commit):
                yield row.data()

    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        return self.members(stage, shard).member(record_id, member)

    def members(self, stage: str, shard: int) -> ShardMembers:
        """The members of a committed shard, its index kept for the next call."""
        key = (stage, shard)
        with self._lock:
            if key not in self._members:
                self._members[key] = ShardMembers(self.stores[stage], shard)
                if len(self._members) > SHARDS_IN_MEMORY:
                    self._members.popitem(last=False)
            self._members.move_to_end(key)
            return self._members[key]
