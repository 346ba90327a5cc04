"""Checkpoints: whole or not there, nobody else's, and never changed by the training that goes on."""

import json
import os
import pickle
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import sha256_file
from editfoundry.training import checkpoint
from editfoundry.training.checkpoint import CheckpointError, Checkpoints, check_settings, complete, verify
from editfoundry.training.config import Optimiser
from editfoundry.training.ema import Ema
from editfoundry.training.sharding import Engine, build_engine

OPTIONS = Optimiser(lr=0.01)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator()
    AcceleratorState._reset_state(reset_partial_state=True)


def engine_of(accelerator: Accelerator, width: int = 8, seed: int = 0) -> Engine:
    model = nn.Linear(width, width)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return build_engine(accelerator, model, dict(model.named_parameters()), OPTIONS)


@pytest.fixture
def engine(accelerator: Accelerator) -> Engine:
    return engine_of(accelerator)


def advance(engine: Engine, number: int, dropout: bool = False) -> float:
    values = torch.randn(3, engine.model.in_features, generator=torch.Generator().manual_seed(number))
    if dropout:
        values = nn.functional.dropout(values)
    engine.zero_grad()
    loss = engine.forward(values).square().sum()
    engine.backward(loss)
    engine.step(0.01)
    return loss.item()


def saved(run: Path, engine: Engine, *steps: int, keep: int = 3, ema: Ema | None = None) -> Checkpoints:
    checkpoints = Checkpoints(run, keep, 0, 1)
    for step in steps:
        checkpoints.save(step, {"step": step, "config": {}}, engine, ema)
    checkpoints.wait()
    return checkpoints


def test_training_goes_on_bit_for_bit(tmp_path: Path, accelerator: Accelerator, engine: Engine) -> None:
    ema = Ema(engine.local_parameters(), 0.9)
    torch.manual_seed(11)
    advance(engine, 0, dropout=True)
    ema.update()
    saved(tmp_path, engine, 1, ema=ema)
    expected = [advance(engine, number, dropout=True) for number in (1, 2, 3)]

    torch.manual_seed(5)
    other = engine_of(accelerator, seed=9)
    average = Ema(other.local_parameters(), 0.9)
    checkpoints = Checkpoints(tmp_path, 3, 0, 1)
    newest = checkpoints.latest()
    assert newest == tmp_path / "checkpoints" / "step-00000001"
    assert checkpoints.load(newest, other, average)["step"] == 1
    assert torch.equal(average.state()["weight"], ema.state()["weight"])
    assert [advance(other, number, dropout=True) for number in (1, 2, 3)] == expected
    assert torch.equal(other.model.weight, engine.model.weight)


