"""Removing a source or donor, and everything made from it, from every artifact of a run.

First every affected shard is written again without it, beside the old files; then one journal names the records to
replace, and applying it is repeated until it is finished, whatever interrupts it. Accounts still add up afterwards: the
stage that took the source in shows a `forgotten` reject under an anonymous id, and the stages below never saw it.
"""

import json
import re
import shutil
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from editfoundry.core.chat.ledger import forget_subjects
from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.data_engine.dataset import publish
from editfoundry.data_engine.ledger import Commit, ShardWriter, StageStore, replace_file
from editfoundry.data_engine.records import Record, Reject
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import RejectRow, Row, read_member
from editfoundry.data_engine.stages.emit import Emit
from editfoundry.data_engine.tombstones import FORGOTTEN, Tombstones, forgotten_reject, identifiers

_OWN_HASH = ("sha256", "source_sha256", "photograph_sha256", "donor", "donors")
_OWN_ID = ("id", "source_id")


class StillThere(EditFoundryError):
    """Something outside the artifacts still names what was forgotten."""


@dataclass
class Target:
    """What is to be forgotten: the value asked for, and the hashes, ids and addresses of the sources it names."""

    value: str
    hashes: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)

    def owns(self, value: Any, key: str = "") -> bool:
        """Whether a row was made from a target: its hash or id stands where rows name what they come from."""
        if isinstance(value, dict):
            return any(self.owns(inner, name) for name, inner in value.items())
        if isinstance(value, list):
            return any(self.owns(inner, key) for inner in value)
        return (key in _OWN_HASH and value in self.hashes) or (key in _OWN_ID and value in self.ids) or (
            key in (*_OWN_ID, "uri") and value in self.addresses)

    def spellings(self) -> list[str]:
        """Texts that may be nowhere any more, longest first: hashes, ids, addresses, paths of `file:` addresses."""
        paths = {unquote(urlsplit(address).path) for address in self.addresses if address.startswith("file:")}
        return sorted({*self.hashes, *self.addresses, *self.ids, *paths}, key=lambda text: (-len(text), text))

    def mention(self) -> re.Pattern[str]:
        """Matches a spelling in text or JSON where it stands on its own, not inside a longer name or path."""
        escaped = {json.dumps(text, ensure_ascii=False)[1:-1] for text in self.spellings()}
        words = sorted({*self.spellings(), *escaped}, key=lambda text: (-len(text), text))
        return re.compile(rf"(?<![\w./~-])(?:{'|'.join(map(re.escape, words))})(?![\w/~-]|\.\w)")


@dataclass(frozen=True)
class Forgotten:
    """What a forget did: sources and donors found, and rows and shards it touched, over all configurations."""

    sources: int
    rows: int
    shards: int


class _Journal(Record):
    """What an interrupted forget has still to put in place."""

    tombstones: Tombstones
    commits: tuple[Commit, ...]

    @classmethod
    def read(cls, path: Path) -> "_Journal":
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise EditFoundryError(f"{path}: damaged, so the forgetting that wrote it cannot be finished; delete this "
                                   "file and forget again") from error


def forget(run: RunDir, value: str) -> Forgotten:
    """Remove the source or donor with this content hash, address or source URL, and all that was made from it.

    Raises UsageError when nothing in the run matches, StillThere when a file of the user's own in RUN still names it.
    """
    with run.lock():
        finish_journal(run)
        for store in run.all_stores():
            store.remove_strays()
        target = find_target(run, value)
        if not target.hashes and not target.ids:
            raise UsageError(f"{value}: no source or donor of {run.path} has this hash, address or URL")
        tombstones = run.tombstones().with_values([value, *target.hashes, *_config_mentions(run, target)])
        compaction = Compaction(run, target, tombstones)
        commits = compaction.write()
        _scrub_logs(run, target)
        forget_subjects(run.chat, target.hashes)
        replace_file(run.journal_file, _Journal(tombstones=tombstones, commits=tuple(commits)).to_json().encode())
        finish_journal(run)
        left = sorted(_traces(run, target))
        if left:
            raise StillThere(f"removed from every artifact, but {', '.join(left)} still names it; delete that yourself")
        return Forgotten(len(target.hashes) or 1, compaction.removed_rows, len(commits))


