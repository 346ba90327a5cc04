import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from editfoundry.data_engine.ledger import BrokenCommit, Commit, ShardWriter, StageStore, link_exclusive, replace_file
from editfoundry.data_engine.records import Reject, Source
from editfoundry.data_engine.stages.base import Item


def source(number: int) -> Source:
    return Source(id=f"s{number}", sha256=f"{number:064d}", uri=f"file:///s{number}")


def fill(writer: ShardWriter, count: int = 3) -> None:
    for number in range(count):
        if number == 1:
            writer.reject(number, Reject(stage="toy", id=f"s{number}", reason="odd"), primary=True)
        else:
            writer.add(number, Item(source(number), {"b.txt": b"b" * number, "a.txt": b"a"}))
    writer.reject(0, Reject(stage="toy", id="r0", reason="tiny", unit="region"), primary=False)


def commit_one(store: StageStore, shard: int = 0, worker: str = "w0") -> Commit:
    with store.writer(shard) as writer:
        fill(writer)
        return writer.commit(3, worker)


def test_commit_counts_and_reads_back(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "toy", "0" * 16)
    commit = commit_one(store)
    assert (commit.inputs, commit.accepted, commit.rejected, commit.outputs) == (3, 2, 1, 2)
    assert (commit.rejects, commit.parts) == ({"odd": 1}, {"region": {"tiny": 1}})
    assert commit == store.commit(0)
    assert [row.id for row in store.rows(commit)] == ["s0", "s2"]
    assert [row.input for row in store.rows(commit)] == [0, 2]
    assert [(entry.input, entry.primary) for entry in store.rejects(commit)] == [(1, True), (0, False)]
    assert all(file.sha256[:16] in file.name for file in commit.files)
    assert not list(tmp_path.rglob(".tmp-*"))


def test_nothing_exists_before_the_commit_record(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "toy", "0" * 16)
    with pytest.raises(ZeroDivisionError), store.writer(0) as writer:
        fill(writer)
        raise ZeroDivisionError
    assert store.shards() == []
    assert list(store.files.iterdir()) == []


def test_sealed_but_unlinked_files_are_strays(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "toy", "0" * 16)
    commit_one(store, 0)
    with store.writer(1) as writer:
        fill(writer)
        writer.add(3, Item(source(3)))
        writer.seal(4)
    before = {file.name for file in store.commit(0).files}
    assert {path.name for path in store.files.iterdir()} > before
    store.remove_strays()
    assert {path.name for path in store.files.iterdir()} == before


def test_loser_of_a_race_discards_its_own_and_keeps_the_winners(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "toy", "0" * 16)
    with store.writer(0) as slow:
        fill(slow)
        winner = commit_one(store, worker="fast")
        assert slow.commit(3, "slow") == winner
    assert winner.worker == "fast"
    assert {path.name for path in store.files.iterdir()} == {file.name for file in winner.files}

    with store.writer(1) as different:
        different.add(0, Item(source(9), {"a.txt": b"other"}))
        winner = commit_one(store, 1)
        assert different.commit(1) == winner
    assert [row.id for row in store.rows(winner)] == ["s0", "s2"]
    assert len(list(store.files.glob("00001.*"))) == len(winner.files)


@pytest.mark.parametrize("inputs", [2, 4])
def test_unaccounted_inputs_refuse_to_commit(tmp_path: Path, inputs: int) -> None:
    store = StageStore(tmp_path, "toy", "0" * 16)
    with store.writer(0) as writer:
        fill(writer)
        with pytest.raises(RuntimeError, match=f"toy shard 0: {inputs} inputs"):
            writer.commit(inputs)
    assert store.shards() == []


def test_accepted_and_rejected_at_once_refuses_to_commit(tmp_path: Path) -> None:
    with StageStore(tmp_path, "toy", "0" * 16).writer(0) as writer:
        writer.add(0, Item(source(0)))
        writer.reject(0, Reject(stage="toy", id="s0", reason="odd"), primary=True)
        with pytest.raises(RuntimeError, match=r"\[0\] are both accepted and rejected"):
            writer.commit(1)


def test_commit_record_refuses_wrong_sums(tmp_path: Path) -> None:
    data = json.loads(commit_one(StageStore(tmp_path, "toy", "0" * 16)).to_json())
    with pytest.raises(ValidationError, match="4 inputs are not 2 accepted"):
        Commit.model_validate({**data, "inputs": 4})
    with pytest.raises(ValidationError, match="reasons add up to 2"):
        Commit.model_validate({**data, "rejects": {"odd": 2}})


def test_damaged_or_misplaced_records_are_named(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "toy", "0" * 16)
    commit_one(store, 0)
    store.record_path(1).write_bytes(store.record_path(0).read_bytes())
    with pytest.raises(BrokenCommit, match="of another shard"):
        store.commit(1)
    store.record_path(0).write_bytes(b"{")
    with pytest.raises(BrokenCommit, match="damaged commit record"):
        store.commit(0)


def test_digest_follows_content_and_not_time_or_worker(tmp_path: Path) -> None:
    stores = [StageStore(tmp_path / name, "toy", "0" * 16) for name in "ab"]
    for store, worker in zip(stores, ("w0", "w1"), strict=True):
        commit_one(store, worker=worker)
    assert stores[0].digest() == stores[1].digest()
    with stores[0].writer(1) as writer:
        writer.add(0, Item(source(0)))
        writer.commit(1)
    assert stores[0].digest() != stores[1].digest()


def test_link_exclusive_and_replace(tmp_path: Path) -> None:
    path = tmp_path / "record"
    assert link_exclusive(path, b"one")
    assert not link_exclusive(path, b"two")
    assert path.read_bytes() == b"one"
    replace_file(path, b"three")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("record", b"three")]


FULL = """
import resource, sys
from pathlib import Path
from editfoundry.data_engine.ledger import DiskFull, StageStore
from editfoundry.data_engine.records import Source
from editfoundry.data_engine.stages.base import Item
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
store = StageStore(Path(sys.argv[1]), "toy", "0" * 16)
try:
    with store.writer(0) as writer:
        for i in range(100):
            writer.add(i, Item(Source(id=f"s{i}", sha256="0", uri="u"), {"a.txt": bytes(1000)}))
        writer.commit(100)
except DiskFull as error:
    print(error)
"""


def test_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "File too large; committed shards are intact: free some space" in result.stdout
    assert len(result.stdout.splitlines()) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