def test_what_is_written_is_what_was_there_when_it_was_saved(
    tmp_path: Path, accelerator: Accelerator, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ema = Ema(engine.local_parameters(), 0.5)
    advance(engine, 0)
    weight, average = engine.model.weight.detach().clone(), ema.state()["weight"].clone()
    moment = engine.optimiser.state[engine.model.weight]["exp_avg"].clone()
    checkpoints = Checkpoints(tmp_path, 3, 0, 1)
    real = Checkpoints._write

    def slow(*arguments: Any) -> None:
        time.sleep(0.2)
        real(*arguments)

    monkeypatch.setattr(Checkpoints, "_write", slow)
    checkpoints.save(1, {"step": 1}, engine, ema)
    advance(engine, 1)
    ema.update()
    assert not complete(tmp_path / "checkpoints")  # so the writer began after the weights had moved
    checkpoints.wait()
    other = engine_of(accelerator, seed=9)
    loaded = Ema(other.local_parameters(), 0.5)
    checkpoints.load(tmp_path / "checkpoints" / "step-00000001", other, loaded)
    assert torch.equal(other.model.weight, weight)
    assert torch.equal(loaded.state()["weight"], average)
    assert torch.equal(other.optimiser.state[other.model.weight]["exp_avg"], moment)
    assert not torch.equal(engine.model.weight, weight)


def test_only_the_newest_are_kept_and_leftovers_are_swept_away(tmp_path: Path, engine: Engine) -> None:
    folder = tmp_path / "checkpoints"
    for name in ("step-00000002.tmp", "step-00000009.tmp"):
        (folder / name).mkdir(parents=True)
        (folder / name / "trained.safetensors").write_bytes(b"half")
    assert Checkpoints(tmp_path, 2, 0, 1).latest() is None
    saved(tmp_path, engine, 2, 4, 10, 100, keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000100"]


def test_nothing_is_overwritten(tmp_path: Path, engine: Engine) -> None:
    checkpoints = saved(tmp_path, engine, 2)
    with pytest.raises(CheckpointError, match="step-00000002 exists already"):
        checkpoints.save(2, {}, engine, None)


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_usable_checkpoint(tmp_path: Path, accelerator: Accelerator) -> None:
    engine = engine_of(accelerator, width=400)
    seen = set()
    for attempt in range(12):
        run = tmp_path / str(attempt)
        pid = os.fork()
        if pid == 0:
            checkpoints = Checkpoints(run, 2, 0, 1)
            for step in range(1, 10**6):
                checkpoints.save(step, {"step": step, "config": {}}, engine, None)
        while not complete(run / "checkpoints"):
            time.sleep(0.001)
        time.sleep(0.0031 * attempt)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen.add(any(path.suffix == ".tmp" for path in (run / "checkpoints").iterdir()))
        newest = Checkpoints(run, 2, 0, 1).latest()
        assert newest is not None
        verify(newest)
        assert json.loads((newest / "state.json").read_text())["step"] == int(newest.name[5:])
        assert {path.suffix for path in (run / "checkpoints").iterdir()} == {""}
    assert True in seen  # at least one kill fell into a write


def test_damage_is_named(tmp_path: Path, engine: Engine) -> None:
    checkpoints = saved(tmp_path, engine, 2, 4)
    newest = tmp_path / "checkpoints" / "step-00000004"
    weights = newest / "trained.safetensors"
    whole = weights.read_bytes()

    weights.write_bytes(whole[:-4] + b"\0\0\1\0")
    assert checkpoints.latest() == newest  # the sizes are right
    with pytest.raises(CheckpointError, match=r"step-00000004/trained.safetensors: not the file that was written"):
        checkpoints.load(newest, engine, None)

    for damage, pattern in (
        (lambda: weights.write_bytes(whole[:-1]), "altered: trained.safetensors"),
        (weights.unlink, "altered: trained.safetensors"),
        (lambda: (newest / "optimizer.bin").write_bytes(b"more"), "altered: optimizer.bin"),
        ((newest / "MANIFEST.json").unlink, "incomplete: MANIFEST.json is missing"),
    ):
        damage()
        with pytest.raises(CheckpointError, match=f"step-00000004: incomplete.*{pattern.split(': ')[1]}.*delete this"):
            checkpoints.latest()
        for left in newest.iterdir():
            if left.name == "optimizer.bin":
                left.unlink()
        if damage is not (newest / "MANIFEST.json").unlink:
            weights.write_bytes(whole)


def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, engine: Engine) -> None:
    checkpoints = saved(tmp_path, engine, 2)
    manifest = tmp_path / "checkpoints" / "step-00000002" / "MANIFEST.json"
    for text in ("", "[]", '{"files": 3}', '{"files": {"../../x": {}}}', "\xff"):
        manifest.write_text(text)
        with pytest.raises(CheckpointError, match="incomplete"):
            checkpoints.latest()


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (Path(os.environ["TRAP"]),))  # type: ignore[return-value]


