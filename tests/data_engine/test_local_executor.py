import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import toy_engine as toy

from editfoundry.core.errors import EditFoundryError
from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.executors.base import WorkerFailure
from editfoundry.data_engine.executors.local import StageFailed
from editfoundry.data_engine.ledger import Commit, StageStore
from editfoundry.data_engine.rundir import RunDir

FIRST_TWO = toy.STAGES[:2]


def store(path: Path, stage: str) -> StageStore:
    folder = RunDir(path)
    return folder.store(stage, next(str(s.fingerprint) for s in folder.state().stages if s.name == stage))


def commits(path: Path, stage: str) -> list[Commit]:
    return list(store(path, stage).commits())


def refused(path: Path, stage: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for commit in commits(path, stage):
        for entry in store(path, stage).rejects(commit):
            if entry.primary:
                found.setdefault(entry.reject.reason, []).append(entry.reject.id)
    return found


def source_id(text: str) -> str:
    return f"s_{toy.sha256(text)[:12]}"


def test_worker_count_does_not_change_a_byte(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 19, {3: "bad one", 9: "odd one", 14: "broken graph"})
    toy.run_here(sources, tmp_path / "run0")
    for workers in (1, 2):
        toy.run(sources, tmp_path / f"run{workers}", workers)
    trees = [toy.tree(tmp_path / f"run{workers}" / "dataset") for workers in (0, 1, 2)]
    assert trees[0] == trees[1] == trees[2]
    assert len(trees[0]) > 6
    assert not funnel(RunDir(tmp_path / "run2")).problems


def test_both_workers_commit_interleaved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_SLEEP", "0.05")
    sources = toy.write_sources(tmp_path / "src", 24)
    toy.run(sources, tmp_path / "run", 2)
    order = [commit.worker for commit in sorted(commits(tmp_path / "run", "render"), key=lambda c: c.committed_at)]
    assert set(order) == {"worker0", "worker1"}
    assert sum(a != b for a, b in itertools.pairwise(order)) >= 3
    assert all(commit.elapsed_s >= 0.05 for commit in commits(tmp_path / "run", "render"))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["crash now", "crash in prepare"])
def test_the_sample_that_kills_its_worker_is_the_one_rejected(tmp_path: Path, text: str) -> None:
    sources = toy.write_sources(tmp_path / "src", 8, {4: text})
    for workers in (1, 2):
        toy.run(sources, tmp_path / f"run{workers}", workers, FIRST_TWO, shard_size=8)
        assert refused(tmp_path / f"run{workers}", "filter") == {"worker_crash": [source_id(text)]}
    files = [[commit.files for commit in commits(tmp_path / f"run{workers}", "filter")] for workers in (1, 2)]
    assert files[0] == files[1]
    log = (tmp_path / "run1/logs/driver.jsonl").read_text()
    assert ("SIGSEGV" if text == "crash now" else "exited with code 9") in log


@pytest.mark.slow
def test_two_killers_in_one_shard_are_both_found(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 6, {1: "crash a", 5: "crash b"})
    toy.run(sources, tmp_path / "run", 1, FIRST_TWO, shard_size=6)
    assert refused(tmp_path / "run", "filter") == {"worker_crash": [source_id("crash a"), source_id("crash b")]}
    assert sum(commit.outputs for commit in commits(tmp_path / "run", "filter")) == 4


def test_a_worker_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 4, {2: f"once {tmp_path / 'flag'}"})
    toy.run(sources, tmp_path / "run", 2, FIRST_TWO)
    assert (tmp_path / "flag").exists()
    assert refused(tmp_path / "run", "filter") == {}


@pytest.mark.slow
def test_a_hanging_sample_is_killed_and_rejected(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3, {1: "hang on"})
    toy.run(sources, tmp_path / "run", 1, FIRST_TWO, batch_timeout_s=6.0)
    assert refused(tmp_path / "run", "filter") == {"worker_timeout": [source_id("hang on")]}


