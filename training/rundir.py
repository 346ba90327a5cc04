"""A training run's folder: whose it is, and which settings may change when it resumes."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from editfoundry.core.config import Config
from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import canonical_json
from editfoundry.data_engine.ledger import replace_file

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
INDEX = "index"
VALIDATION = "validation"
LOCK = ".lock"
MAY_CHANGE = (
    "name",
    "steps",
    "micro_batch",
    "data.workers",
    "data.prefetch",
    "validation",
    "checkpoints",
    "trackers",
    "gradient_checkpointing",
    "compile",
    "nonfinite",
)
"""What a resumed run may set otherwise: none of it changes the order of the data or the meaning of the weights. More

steps stretch what is left of a schedule that falls.
"""


def claim(run: Path, config: Config) -> None:
    """Make the folder of a run, or find the one that is there with the same settings; `held` then writes them."""
    check_folder(run, config)
    run.mkdir(parents=True, exist_ok=True)


def check_folder(run: Path, config: Config) -> None:
    """Whether a run of these settings can begin or go on in a folder.

    Raises UsageError when it holds other files, another stage's run, or a run of other settings, naming those.
    """
    file = run / CONFIG
    if not file.is_file():
        if run.exists() and (not run.is_dir() or {path.name for path in run.iterdir()} - {LOCK}):
            raise UsageError(f"{run}: holds other files and no training run; choose an empty or new folder")
    else:
        held = saved_config(run)
        wanted = config.model_dump(mode="json")
        if task(held) != task(wanted):
            raise UsageError(
                f"{run}: holds a run of {task(held)}; give {task(wanted)} a folder of its own, so that neither "
                "overwrites the other"
            )
        if changed := differing(held, wanted):
            raise UsageError(
                f"{run}: was started with other settings ({', '.join(changed)}); restore them, or choose a new folder"
            )


@contextmanager
def held(run: Path, config: Config) -> Iterator[None]:
    """Write a claimed folder's settings; while open, no other process can train in it (UsageError if one does)."""
    with (run / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{run}: another process trains in this folder; wait for it, or stop it") from None
        replace_file(run / CONFIG, (canonical_json(config.model_dump(mode="json")) + "\n").encode())
        yield


def saved_config(run: Path) -> dict[str, Any]:
    """The settings that a run was last started with. Raises UsageError when `run` is no training run."""
    try:
        held = json.loads((run / CONFIG).read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{run}: not a training run (no {CONFIG}); `editfoundry train … -o` makes one") from None
    except ValueError as error:
        raise UsageError(f"{run / CONFIG}: damaged: {error}") from error
    if not isinstance(held, dict):
        raise UsageError(f"{run / CONFIG}: damaged: not a mapping")
    return held


def task(config: Mapping[str, Any]) -> str:
    """What a run of these settings trains: a judge, or a stage of the editor."""
    return "a judge" if is_judge(config) else f"stage `{config.get('stage')}`"


def is_judge(config: Mapping[str, Any]) -> bool:
    """Whether these are settings of a judge's training."""
    return "rubric" in config


def differing(held: Mapping[str, Any], wanted: Mapping[str, Any], above: str = "") -> list[str]:
    """`key: was X, is Y` for every setting that differs and may not."""
    found = []
    for key in sorted({*held, *wanted}):
        name = f"{above}{key}"
        before, now = held.get(key), wanted.get(key)
        if name in MAY_CHANGE or before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            found += differing(before, now, f"{name}.")
        else:
            found.append(f"{name}: was {_short(before)}, is {_short(now)}")
    return found


def _short(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
