"""Training runs of the tiny editor on drawn scenes: in this process, in a fork that can be killed, or launched."""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from editfoundry.core.hashing import canonical_json
from editfoundry.training.config import TrainConfig

EDITOR = "editfoundry.training.train_editor"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
    "DS_ACCELERATOR": "cpu",
}
TIMES = ("seconds", "data_wait", "samples_per_s", "tokens_per_s", "peak_memory_bytes", "mfu")


def settings(model: Path, dataset: Path, **changes: Any) -> dict[str, Any]:
    """Plain settings of a run: 64 x 64 pixels, global batches of 4, no worker processes, no trackers."""
    plain: dict[str, Any] = {
        "name": "test",
        "model": str(model),
        "stage": "joint",
        "seed": 3,
        "steps": 6,
        "global_batch": 4,
        "micro_batch": 2,
        "data": {"datasets": [{"path": str(dataset)}], "size": 64, "aspect_ratios": [1.0], "workers": 0},
        "optimiser": {"lr": 1e-3},
        "validation": {"every": 0},
        "checkpoints": {"every": 2},
        "trackers": [],
    }
    return merged(plain, changes)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with nested changes laid over it."""
    out = dict(base)
    for key, value in changes.items():
        out[key] = (
            merged(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), Mapping) else value
        )
    return out


def write_settings(folder: Path, plain: Mapping[str, Any], name: str = "train") -> Path:
    """The settings as a file that the command line takes (JSON is YAML)."""
    TrainConfig.model_validate(plain)
    path = folder / f"{name}.yaml"
    path.write_text(canonical_json(plain), encoding="utf-8")
    return path


def forked(config: Path, run: Path, before: Callable[[], None] = lambda: None, module: str = EDITOR) -> int:
    """Start training in a forked child, which is quick to start, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(run.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.stdout = sys.stderr = os.fdopen(log, "w")
        os.environ.update(ENVIRONMENT)
        forkserver._forkserver.__init__()  # the tests' own server of worker processes is no child of this one
        before()
        from editfoundry.core.errors import EditFoundryError
        from editfoundry.core.failures import report_failure

        trainer = importlib.import_module(module)
        try:
            trainer.train(trainer.parse([str(config), "-o", str(run)]))
            code = 0
        except EditFoundryError as error:
            code = report_failure(error)
        except BaseException:  # noqa: BLE001 - the fork must not return into the tests
            sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def finished(pid: int) -> int:
    """The exit code of a forked run; negative for the signal that ended it."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def wait_until(pid: int, reached: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait until something is so, or the process has ended; whether it is so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if reached():
            return True
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return reached()
        time.sleep(0.002)
    raise TimeoutError(f"process {pid} did not get there in {seconds} s")


def launched(
    config: Path,
    run: Path,
    *arguments: str,
    processes: int = 2,
    environment: Mapping[str, str] = {},
    timeout: float = 300,
    module: str = EDITOR,
) -> subprocess.CompletedProcess[str]:
    """Train with torchrun, as `editfoundry train editor` does on a CPU."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        str(processes),
        "--master_port",
        "0",
        "--standalone",
        "-m",
        module,
        str(config),
        "-o",
        str(run),
        *arguments,
    ]
    return subprocess.run(
        command, env={**os.environ, **ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=timeout
    )


def rows(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The metrics of a kind, without what a clock or the machine decides."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    parsed = [json.loads(line) for line in lines]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in parsed if row["kind"] == kind]
