import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_engine as toy

from editfoundry.core.errors import UsageError
from editfoundry.data_engine import forget as forgetting
from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.forget import Forgotten, StillThere, Target, forget
from editfoundry.data_engine.repair import repair
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table
from editfoundry.data_engine.tombstones import Tombstones

SECRET = "a face that nobody may see"
SHA = toy.sha256(SECRET)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run in two configurations whose source 4 is the secret; with this text it is a background donor too."""
    assert int(SHA, 16) % 4 == 1, "the toy catalogue takes every source whose hash is 1 modulo 4 as a background"
    sources = toy.write_sources(tmp_path / "src", 12, {2: "odd one", 4: SECRET, 7: "raise now"})
    toy.run_here(sources, tmp_path / "run")
    toy.run_here(sources, tmp_path / "run", instruct=toy.ToyInstructConfig(template="Put a {donor} there."))
    (tmp_path / "run/report").mkdir()
    (tmp_path / "run/report/index.html").write_text(SECRET)
    return RunDir(tmp_path / "run")


def again(run: RunDir, **options: Any) -> list[tuple[str, int]]:
    config = toy.ToyInstructConfig(template="Put a {donor} there.")
    return toy.run_here(run.path.parent / "src", run.path, instruct=config, **options)


def all_bytes(run: RunDir) -> Iterator[tuple[Path, bytes]]:
    """Every file of the run as it is, and every Parquet file uncompressed."""
    for path in sorted(run.path.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
            if path.suffix == ".parquet":
                yield path, json.dumps(list(read_table(path)), ensure_ascii=False, default=repr).encode()


def traces(run: RunDir, needles: list[str]) -> list[tuple[str, str]]:
    return [(path.name, needle) for path, data in all_bytes(run) for needle in needles if needle.encode() in data]


def commit_counts(run: RunDir) -> dict[str, list[int]]:
    return {row.stage: [row.inputs, row.accepted, row.rejected, row.outputs] for row in funnel(run).rows}


NEEDLES = [SECRET, SHA, "s004.txt", "https://example.org/s004", f"s_{SHA[:12]}"]


@pytest.mark.parametrize("value", ["sha", "uri", "url"])
def test_no_trace_is_left_anywhere(run: RunDir, value: str) -> None:
    uri = (run.path.parent / "src/s004.txt").as_uri()
    assert {needle for _, needle in traces(run, NEEDLES)} == set(NEEDLES)
    derived = sum(SHA in row["donors"] or row["photograph_sha256"] == SHA
                  for row in read_table(run.dataset / "index.parquet"))
    edges = commit_counts(run)["emit"][3]

    done = forget(run, {"sha": SHA, "uri": uri, "url": "https://example.org/s004"}[value])

    assert traces(run, NEEDLES) == []
    assert not (run.path / "report").exists()
    assert done.sources == 1
    assert done.rows > derived > 4
    assert verify(run) == []
    assert funnel(run).problems == ()
    assert commit_counts(run)["emit"][3] == edges - derived
    rows = {row.stage: row for row in funnel(run).rows}
    assert rows["ingest"].rejects == {"forgotten": 1}
    assert rows["catalogue"].rejects["forgotten"] == 1
    assert rows["ingest"].inputs == 12
    assert rows["filter"].inputs == 11


def test_a_later_run_does_not_bring_it_back(run: RunDir) -> None:
    forget(run, SHA)
    assert again(run) == []
    whole = toy.tree(run.path / "dataset")
    again(run, seed=5)
    assert traces(run, [SECRET, SHA, "https://example.org/s004"]) == []
    assert commit_counts(run)["ingest"] == [12, 11, 1, 11]
    again(run)
    assert toy.tree(run.path / "dataset") == whole


def test_a_forgotten_source_may_still_be_repaired_around(run: RunDir) -> None:
    forget(run, SHA)
    whole = toy.tree(run.dataset)
    mark = next(str(entry.fingerprint) for entry in run.state().stages if entry.name == "ingest")
    rejects = sorted(run.store("ingest", mark).files.glob("00001.rejects*"))[0]
    before = rejects.read_bytes()
    rejects.write_bytes(b"broken")
    repair(run, lambda state: again(run, known=state))
    assert rejects.read_bytes() == before
    assert verify(run) == []
    assert toy.tree(run.dataset) == whole
    assert traces(run, [SECRET, SHA]) == []


def test_a_donor_goes_with_everything_it_stands_in(run: RunDir) -> None:
    duck = toy.hashlib.sha256(b"cutout of a duck").hexdigest()
    with_duck = sum(duck in row["donors"] for row in read_table(run.dataset / "index.parquet"))
    edges = commit_counts(run)["emit"][3]
    assert with_duck > 0
    forget(run, duck)
    assert traces(run, [duck, "cutout of a duck"]) == []
    assert verify(run) == []
    assert funnel(run).problems == ()
    assert commit_counts(run)["emit"][3] == edges - with_duck
    assert commit_counts(run)["ingest"] == [12, 12, 0, 12]


def test_a_rejected_source_is_forgotten_too(run: RunDir) -> None:
    digest = toy.sha256("raise now")
    assert traces(run, [digest])
    forget(run, digest)
    assert traces(run, [digest, "raise now", "s007.txt"]) == []
    assert funnel(run).problems == ()
    assert verify(run) == []


def test_neighbours_stay_as_they_were(run: RunDir) -> None:
    kept = {row["key"]: row["result_sha256"] for row in read_table(run.dataset / "index.parquet")
            if SHA not in row["donors"] and row["photograph_sha256"] != SHA}
    forget(run, SHA)
    assert {row["key"]: row["result_sha256"] for row in read_table(run.dataset / "index.parquet")} == kept


@pytest.mark.parametrize("step", ["_publish_again", "publish"])
def test_an_interrupted_forget_is_finished_by_the_next_command(run: RunDir, monkeypatch: pytest.MonkeyPatch,
                                                               step: str) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(forgetting, step, die)
        with pytest.raises(Killed):
            forget(run, SHA)
    assert run.journal_file.exists()
    assert SHA not in run.journal_file.read_text()
    again(run)
    assert not run.journal_file.exists()
    assert verify(run) == []
    assert traces(run, NEEDLES) == []


def test_unknown_values_and_own_files_are_reported(run: RunDir) -> None:
    with pytest.raises(UsageError, match="no source or donor"):
        forget(run, "0" * 64)
    (run.path / "notes.txt").write_text(f"remember {SHA}")
    with pytest.raises(StillThere, match=r"notes\.txt still names it"):
        forget(run, SHA)


def test_a_configuration_that_names_the_source_is_scrubbed(run: RunDir) -> None:
    uri = (run.path.parent / "src/s004.txt").as_uri()
    text = run.config_file.read_text()
    run.config_file.write_text(text + f"extra: {uri}\n")
    assert isinstance(forget(run, SHA), Forgotten)
    assert "extra: forgotten" in run.config_file.read_text()
    assert run.tombstones().holds(uri)


def test_mentions_match_whole_names_only() -> None:
    mention = Target("photos/a.jpg", addresses={"photos/a.jpg"}).mention()
    assert mention.sub("X", "photos/a.jpg: cut, see photos/a.jpg.") == "X: cut, see X."
    for other in ("myphotos/a.jpg", "photos/a.jpg.old", "x/photos/a.jpg", "photos/a.jpg2", "photos/a_jpg"):
        assert mention.sub("X", other) == other


def test_tombstones_keep_no_value() -> None:
    tombstones = Tombstones().with_values([SHA, "https://example.org/x"])
    assert tombstones.match({"sha256": SHA}) == tombstones.anonymous(SHA)
    assert tombstones.match({"uri": "https://example.org/x#frames=1,2"})
    assert tombstones.match({"sha256": "other", "uri": "y"}) is None
    assert SHA not in tombstones.to_json()
    assert tombstones.with_values([SHA]) == tombstones
    assert Tombstones().with_values([SHA]).hashes != Tombstones().with_values([SHA]).hashes
