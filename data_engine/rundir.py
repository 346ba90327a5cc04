"""A run's folder: its configuration, its current fingerprints, its locks, and the way to its stages."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from editfoundry.core.config import read_yaml, validate
from editfoundry.core.errors import ConfigError, EditFoundryError, UsageError
from editfoundry.core.log import run_log
from editfoundry.data_engine.ledger import StageStore, is_disk_full, replace_file
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.tombstones import FORGOTTEN, Tombstones

WORKERS_LEAVE_S = 60.0
MARK_LENGTH = 16
M = TypeVar("M", bound=BaseModel)


class RunLocked(EditFoundryError):
    """Another process works on the run."""


class StageState(Record):
    """A stage of the current configuration; its fingerprint is None until the stages above are finished."""

    name: str
    barrier: bool = False
    fingerprint: str | None = None


class State(Record):
    """What the current configuration amounts to. listing: hash of the source listing; sources: how many it has."""

    listing: str
    sources: int
    shards: int
    stages: tuple[StageState, ...]


class RunDir:
    """RUN: config.yaml, state.json, tombstones.json, stages/, dataset/, logs/, chat.sqlite (what models were asked)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages, self.dataset, self.logs = path / "stages", path / "dataset", path / "logs"
        self.config_file, self.state_file = path / "config.yaml", path / "state.json"
        self.tombstone_file, self.journal_file = path / "tombstones.json", path / "forget.json"
        self.chat = path / "chat.sqlite"

    @classmethod
    def existing(cls, path: Path) -> "RunDir":
        """The run at `path`. Raises UsageError if there is none."""
        run = cls(path)
        if not run.state_file.is_file() or not run.config_file.is_file():
            raise UsageError(f"{path}: not a run (no config.yaml and state.json); `editfoundry data run -o` makes one")
        return run

    @classmethod
    def create(cls, path: Path) -> "RunDir":
        """The run at `path`, made if need be. Raises UsageError if something else is there."""
        run = cls(path)
        try:
            if path.exists() and not path.is_dir():
                raise UsageError(f"{path}: is a file; -o names the folder of a run")
            # A config.yaml alone may be anyone's.
            started = run.stages.is_dir() and ((path / ".lock").exists() or run.state_file.exists())
            if path.is_dir() and not started and any(path.iterdir()):
                raise UsageError(f"{path}: holds other files and no run; choose an empty or new folder")
            run.stages.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if is_disk_full(error):
                raise
            raise UsageError(f"{path}: cannot be the folder of a run: {error.strerror}") from error
        return run

    def store(self, stage: str, stage_fingerprint: str) -> StageStore:
        return StageStore(self.stages, stage, stage_fingerprint)

    def all_stores(self) -> list[StageStore]:
        """Stores of every stage at every fingerprint, current or old."""
        paths = self.stages.iterdir() if self.stages.is_dir() else ()
        names = sorted(path.name.rpartition("-") for path in paths if path.is_dir())
        return [self.store(stage, mark) for stage, _, mark in names if stage and len(mark) == MARK_LENGTH]

    def state(self) -> State:
        try:
            return State.model_validate_json(self.state_file.read_bytes())
        except ValidationError as error:
            raise EditFoundryError(f"{self.state_file}: damaged; repeat `editfoundry data run` to write it again"
                                   ) from error

    def last_state(self) -> State | None:
        """The state of the run before; None if there is none, or none that can be read, which a new one replaces."""
        try:
            return self.state() if self.state_file.exists() else None
        except EditFoundryError:
            run_log().warning("%s was damaged and is written anew", self.state_file)
            return None

    def settings(self) -> dict[str, Any]:
        """config.yaml as plain data. Raises ConfigError if it is damaged."""
        plain = read_yaml(self.config_file)
        if not isinstance(plain, dict):
            raise ConfigError(f"{self.config_file}: damaged; repeat `editfoundry data run` to write it again")
        return plain

    def config(self, model: type[M]) -> M:
        """config.yaml as a configuration. It is resolved already: what looks like an interpolation is plain text."""
        return validate(model, self.settings(), where=str(self.config_file))

    def save_state(self, state: State) -> None:
        replace_file(self.state_file, state.to_json().encode())

    def save_config(self, config: Any) -> None:
        """Write config.yaml. Texts that were forgotten stay out of it; their settings are in the fingerprints still."""
        plain = _without(config.model_dump(mode="json"), self.tombstones())
        text = yaml.safe_dump(plain, sort_keys=True, allow_unicode=True)
        replace_file(self.config_file, text.encode())

    def scrub_config(self) -> None:
        """Take forgotten texts out of config.yaml."""
        plain = _without(self.settings(), self.tombstones())
        replace_file(self.config_file, yaml.safe_dump(plain, sort_keys=True, allow_unicode=True).encode())

    def tombstones(self) -> Tombstones:
        if not self.tombstone_file.exists():
            return Tombstones()
        try:
            return Tombstones.model_validate_json(self.tombstone_file.read_bytes())
        except ValidationError as error:
            raise EditFoundryError(f"{self.tombstone_file}: damaged, and without it what was forgotten could come "
                                   "back; restore it from a copy") from error

    @contextmanager
    def lock(self) -> Iterator[Self]:
        """Be the only driver of this run, once every worker of an earlier one is gone. Raises RunLocked otherwise."""
        with (self.path / ".lock").open("a+") as mine, (self.path / ".workers").open("a") as workers:
            if not _try_lock(mine, fcntl.LOCK_EX):
                mine.seek(0)
                raise RunLocked(f"{self.path}: another editfoundry (process {mine.read().strip() or 'unknown'}) is "
                                "working on this run; wait for it or stop it")
            mine.truncate(0)
            mine.write(str(os.getpid()))
            mine.flush()
            _wait_for_workers(self.path, workers)
            yield self

    @contextmanager
    def worker_lock(self) -> Iterator[None]:
        """Held by each worker while it lives: a new driver waits for it before it removes half-written files."""
        with (self.path / ".workers").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield


def _without(value: Any, tombstones: Tombstones) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, tombstones) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without(inner, tombstones) for inner in value]
    return FORGOTTEN if isinstance(value, str) and tombstones.holds(value) else value


def _wait_for_workers(path: Path, file: Any) -> None:
    deadline = time.monotonic() + WORKERS_LEAVE_S
    while not _try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            raise RunLocked(f"{path}: workers of an earlier run are still alive after {WORKERS_LEAVE_S:.0f} s; "
                            "stop them and try again")
        time.sleep(0.02)
    fcntl.flock(file, fcntl.LOCK_UN)


def _try_lock(file: Any, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
