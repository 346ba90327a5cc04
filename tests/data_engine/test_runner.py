import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toy_engine as toy

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.data_engine.execution import Event, Plan, Session, Task
from editfoundry.data_engine.ledger import Commit, DiskFull
from editfoundry.data_engine.rundir import RunDir, RunLocked
from editfoundry.data_engine.stages.base import Item, Outcome

run = toy.run_here


def commits(path: Path, stage: str) -> list[Commit]:
    folder = RunDir(path)
    mark = next(str(entry.fingerprint) for entry in folder.state().stages if entry.name == stage)
    return list(folder.store(stage, mark).commits())


def rejects(path: Path, stage: str) -> dict[str, Any]:
    folder = RunDir(path)
    mark = next(str(entry.fingerprint) for entry in folder.state().stages if entry.name == stage)
    store = folder.store(stage, mark)
    return {entry.reject.reason: entry.reject for commit in store.commits() for entry in store.rejects(commit)}


def test_accounts_add_up_over_all_stages(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 10, {1: "bad one", 4: "odd one", 8: "broken graph"})
    run(sources, tmp_path / "run")
    totals = {stage: [sum(getattr(commit, field) for commit in commits(tmp_path / "run", stage))
                      for field in ("inputs", "accepted", "rejected", "outputs")]
              for stage in ("ingest", "filter", "instruct", "render", "emit")}
    assert totals == {"ingest": [10, 9, 1, 9], "filter": [9, 8, 1, 8], "instruct": [8, 8, 0, 16],
                      "render": [16, 16, 0, 16], "emit": [16, 15, 1, 29]}
    assert rejects(tmp_path / "run", "ingest")["truncated_image"].detail.endswith("ends early")
    assert rejects(tmp_path / "run", "emit")["broken_graph"].detail == (
        "turn 2 does not start from the result of its parent, node 1")
    filtered = commits(tmp_path / "run", "filter")
    assert sum(commit.parts["region"]["tiny"] for commit in filtered) == 9
    assert sum(commit.steps["text"].calls for commit in filtered) == 6  # batches of two in shards of 3, 2, 3 and 1
    assert sum(commit.steps["text"].refused for commit in filtered) == 1


def test_a_finished_run_runs_nothing_again(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 7)
    first = run(sources, tmp_path / "run")
    assert len(first) == 5 * 3 + 1
    before = toy.tree(tmp_path / "run" / "dataset")
    assert run(sources, tmp_path / "run") == []
    assert toy.tree(tmp_path / "run" / "dataset") == before


def test_sources_are_looked_at_once_however_many_stages_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   ) -> None:
    looks: list[str] = []
    identity = toy.ToyFile.identity
    monkeypatch.setattr(toy.ToyFile, "identity", lambda file: looks.append(file.id) or identity(file))
    run(toy.write_sources(tmp_path / "src", 3), tmp_path / "run")
    assert looks == ["s000", "s001", "s002"]


def test_a_changed_template_runs_instruct_and_below_only(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 4)
    run(sources, tmp_path / "run")
    old = {path: path.read_bytes() for path in (tmp_path / "run" / "stages").rglob("*") if path.is_file()}
    ran = run(sources, tmp_path / "run", instruct=toy.ToyInstructConfig(template="Put a {donor} there."))
    assert {stage for stage, _ in ran} == {"instruct", "render", "emit"}
    assert all(path.read_bytes() == data for path, data in old.items())
    assert b"Put a " in (tmp_path / "run/dataset/train-000000.tar").read_bytes()


def test_a_changed_seed_runs_everything(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 2)
    first = run(sources, tmp_path / "run")
    assert run(sources, tmp_path / "run", seed=1) == first


def test_a_touched_source_is_a_new_listing(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 2)
    first = run(sources, tmp_path / "run")
    os.utime(sources / "s001.txt", (1, 1))
    assert run(sources, tmp_path / "run") == first


class Doubled(toy.ToyFilter):
    version: ClassVar[int] = 2


def test_a_raised_version_is_a_new_fingerprint(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 2)
    run(sources, tmp_path / "run")
    stages = (toy.STAGES[0], Doubled, *toy.STAGES[2:])
    assert {stage for stage, _ in run(sources, tmp_path / "run", stages)} == {
        "filter", "catalogue", "instruct", "render", "emit"}


@pytest.mark.parametrize(("text", "reason", "detail"), [
    ("raise now", "stage_error", "ZeroDivisionError: one is zero"), ("batch only", None, ""),
])
def test_exceptions_cost_one_item_and_are_logged(tmp_path: Path, text: str, reason: str | None, detail: str) -> None:
    sources = toy.write_sources(tmp_path / "src", 3, {0: text})
    run(sources, tmp_path / "run", toy.STAGES[:2])
    found = rejects(tmp_path / "run", "filter")
    assert set(found) == ({reason, "tiny"} if reason else {"tiny"})
    lines = [json.loads(line) for line in (tmp_path / "run/logs/driver.jsonl").read_text().splitlines()]
    failed = [line for line in lines if "traceback" in line]
    assert failed
    assert (failed[0]["stage"], failed[0]["shard"], failed[0]["run"]) == ("filter", 0, "run")
    if reason:
        assert (found[reason].detail, found[reason].source_sha256) == (detail, toy.sha256(text))
        assert len(failed[-1]["ids"]) == 1
        assert "ZeroDivisionError" in failed[-1]["traceback"]


