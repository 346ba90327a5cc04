import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_engine as toy

from editfoundry.core.errors import UsageError
from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.ledger import replace_file
from editfoundry.data_engine.repair import NotRepaired, repair
from editfoundry.data_engine.rundir import RunDir, State


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("audit")
    sources = toy.write_sources(base / "src", 8, {1: "bad", 4: "odd one"})
    toy.run_here(sources, base / "run")
    return base


@pytest.fixture
def run(original: Path, tmp_path: Path) -> RunDir:
    """A copy of the finished run, to be damaged; its dataset is linked to its artifacts as in the original."""
    shutil.copytree(original / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "dataset")
    toy.run_here(original / "src", tmp_path / "run")
    return RunDir(tmp_path / "run")


def stage_folder(run: RunDir, stage: str) -> Path:
    return run.store(stage, next(str(entry.fingerprint) for entry in run.state().stages if entry.name == stage)).path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(data)


def edit(path: Path, old: bytes, new: bytes) -> None:
    replace_file(path, path.read_bytes().replace(old, new, 1))


def first(run: RunDir, stage: str, pattern: str) -> Path:
    return sorted(stage_folder(run, stage).rglob(pattern))[0]


Damage = Callable[[RunDir], object]
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "flipped byte in a tar": (lambda run: flip(first(run, "render", "*.tar")), {"changed_file"}),
    "flipped byte in rows": (lambda run: flip(first(run, "filter", "*.rows-*")), {"changed_file"}),
    "flipped byte in the dataset": (lambda run: flip(run.dataset / "train-000000.tar"), {"changed_file"}),
    "flipped byte in the index": (lambda run: flip(run.dataset / "index.parquet"), {"changed_file"}),
    "missing shard": (lambda run: first(run, "instruct", "00001.json").unlink(), {"missing_shard", "extra_file"}),
    "missing file": (lambda run: first(run, "ingest", "*.tar").unlink(), {"missing_file"}),
    "shortened file": (lambda run: first(run, "ingest", "*.tar").write_bytes(b""), {"changed_file"}),
    "missing stage folder": (lambda run: shutil.rmtree(stage_folder(run, "catalogue")), {"missing_shard"}),
    "extra shard": (lambda run: shutil.copy(first(run, "filter", "00000.json"), stage_folder(run, "filter") / "commits"
                                            / "00003.json"), {"extra_commit"}),
    "extra file": (lambda run: (stage_folder(run, "render") / "shards" / "x.tar").write_bytes(b"x"), {"extra_file"}),
    "extra folder": (lambda run: (run.stages / "nonsense-0123").mkdir(), {"extra_file"}),
    "extra dataset shard": (lambda run: shutil.copy(run.dataset / "train-000000.tar", run.dataset / "train-000099.tar"),
                            {"extra_file"}),
    "missing dataset shard": (lambda run: (run.dataset / "train-000000.tar").unlink(), {"missing_file"}),
    "damaged record": (lambda run: first(run, "emit", "00000.json").write_text("{"), {"bad_commit", "extra_file"}),
    "damaged manifest": (lambda run: (run.dataset / "manifest.json").write_text("[]"), {"bad_manifest"}),
    "edited manifest": (lambda run: edit(run.dataset / "manifest.json", b'"rows":', b'"rows":1'), {"bad_manifest"}),
}


def test_an_untouched_run_verifies(run: RunDir) -> None:
    assert verify(run) == []
    assert funnel(run).problems == ()


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_finds_and_repair_restores(original: Path, run: RunDir, name: str) -> None:
    damage, kinds = DAMAGES[name]
    whole = toy.tree(run.dataset)
    damage(run)
    found = verify(run)
    assert {finding.kind for finding in found} == kinds
    assert all(finding.path in finding.line() for finding in found)

    repaired = repair(run, lambda state: toy.run_here(original / "src", run.path, known=state))
    assert repaired == found
    assert verify(run) == []
    assert toy.tree(run.dataset) == whole


def test_repair_runs_only_what_is_broken(original: Path, run: RunDir) -> None:
    flip(first(run, "render", "00001*.tar"))
    ran: list[tuple[str, int]] = []

    def rerun(state: State) -> None:
        ran.extend(toy.run_here(original / "src", run.path, known=state))

    repair(run, rerun)
    assert ran == [("render", 1)]


def test_repair_of_pixels_needs_the_same_sources(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 2)
    toy.run_here(sources, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    (sources / "s000.txt").write_text("changed since")
    flip(first(run, "ingest", "*.tar"))
    with pytest.raises(UsageError, match="the sources changed since this run"):
        repair(run, lambda state: toy.run_here(sources, run.path, known=state))


def test_repair_does_not_mend_with_other_settings(original: Path, run: RunDir) -> None:
    flip(first(run, "render", "*.tar"))
    other = toy.ToyInstructConfig(template="{donor}!")
    with pytest.raises(UsageError, match="instruct: its code, models or settings changed"):
        repair(run, lambda state: toy.run_here(original / "src", run.path, known=state, instruct=other))
    assert all(stage.fingerprint for stage in run.state().stages)
    assert {finding.kind for finding in verify(run)} == {"missing_shard"}


def test_what_stays_broken_is_an_error(run: RunDir) -> None:
    flip(first(run, "render", "*.tar"))
    with pytest.raises(NotRepaired, match="the first: missing_shard"):
        repair(run, lambda _: None)


def test_a_lost_row_is_a_problem_of_the_funnel(run: RunDir) -> None:
    path = first(run, "filter", "00000.json")
    record = json.loads(path.read_text())
    replace_file(path, json.dumps({**record, "inputs": record["inputs"] - 1, "accepted": record["accepted"] - 1,
                                   "outputs": record["outputs"] - 1}).encode())
    problems = funnel(run).problems
    assert any("filter shard 0: 2 outputs are stored, 1 are recorded" in problem for problem in problems)
    assert any("filter shard 0: ingest gave 2 rows, but 1 were taken in" in problem for problem in problems)
    assert any("instruct shard 0: filter gave 1 rows, but 2 were taken in" in problem for problem in problems)


def test_a_missing_shard_is_a_problem_of_the_funnel(run: RunDir) -> None:
    first(run, "render", "00002.json").unlink()
    assert "render: 1 of 3 shards are not committed, first 2" in funnel(run).problems


def test_funnel_counts_inputs_and_parts_apart(run: RunDir) -> None:
    rows = {row.stage: row for row in funnel(run).rows}
    assert (rows["ingest"].inputs, rows["ingest"].rejects) == (8, {"truncated_image": 1})
    assert (rows["filter"].inputs, rows["filter"].rejects, rows["filter"].parts) == (
        7, {"odd": 1}, {"region": {"tiny": 7}})
    assert rows["catalogue"].barrier
    assert rows["catalogue"].rejects == {"not_an_image": 1}
    assert rows["emit"].outputs == 24


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 4, {2: "lost one"})
    with pytest.raises(RuntimeError):
        toy.run_here(sources, tmp_path / "run")
    problems = funnel(RunDir(tmp_path / "run")).problems
    assert "filter: 2 of 2 shards are not committed, first 0" in problems
    assert "emit: 2 of 2 shards are not committed, first 0" in problems
    assert {finding.kind for finding in verify(RunDir(tmp_path / "run"))} == {
        "missing_shard", "missing_stage", "bad_manifest"}