def test_no_pickle_runs_even_with_a_matching_manifest(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    checkpoints = saved(tmp_path, engine, 2)
    newest = tmp_path / "checkpoints" / "step-00000002"
    part = newest / "rank-00000.pt"
    for write in (
        lambda: part.write_bytes(pickle.dumps(Trap())),
        lambda: torch.save({"optimiser": Trap(), "random": {}}, part),
    ):
        write()
        manifest = json.loads((newest / "MANIFEST.json").read_text())
        manifest["files"][part.name] = {"bytes": part.stat().st_size, "sha256": sha256_file(part)}
        (newest / "MANIFEST.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match=r"rank-00000\.pt: holds something else"):
            checkpoints.load(newest, engine, None)
        assert not (tmp_path / "sprung").exists()


def test_another_model_or_format_is_refused(tmp_path: Path, accelerator: Accelerator, engine: Engine) -> None:
    checkpoints = saved(tmp_path, engine, 2)
    newest = tmp_path / "checkpoints" / "step-00000002"
    with pytest.raises(CheckpointError, match=r"weight has shape \(8, 8\), the model's is \(9, 9\)"):
        checkpoints.load(newest, engine_of(accelerator, width=9), None)
    with pytest.raises(CheckpointError, match=r"ema.safetensors"):
        checkpoints.load(newest, engine, Ema(engine.local_parameters(), 0.9))
    with pytest.raises(UsageError, match="is for zero2 on 4 ranks, this run is named; resume with the accelerate"):
        checkpoint.check_optimiser(newest, {"optimiser": "zero2 on 4 ranks"}, engine)


def test_other_settings_are_named(tmp_path: Path, engine: Engine) -> None:
    config = {"seed": 1, "steps": 10, "data": {"size": 512, "workers": 1}}
    checkpoints = Checkpoints(tmp_path, 2, 0, 1)
    checkpoints.save(1, {"step": 1, "config": config}, engine, None)
    checkpoints.wait()
    newest = tmp_path / "checkpoints" / "step-00000001"
    check_settings(newest, {"seed": 1, "steps": 20, "data": {"size": 512, "workers": 8}})
    with pytest.raises(UsageError, match=r"step-00000001: .*data.size: was 512, is 256, seed: was 1, is 2"):
        check_settings(newest, {"seed": 2, "steps": 10, "data": {"size": 256, "workers": 1}})


@pytest.mark.parametrize("limit", [100, 2000, 100_000])
def test_a_full_disk_is_said_by_the_next_save(tmp_path: Path, accelerator: Accelerator, limit: int) -> None:
    """RLIMIT_FSIZE in a child: no file may grow beyond the limit, as on a full disk."""
    engine = engine_of(accelerator, width=200)
    checkpoints = saved(tmp_path, engine, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            checkpoints.save(2, {"step": 2}, engine, None)
            try:
                checkpoints.save(3, {"step": 3}, engine, None)
            except CheckpointError as error:
                said = str(error).lower()
                code = 0 if "step-00000002 could not be written" in said and "file too large" in said else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    again = Checkpoints(tmp_path, 3, 0, 1)
    assert [path.name for path in complete(again.folder)] == ["step-00000001"]
    assert again.latest() is not None


def test_what_the_writer_cannot_do_is_raised_once_by_wait(tmp_path: Path, engine: Engine) -> None:
    checkpoints = saved(tmp_path, engine, 1)
    checkpoints.save(2, {"not": float("nan")}, engine, None)
    with pytest.raises(CheckpointError, match=r"00000002 could not be written: .* whole is step-00000001"):
        checkpoints.wait()
    checkpoints.wait()
    checkpoints.save(3, {"step": 3}, engine, None)
    checkpoints.wait()
    assert [path.name for path in complete(checkpoints.folder)] == ["step-00000001", "step-00000003"]


def test_rank_0_waits_for_the_files_of_all_ranks(tmp_path: Path, engine: Engine) -> None:
    first, second = (Checkpoints.__new__(Checkpoints) for _ in range(2))
    for rank, checkpoints in enumerate((first, second)):
        checkpoints.folder, checkpoints.keep, checkpoints.rank, checkpoints.ranks = tmp_path, 2, rank, 2
        checkpoints._writer = checkpoints._failure = None
    first.save(1, {"step": 1}, engine, None)
    time.sleep(0.2)
    assert not complete(tmp_path)
    second.save(1, {"step": 1}, engine, None)
    second.wait()
    first.wait()
    assert [path.name for path in complete(tmp_path)] == ["step-00000001"]
    names = {"MANIFEST.json", "state.json", "trained.safetensors", "rank-00000.pt", "rank-00001.pt"}
    assert {path.name for path in (tmp_path / "step-00000001").iterdir()} == names
    verify(tmp_path / "step-00000001")
