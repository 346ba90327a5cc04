"""A local worker process: sets a stage up, runs shards it is handed, reports what happens, dies with its driver."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import cv2
import pyarrow as pa

from editfoundry.core.chat.ledger import use_ledger
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.log import open_log, run_log
from editfoundry.data_engine.execution import Event, Plan, Session, Task
from editfoundry.data_engine.ledger import Commit, full_disk_stops
from editfoundry.data_engine.rundir import RunDir

THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
                 "VECLIB_MAXIMUM_THREADS")
WORKER_ENVIRONMENT = {
    **dict.fromkeys(THREAD_COUNTS, "1"),
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


@dataclass(frozen=True)
class Release:
    """To a worker: let go of the stage, there is nothing to do for now."""


@dataclass(frozen=True)
class Ready:
    """The stage is set up."""


@dataclass(frozen=True)
class Done:
    """The shard is committed."""

    commit: Commit


@dataclass(frozen=True)
class Failed:
    """Setting up or running stopped with an error. `expected`: an EditFoundryError, whose message is for the user."""

    message: str
    expected: bool
    exit_code: int = 1


Report = Ready | Done | Failed | Event
T = TypeVar("T")


def work(inbox: Connection, lifeline: Connection, name: str, run: Path) -> None:
    """Entry point of the process. Reads Plans and Tasks from `inbox` until None; exits when `lifeline` closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_driver, args=(lifeline,), daemon=True).start()
    cv2.setNumThreads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    folder = RunDir(run)
    with folder.worker_lock():
        open_log(folder.logs, name)
        use_ledger(folder.chat)
        _serve(inbox, name)


def _serve(inbox: Connection, name: str) -> None:
    session: Session | None = None
    while (message := inbox.recv()) is not None:
        if isinstance(message, Task):
            assert session is not None
            commit = _reported(inbox, partial(session.run, message, name, inbox.send))
            if commit:
                inbox.send(Done(commit))
            continue
        session = None
        _release_memory()
        if isinstance(message, Plan):
            session = _reported(inbox, partial(_set_up, message))
            if session:
                inbox.send(Ready())


def _set_up(plan: Plan) -> Session:
    session = Session(plan)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    return session


def _reported(inbox: Connection, action: Callable[[], T]) -> T | None:
    """The action's result, or None after the driver was told why there is none."""
    try:
        with full_disk_stops(Path()):
            return action()
    except EditFoundryError as error:
        inbox.send(Failed(str(error), expected=True, exit_code=error.exit_code))
    except Exception as error:  # noqa: BLE001 - logged, and reported to the driver
        run_log().exception("the stage failed")
        inbox.send(Failed(f"{type(error).__name__}: {error}", expected=False))
    return None


def _release_memory() -> None:
    """Give the last stage's models back to the system, not only to the allocator (glibc keeps them otherwise)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _die_with_driver(lifeline: Connection) -> None:
    """Wait for the driver's end of the pipe to close, however it died, then leave at once: commits are atomic."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
