"""Checkpoints: copied at once, written beside the training, and only ever there whole.

    RUN/checkpoints/step-00000020/
        state.json          what the trainer handed over
        trained.safetensors the trained parameters, whole; ema.safetensors their average, if there is one
        rank-00000.pt       each rank's part of the optimiser and its random state: plain tensors and numbers
        MANIFEST.json       bytes and SHA-256 of every file

A folder is written as `step-00000020.tmp` and renamed when all ranks' files are on the disk, so what a kill leaves
behind is ignored and swept away at the next start. Nothing is read that the manifest does not vouch for.
"""

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import canonical_json, sha256_file
from editfoundry.data_engine.ledger import sync_folder
from editfoundry.training.rundir import CHECKPOINTS, differing
from editfoundry.training.sharding.engine import Average, Engine

FORMAT = 1
STATE, TRAINED, AVERAGE, MANIFEST = "state.json", "trained.safetensors", "ema.safetensors", "MANIFEST.json"
TEMPORARY = ".tmp"
POLL_SECONDS = 0.05
_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(EditFoundryError):
    """A checkpoint that cannot be written, or must not be read; names the folder, the file and the remedy."""


class Checkpoints:
    """The checkpoints of a run, newest `keep` of them. Built on all ranks at once, before anything is saved."""

    def __init__(self, run: Path, keep: int, rank: int, ranks: int) -> None:
        self.folder, self.keep, self.rank, self.ranks = run / CHECKPOINTS, keep, rank, ranks
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None
        if rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(f"*{TEMPORARY}"):
                shutil.rmtree(left)
        _barrier(ranks)

    def save(self, step: int, state: Mapping[str, Any], engine: Engine, ema: Average | None) -> None:
        """Copy everything to the host, then write it in a thread. On all ranks.

        state: JSON values; what `load` gives back. Raises CheckpointError when the checkpoint before failed.
        """
        self.wait()
        final = self.folder / folder_name(step)
        if final.exists():
            raise CheckpointError(f"{final} exists already; a checkpoint is never overwritten")
        weights = {TRAINED: engine.trained_state()}
        if ema is not None:
            weights[AVERAGE] = engine.gather(ema.state())
        about = {**state, "format": FORMAT, "optimiser": engine.optimiser_format, "ranks": self.ranks}
        part = {"optimiser": engine.optimiser_state(), "random": random_state()}
        self._pending = final
        self._writer = threading.Thread(
            target=self._guarded, args=(lambda: self._write(final, about, weights, part),), daemon=True
        )
        self._writer.start()

    def wait(self) -> None:
        """Until the last checkpoint is there. Raises CheckpointError when it could not be written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            held = self._newest()
            raise CheckpointError(
                f"{self._pending} could not be written: {_reason(failure)}; the newest that is whole is "
                f"{held.name if held else 'none'}: mend the disk or make room, and repeat the command to go on from it"
            ) from failure

    def latest(self) -> Path | None:
        """The newest checkpoint, None without one. Raises CheckpointError when it is not whole."""
        newest = self._newest()
        if newest is not None:
            read_manifest(newest)
        return newest

    def load(self, path: Path, engine: Engine, ema: Average | None) -> dict[str, Any]:
        """Take up a checkpoint; gives the state that was saved with it. On all ranks.

        Raises CheckpointError for files that are damaged or not the manifest's, and UsageError when another number of
        ranks or another way of sharding wrote what cannot be divided anew.
        """
        verify(path, self.rank, self.ranks)
        state = read_state(path)
        check_optimiser(path, state, engine)
        with _naming(path / TRAINED), safe_open(path / TRAINED, "pt") as file:
            engine.load_trained(Tensors(file))
        if ema is not None:
            with _naming(path / AVERAGE), safe_open(path / AVERAGE, "pt") as file:
                ema.load(engine.local_state(Tensors(file)))
        parts = [_read_part(path / rank_file(rank)) for rank in range(state["ranks"])]
        with _naming(path):
            engine.load_optimiser([part["optimiser"] for part in parts])
        if state["ranks"] == self.ranks:
            set_random_state(parts[self.rank]["random"])
        return state

    def _newest(self) -> Path | None:
        found = complete(self.folder)
        return found[-1] if found else None

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - a thread's error is raised by the next `save` or `wait`
            self._failure = error

    def _write(
        self, final: Path, about: Mapping[str, Any], weights: Mapping[str, dict[str, Tensor]], part: Mapping[str, Any]
    ) -> None:
        folder = final.with_name(final.name + TEMPORARY)
        folder.mkdir(exist_ok=True)
        own = rank_file(self.rank)
        with (folder / own).open("wb") as file:
            torch.save(part, file)
        entries = {own: _durable(folder / own)}
        if self.rank:
            _write_json(folder / f"{own}.done", entries[own])
            return
        for name, tensors in weights.items():
            save_file(tensors, folder / name)
            entries[name] = _durable(folder / name)
        _write_json(folder / STATE, about)
        entries[STATE] = _durable(folder / STATE)
        for rank in range(1, self.ranks):
            entries[rank_file(rank)] = _await_json(folder / f"{rank_file(rank)}.done")
        _write_json(folder / MANIFEST, {"files": entries, "format": FORMAT})
        sync_folder(folder)
        folder.rename(final)
        sync_folder(self.folder)
        for old in complete(self.folder)[: -self.keep]:
            doomed = old.with_name(old.name + TEMPORARY)
            old.rename(doomed)
            shutil.rmtree(doomed)


class Tensors(Mapping[str, Tensor]):
    """The tensors of an open safetensors file, each read when asked for."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.names = sorted(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self.file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def folder_name(step: int) -> str:
    """The name of a checkpoint's folder, once it is whole."""
    return f"step-{step:08d}"