def finish_journal(run: RunDir) -> None:
    """Finish a forget that was interrupted after it had written everything; does nothing otherwise. Under the lock."""
    if not run.journal_file.exists():
        return
    journal = _Journal.read(run.journal_file)
    replace_file(run.tombstone_file, journal.tombstones.to_json().encode())
    run.scrub_config()
    for commit in journal.commits:
        replace_file(run.store(commit.stage, commit.fingerprint).record_path(commit.shard), commit.to_json().encode())
    for store in run.all_stores():
        store.remove_strays()
    _publish_again(run)
    for report in run.path.glob("report*"):
        shutil.rmtree(report) if report.is_dir() else report.unlink()
    run.journal_file.unlink()


def find_target(run: RunDir, value: str) -> Target:
    """The sources and donors a hash, address or URL names, in every configuration the run has had."""
    target = Target(value)
    for row in _origin_rows(run):
        if value in identifiers(row):
            target.hashes.add(row["sha256"])
    for reject in _rejects(run):
        # What ingest (of an import: render) refused has no row; its detail begins with its address.
        named = reject.stage in ("ingest", "render") and reject.detail.startswith(f"{value}:")
        if named or value in (reject.id, reject.source_sha256):
            target.ids.add(reject.id)
            target.hashes |= {reject.source_sha256} - {""}
    kept: set[str] = set()
    for row in _origin_rows(run):
        if row["sha256"] not in target.hashes:
            kept.update(identifiers(row))
            continue
        target.ids |= {row["id"]} if row.get("id") else set()
        target.addresses.update(identifiers(row))
    target.addresses.add(value)
    target.addresses -= target.hashes | kept
    return target


class Compaction:
    """Writes every affected shard again without the target, beside the old files."""

    def __init__(self, run: RunDir, target: Target, tombstones: Tombstones) -> None:
        self.run, self.target, self.tombstones = run, target, tombstones
        self.mention = target.mention()
        self.removed_rows = 0
        self._commits: list[Commit] = []
        self._gone: dict[tuple[str, str], dict[int, set[int]]] = {}

    def write(self) -> list[Commit]:
        """Returns the records that are to replace the present ones."""
        for store in self.run.all_stores():
            self._compact(store)
        return self._commits

    def _compact(self, store: StageStore) -> dict[int, set[int]]:
        """Compact a stage after those above it; returns, by shard, which of its output rows are gone."""
        key = (store.stage, store.fingerprint)
        if key not in self._gone:
            self._gone[key] = {}
            for commit in store.commits():
                above = self._compact(self.run.store(*commit.upstream)) if commit.upstream else {}
                self._gone[key][commit.shard] = self._shard(store, commit, above.get(commit.shard, set()))
        return self._gone[key]

    def _shard(self, store: StageStore, commit: Commit, gone_inputs: set[int]) -> set[int]:
        rows, rejects = list(store.rows(commit)), list(store.rejects(commit))
        owned = {number for number, row in enumerate(rows) if self.target.owns(row.data())}
        gone = owned | {number for number, row in enumerate(rows) if row.input in gone_inputs}
        kept = [(row, self.mention.sub(FORGOTTEN, row.record)) for number, row in enumerate(rows) if number not in gone]
        emptied = {rows[number].input: rows[number] for number in sorted(owned, reverse=True)}
        for row, _ in kept:
            emptied.pop(row.input, None)
        left = self._rejects(store.stage, rejects, gone_inputs, emptied)
        if not gone and not gone_inputs and left == rejects and all(row.record == text for row, text in kept):
            return gone
        self.removed_rows += len(gone)
        with store.writer(commit.shard, commit.upstream) as writer:
            self._write(store, commit, writer, kept, left, sorted(gone_inputs))
        return gone

    def _rejects(self, stage: str, rejects: list[RejectRow], gone_inputs: set[int], emptied: dict[int, Row],
                 ) -> list[RejectRow]:
        """The rejects that stay, with a forgotten one for each input that has nothing left."""
        left = [RejectRow(position, True, forgotten_reject(stage, self._anonymous(row.data()), _unit(row)))
                for position, row in emptied.items() if position not in gone_inputs]
        for entry in rejects:
            if entry.input in gone_inputs or entry.input in emptied:
                continue
            data = entry.reject.model_dump(mode="json")
            if not self.target.owns(data):
                text = self.mention.sub(FORGOTTEN, entry.reject.to_json())
                left.append(RejectRow(entry.input, entry.primary, Reject.model_validate_json(text)))
            elif entry.primary:
                named = self._anonymous({"sha256": entry.reject.source_sha256})
                left.append(RejectRow(entry.input, True, forgotten_reject(stage, named, entry.reject.unit)))
        return sorted(left, key=lambda entry: entry.input)

    def _write(self, store: StageStore, commit: Commit, writer: ShardWriter, kept: list[tuple[Row, str]],
               rejects: list[RejectRow], gone_inputs: list[int]) -> None:
        for row, text in kept:
            members = row.members
            if members:
                tar = store.tar(commit, row.group)
                blobs = {name: read_member(tar, span) for name, span in members.items()}
                members = writer.add_members(row.id, row.group, blobs)
            position = row.input - bisect_left(gone_inputs, row.input)
            writer.add_row(Row(row.id, position, text, row.group, members))
        for entry in rejects:
            writer.reject(entry.input - bisect_left(gone_inputs, entry.input), entry.reject, entry.primary)
        new = writer.seal(commit.inputs - len(gone_inputs))
        same = ("digest", "elapsed_s", "committed_at", "worker", "versions", "steps")
        self._commits.append(new.model_copy(update={name: getattr(commit, name) for name in same}))

    def _anonymous(self, record: dict[str, Any]) -> str:
        return self.tombstones.match(record) or self.tombstones.anonymous(self.target.value)