def test_errors_for_the_user_arrive_as_one_line(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3, {1: "missing model"})
    with pytest.raises(StageFailed, match=r"^toy\.bin: not in the cache; run `editfoundry models pull`$"):
        toy.run(sources, tmp_path / "run", 2, FIRST_TWO)


def test_a_full_disk_stops_the_run_and_it_resumes(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 6, {4: "full now"})
    with pytest.raises(EditFoundryError, match="No space left on device; committed shards are intact") as caught:
        toy.run(sources, tmp_path / "run", 2, FIRST_TWO)
    assert caught.value.exit_code == 1
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    assert all(commit.inputs == 3 for commit in commits(tmp_path / "run", "filter"))


def test_a_broken_contract_names_stage_and_shard(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 3, {1: "lost one"})
    with pytest.raises(StageFailed, match="filter shard 0: RuntimeError: filter: the input at position 1"):
        toy.run(sources, tmp_path / "run", 1, FIRST_TWO)


@pytest.mark.parametrize(("how", "message"), [
    ("raise", "no worker could start, 2 times in a row; ingest: setting up: ZeroDivisionError: weights are odd"),
    ("die", r"no worker could start, 2 times in a row; ingest: a worker was killed by signal 9 \(SIGKILL\)"),
])
def test_workers_that_cannot_start_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str,
                                                message: str) -> None:
    monkeypatch.setenv("TOY_START", how)
    sources = toy.write_sources(tmp_path / "src", 3)
    with pytest.raises(WorkerFailure, match=message):
        toy.run(sources, tmp_path / "run", 1, (toy.ToyUnstartable,))


def test_workers_run_single_threaded(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 1)
    toy.run(sources, tmp_path / "run", 1, (toy.ToyThreads,))
    row = next(store(tmp_path / "run", "ingest").rows(commits(tmp_path / "run", "ingest")[0])).data()
    assert row["text"] == "1 1 0 1"


@contextlib.contextmanager
def driver(sources: Path, path: Path, workers: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The toy pipeline in a process group of its own, killed on the way out."""
    code = "import toy_engine; toy_engine.main()"
    support = str(Path(toy.__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(sources), str(path), str(workers)], start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path]), **environment},
        stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True)
            if "spawn_main" in " ".join(child.cmdline())]


def wait_for(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.mark.slow
def test_workers_leave_when_the_driver_is_killed(tmp_path: Path) -> None:
    sources = toy.write_sources(tmp_path / "src", 30)
    with driver(sources, tmp_path / "run", 2, TOY_SLEEP="5") as process:
        wait_for(lambda: len(list((tmp_path / "run").glob("stages/render-*"))) == 1)
        workers = descendants(process)
        assert len(workers) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers), 5)


def _kill_campaign(tmp_path: Path, kills: int, seed: int) -> None:
    """Kill the whole process group at random moments until it was done `kills` times, then finish and compare."""
    rng = random.Random(seed)
    sources = toy.write_sources(tmp_path / "src", 18, {4: "bad one", 7: "odd one", 12: "raise error"})
    started = time.monotonic()
    toy.run(sources, tmp_path / "whole", 2)
    whole = time.monotonic() - started
    for number in range(kills):
        path = tmp_path / f"killed{number % 5}"
        with driver(sources, path, 2, TOY_SLEEP="0.02") as process:
            wait_for(lambda path=path: (path / "logs").is_dir() or process.poll() is not None)
            time.sleep(rng.uniform(0, whole))
    for number in range(min(5, kills)):
        path = tmp_path / f"killed{number}"
        toy.run(sources, path, 2)
        assert toy.tree(path / "dataset") == toy.tree(tmp_path / "whole" / "dataset")
        assert verify(RunDir(path)) == []
        assert funnel(RunDir(path)).problems == ()


@pytest.mark.slow
def test_killed_at_random_moments_the_bytes_are_the_same(tmp_path: Path) -> None:
    """A sample; `EDITFOUNDRY_CAMPAIGNS=all` kills at 35 moments."""
    _kill_campaign(tmp_path, kills=35 if os.environ.get("EDITFOUNDRY_CAMPAIGNS") == "all" else 8, seed=2)