def test_full_disk_and_missing_models_stop_the_run(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3, {2: "full now"})
    with pytest.raises((DiskFull, OSError), match="No space left"):
        run(sources, tmp_path / "run", toy.STAGES[:2])
    sources = toy.write_sources(tmp_path / "src2", 3, {2: "missing now"})
    with pytest.raises(toy.ModelMissing, match=r"toy\.bin"):
        run(sources, tmp_path / "run2", toy.STAGES[:2])
    assert commits(tmp_path / "run2", "filter") == []


def test_an_input_without_an_outcome_stops_the_run(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3, {2: "lost one"})
    with pytest.raises(RuntimeError, match="filter: the input at position 2 of shard 0"):
        run(sources, tmp_path / "run", toy.STAGES[:2])


class Short(toy.ToyFilter):
    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return super().process(batch)[:-1]


def test_too_few_outcomes_stop_the_run(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3)
    with pytest.raises(RuntimeError, match="filter shard 0: 2 inputs gave 1 outcomes, first id s_"):
        run(sources, tmp_path / "run", (toy.STAGES[0], Short))


def test_a_batch_is_read_ahead_and_careful_ones_are_not(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 5)
    run(sources, tmp_path / "run", toy.STAGES[:2], shard_size=5)
    folder = RunDir(tmp_path / "run")
    marks = {entry.name: str(entry.fingerprint) for entry in folder.state().stages}
    plan = Plan(folder.stages, toy.config(sources, shard_size=5), toy.ToyFilter, "f" * 16, "ingest", toy.Source,
                {"ingest": marks["ingest"]})
    events: list[Event] = []
    commit = Session(plan).run(Task(0), "w", events.append)
    assert [(event.batch, event.item, event.done) for event in events] == [
        (0, None, 0), (0, None, 2), (1, None, 2), (1, None, 4), (2, None, 4), (2, None, 5), (None, None, 5)]
    normal = folder.store("filter", marks["filter"]).commit(0)
    assert [file.sha256 for file in commit.files] == [file.sha256 for file in normal.files]

    events.clear()
    careful = Session(Plan(**{**plan.__dict__, "fingerprint": "e" * 16})).run(
        Task(0, careful=frozenset({1}), verdicts={3: "worker_crash"}), "w", events.append)
    assert [(event.batch, event.item) for event in events if event.item is not None] == [(1, 2), (1, 3)]
    assert careful.rejects == {"worker_crash": 1}


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 1)
    folder = RunDir.create(tmp_path / "run")
    with folder.lock(), pytest.raises(RunLocked, match=f"another editfoundry \\(process {os.getpid()}\\)"):
        run(sources, tmp_path / "run")
    run(sources, tmp_path / "run")


def test_places_that_are_no_run_are_refused(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 1)
    with pytest.raises(UsageError, match="holds other files and no run"):
        run(sources, sources)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        run(sources, tmp_path / "file")
    with pytest.raises(UsageError, match="nothing to ingest"):
        (tmp_path / "none").mkdir()
        run(tmp_path / "none", tmp_path / "run")
    with pytest.raises(UsageError, match="not a run"):
        RunDir.existing(tmp_path / "nowhere")


def test_config_and_state_are_kept_with_the_run(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 4)
    run(sources, tmp_path / "run")
    folder = RunDir.existing(tmp_path / "run")
    assert toy.load_config(toy.ToyConfig, folder.config_file) == toy.config(sources)
    state = folder.state()
    assert (state.sources, state.shards) == (4, 2)
    assert all(entry.fingerprint for entry in state.stages)
    with pytest.raises(ConfigError):
        toy.load_config(toy.ToyConfig, folder.config_file, ["nonsense=1"])


def test_looking_through_a_complete_run_leaves_it_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = toy.write_sources(tmp_path / "src", 2)
    run(sources, tmp_path / "run")
    whole = RunDir(tmp_path / "run").state()

    def interrupt(_: Any, plan: Plan, *__: Any) -> None:
        if plan.stage is toy.ToyFilter:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(toy.runner, "_wave", interrupt)
        run(sources, tmp_path / "run")
    assert RunDir(tmp_path / "run").state() == whole
    with pytest.raises(UsageError, match="--workers 0"):
        toy.runner.run(toy.config(sources), tmp_path / "run", workers=0, stages=toy.STAGES, find=toy.find)

    (sources / "s001.txt").write_text("lost one")
    with pytest.raises(RuntimeError):
        run(sources, tmp_path / "run")
    marks = [stage.fingerprint for stage in RunDir(tmp_path / "run").state().stages]
    assert [bool(mark) for mark in marks] == [True, True, False, False, False, False]
