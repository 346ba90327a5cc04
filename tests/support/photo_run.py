"""A small run of the whole engine on real photographs with the embedded weights, for end-to-end tests.

Seven sources, so seven shards of one: five photographs, a truncated one, and a second copy of one of them.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from editfoundry.core.config import CONFIG_ROOT
from editfoundry.photographs import photographs_home

PHOTOGRAPHS = ("building.jpg", "left_books.jpg", "robin.jpg", "street_barrier.jpg", "tree.jpg")
BACKGROUND = "tree.jpg"
COPY, TRUNCATED = "tree_again.jpg", "truncated.jpg"
CUTOUTS = ("basketball.png", "cow.png", "lemon.png", "mug.png", "pineapple.png", "rabbit_2.png", "rubberduck.png")
STYLE = "styles/starry_night.jpg"
FIXED_TIME = 1_700_000_000
SHARDS = len(PHOTOGRAPHS) + 2
NEW_TEMPLATE = 'instruct.templates={style: ["Paint this photograph again in the style of {result}."]}'


def missing_photographs() -> str:
    """What of the photographs cache this run lacks and what to do, or an empty string."""
    names = [*(f"photographs/{name}" for name in PHOTOGRAPHS), *(f"cutouts/{name}" for name in CUTOUTS), STYLE]
    missing = [name for name in names if not (photographs_home() / name).is_file()]
    if not missing:
        return ""
    return (f"not in {photographs_home()}: {', '.join(missing)}; `editfoundry quickstart` fetches them "
            "(some come in Debian packages, which needs apt)")


def write_config(folder: Path) -> Path:
    """Copy the photographs into `folder` and write the run's configuration beside them; returns its path."""
    photographs = folder / "photographs"
    photographs.mkdir(parents=True)
    for name in PHOTOGRAPHS:
        shutil.copyfile(photographs_home() / "photographs" / name, photographs / name)
    shutil.copyfile(photographs / BACKGROUND, photographs / COPY)
    (photographs / TRUNCATED).write_bytes((photographs / "left_books.jpg").read_bytes()[:15_000])
    for path in photographs.iterdir():
        os.utime(path, (FIXED_TIME, FIXED_TIME))
    known = yaml.safe_load((CONFIG_ROOT / "data/donors.yaml").read_text(encoding="utf-8"))["cutouts"]
    _dump(folder / "donors.yaml", {"cutouts": [entry for entry in known if entry["file"] in CUTOUTS]})
    _dump(folder / "config.yaml", {
        "name": "end-to-end test", "seed": 4, "shard_size": 1, "grid_area": 120_000, "val_fraction": 0.0,
        "ingest": {"sources": [{"path": str(photographs / name), "manifest": "data/photographs.yaml"}
                               for name in PHOTOGRAPHS] + [{"path": str(photographs / name), "licence": "as above"}
                                                           for name in (COPY, TRUNCATED)]},
        "filter": {"min_short_side": 128},
        "detect": {"read_text": False, "max_regions": 3},
        "catalogue": {"cutouts": [{"path": "${cache:photographs}/cutouts", "labels": str(folder / "donors.yaml")}],
                      "styles": [{"path": "${cache:photographs}/" + STYLE, "name": "Van Gogh's Starry Night"}]},
        "instruct": {"donor_rates": {"add": 1, "remove": 1, "replace": 0.5, "visual": 0.3, "compose": 0.3},
                     "photograph_rates": {"adjust": 1, "background": 2, "style": 0.2},
                     "conversation_rates": {"content_memory": 0.5, "content_understanding": 0.5,
                                            "version_backtracking": 2}, "paraphrase": 0},
    })
    return folder / "config.yaml"


def _dump(path: Path, value: Any) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")


@contextlib.contextmanager
def started(*arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """`editfoundry ARGUMENTS` in a process group of its own, which is gone on the way out."""
    process = subprocess.Popen(
        [sys.executable, "-m", "editfoundry", *map(str, arguments)], start_new_session=True, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def data(*arguments: Any) -> tuple[int, str]:
    """Exit code and stderr of `editfoundry data ARGUMENTS`."""
    with started("data", *arguments) as process:
        _, said = process.communicate(timeout=500)
    return process.returncode, said


def killed(config: Path, run: Path, workers: int, commits: int, seconds: float) -> bool:
    """Run, and SIGKILL the whole process group `seconds` after the run has `commits` committed shards in all.

    False if it had ended by itself, with success, before. Raises RuntimeError when it failed by itself.
    """
    with started("data", "run", "-c", config, "-o", run, "--workers", workers) as process:
        while process.poll() is None and count(run) < commits:
            time.sleep(0.01)
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return True
    if process.returncode:
        raise RuntimeError(f"the run failed by itself with exit code {process.returncode}: {said[-2000:]}")
    return False


def count(run: Path) -> int:
    """How many shards are committed."""
    return sum(1 for _ in run.glob("stages/*/commits/[0-9]*.json"))


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def records(run: Path) -> dict[str, bytes]:
    """Every commit record of a run, by relative name."""
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("stages/*/commits/[0-9]*.json"))}


def committers(run: Path) -> list[tuple[str, str, str]]:
    """(when, stage, worker) of every committed shard, in order of time."""
    commits: Sequence[dict[str, Any]] = [json.loads(record) for record in records(run).values()]
    return sorted((commit["committed_at"], commit["stage"], commit["worker"]) for commit in commits)