def _unit(row: Row) -> str:
    return "sample" if "turns" in row.data() else "source"


def _origin_rows(run: RunDir) -> Iterator[dict[str, Any]]:
    """Rows that are a source or donor, or hold the source they were made of, of every stage at every fingerprint."""
    for store in run.all_stores():
        for commit in store.commits():
            for row in store.rows(commit):
                data = row.data()
                # A sample says of what it was made; of an import nothing else does.
                origin = data if isinstance(data.get("sha256"), str) else data.get("source")
                if isinstance(origin, dict) and isinstance(origin.get("sha256"), str):
                    yield origin


def _rejects(run: RunDir) -> Iterator[Reject]:
    for store in run.all_stores():
        for commit in store.commits():
            for entry in store.rejects(commit):
                yield entry.reject


def _publish_again(run: RunDir) -> None:
    """Replace the dataset by what is left; where the current configuration has none, an older one's is deleted."""
    state = run.last_state()
    emit = next((stage for stage in state.stages if stage.name == Emit.name), None) if state else None
    finished = state and emit and emit.fingerprint and len(
        run.store(Emit.name, emit.fingerprint).shards()) == state.shards
    if finished:
        publish(run)
    elif run.dataset.exists():
        shutil.rmtree(run.dataset)


def _config_mentions(run: RunDir, target: Target) -> list[str]:
    """Texts of config.yaml that name the target: its address, as a path or as a URI."""
    texts = set(_texts(run.settings()))
    return sorted(filter(target.mention().search, texts))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _scrub_logs(run: RunDir, target: Target) -> None:
    """Drop the log lines that mention the target."""
    mention = target.mention()
    for path in sorted(run.logs.glob("*")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not mention.search(line)]
        if len(kept) != len(lines):
            replace_file(path, "".join(kept).encode())


def _traces(run: RunDir, target: Target) -> Iterator[str]:
    """Files of RUN, outside the artifacts just rewritten, whose bytes still name the target."""
    mention = re.compile(target.mention().pattern.encode())
    longest = max(map(len, target.spellings())) + 2
    for path in run.path.rglob("*"):
        if path.is_file() and not path.is_relative_to(run.stages) and not path.is_relative_to(run.dataset):
            with path.open("rb") as file:
                tail = b""
                while chunk := file.read(1 << 20):
                    if mention.search(tail + chunk):
                        yield str(path.relative_to(run.path))
                        break
                    tail = chunk[-longest:]