def rank_file(rank: int) -> str:
    """The name of a rank's own file."""
    return f"rank-{rank:05d}.pt"


def complete(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first; those still being written are not among them."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of a checkpoint's files by name. Raises CheckpointError unless exactly these are there."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        wrong = sorted({entry.name for entry in path.iterdir()} ^ {*files, MANIFEST})
        wrong += [name for name in sorted(files) if not wrong and (path / name).stat().st_size != files[name]["bytes"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: incomplete: {MANIFEST} is missing or unreadable ({error}); {_REMEDY}"
        ) from error
    if wrong:
        raise CheckpointError(f"{path}: incomplete or altered: {wrong[0]} is not as {MANIFEST} has it; {_REMEDY}")
    return files


_REMEDY = "delete this folder to go on from the checkpoint before it"


def verify(path: Path, rank: int = 0, ranks: int = 1) -> None:
    """Hash a checkpoint's files, each rank its share. Raises CheckpointError, on all ranks, naming the first that is

    not the one that was written.
    """
    files = read_manifest(path)
    bad = [name for name in sorted(files)[rank::ranks] if sha256_file(path / name) != files[name]["sha256"]]
    shares: list[list[str]] = [bad]
    if ranks > 1:
        shares = [[] for _ in range(ranks)]
        torch.distributed.all_gather_object(shares, bad)
    if found := sorted(name for share in shares for name in share):
        raise CheckpointError(f"{path / found[0]}: not the file that was written (its SHA-256 differs); {_REMEDY}")


def read_state(path: Path) -> dict[str, Any]:
    """What the trainer saved with a checkpoint. Raises CheckpointError when it is damaged or of another version."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text("utf-8"))
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: damaged ({error}); {_REMEDY}") from error
    if version != FORMAT:
        raise CheckpointError(f"{path}: written by another version (format {version}, not {FORMAT})")
    return state


def check_settings(path: Path, config: Mapping[str, Any]) -> None:
    """Raises UsageError naming the settings that a checkpoint was written with and `config` has otherwise."""
    if changed := differing(read_state(path)["config"], config):
        raise UsageError(
            f"{path}: written with other settings ({', '.join(changed)}); restore them, or start a new run"
        )


def check_optimiser(path: Path, state: Mapping[str, Any], engine: Engine) -> None:
    """Raises UsageError when the optimiser's state cannot be used by this engine."""
    if state["optimiser"] != engine.optimiser_format:
        raise UsageError(
            f"{path}: its optimiser state is for {state['optimiser']}, this run is {engine.optimiser_format}; resume "
            "with the accelerate configuration and the number of processes that wrote it"
        )


def random_state() -> dict[str, Tensor]:
    """States of torch's generators in this process, for dropout."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    """Put torch's generators where `random_state` found them."""
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _read_part(path: Path) -> dict[str, Any]:
    try:
        part: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (UnpicklingError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: holds something else than tensors and numbers, and is not read") from error
    return part


def _reason(failure: BaseException) -> str:
    """What the system said, which torch reports as the context of an error of its own."""
    error: BaseException | None = failure
    while error is not None:
        if isinstance(error, OSError):
            return str(error)
        error = error.__context__
    return str(failure)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name before what is wrong with it."""
    try:
        yield
    except (EditFoundryError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _durable(path: Path) -> dict[str, Any]:
    """Flush a file to the disk; its manifest entry."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _write_json(path: Path, value: Any) -> None:
    """A durable JSON file, seen by others only when it is whole."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("x", encoding="utf-8") as file:
        file.write(canonical_json(value) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _await_json(path: Path) -> dict[str, Any]:
    """A JSON file that another rank writes, removed once it is read. If that rank fails, the launcher ends this one."""
    while not path.exists():
        time.sleep(POLL_SECONDS)
    value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    path.unlink()
    return value


def _barrier(ranks: int) -> None:
    if ranks > 1:
        torch.distributed.barrier()
