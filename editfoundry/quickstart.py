"""`editfoundry quickstart`: fetch what is missing, make a small dataset from real photographs, report where it is."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from editfoundry.core.config import load_config
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import canonical_json, sha256_file
from editfoundry.models.cli import PullProgress
from editfoundry.models.store import Store
from editfoundry.photographs import Fetched, fetch

CONFIG = "data/quickstart.yaml"
SAMPLE_EVERY_S = 0.5
DEFAULT_WORKERS = 2

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
stderr = Console(stderr=True, highlight=False, markup=False)


@app.command()
def quickstart(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; an unfinished run resumes.")]
    = Path("runs/quickstart"),
    workers: Annotated[int | None, typer.Option(min=1, show_default=False,
                                                help="Worker processes; two, if there are as many cores.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                        help="Override a setting; repeatable.")] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Leave out training a miniature on it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Build a small edit dataset from real photographs, and train a miniature editor on it; with their reports."""
    from editfoundry.data_engine.config import RunConfig
    from editfoundry.data_engine.report import write_report
    from editfoundry.data_engine.rundir import RunDir
    from editfoundry.data_engine.runner import run
    from editfoundry.data_engine.stats import stats

    config = load_config(RunConfig, CONFIG, overrides or ())
    fetched = materials()
    with PeakMemory() as memory, timed() as seconds:
        dataset = run(config, output, workers=workers or min(DEFAULT_WORKERS, len(os.sched_getaffinity(0))))
    if dataset is None:
        raise EditFoundryError(f"{output}: the pipeline ended without a dataset")
    numbers = stats(RunDir.existing(output))
    summary = {
        "report": str(write_report(output)),
        "dataset": str(dataset),
        "notes": list(fetched.notes),
        "seconds": round(seconds[0], 1),
        "peak_pss_bytes": memory.peak,
        "workers": commits_by_worker(RunDir.existing(output)),
        "stats": numbers.model_dump(mode="json"),
    }
    if not data_only:
        with timed() as seconds:
            trained = second_act(dataset, output)
        summary["editor"] = trained and {**trained, "seconds": round(seconds[0], 1)}
    if as_json:
        typer.echo(canonical_json(summary))
    else:
        _show(output, summary)


def second_act(dataset: Path, output: Path) -> dict[str, Any] | None:
    """Train the miniature on the dataset, beside the run; None, and said on stderr, without diffusers or samples."""
    if find_spec("diffusers") is None:
        stderr.print("left out: training needs more packages; pip install 'editfoundry[train]'", soft_wrap=True)
        return None
    from editfoundry.training.data.index import NoSamples
    from editfoundry.training.demonstration import demonstrate

    digest = sha256_file(dataset / "manifest.json")[:8]  # another dataset is another training
    try:
        return demonstrate(dataset, output.with_name(f"{output.name}-editor") / digest)
    except NoSamples as error:
        stderr.print(f"left out: training a miniature: {error}", soft_wrap=True)
        return None


def materials() -> Fetched:
    """Pull the embedded weights and fetch the photographs, as far as they are missing; says on stderr what it lacks.

    Raises FetchError for weights, and PhotographsError if there is not one photograph.
    """
    store = Store()
    with PullProgress() as bars:
        store.pull(progress=bars.update)
        fetched = fetch(progress=bars.update)
    for note in fetched.notes:
        stderr.print(f"left out: {note}", soft_wrap=True)
    return fetched


@contextmanager
def timed() -> Iterator[list[float]]:
    """Yields a list that holds the elapsed seconds once the block has ended."""
    started, elapsed = time.monotonic(), [0.0]
    yield elapsed
    elapsed[0] = time.monotonic() - started


class PeakMemory:
    """Samples the proportional set size of this process and all below it; `peak` is the largest sum seen, in bytes.

    PSS counts a page shared by n processes as 1/n in each, so the sum over the tree counts every page once.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
                 ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            self.peak = max(self.peak, sum(_pss(process) for process in (me, *me.children(recursive=True))))
            if self._done.wait(SAMPLE_EVERY_S):
                return


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it ended while it was being looked at
        return 0


def commits_by_worker(run: Any) -> dict[str, Any]:
    """How many shards each worker committed, and how often, in the order of commits, the worker changed."""
    commits = [commit for stage in run.state().stages if stage.fingerprint and not stage.barrier
               for commit in run.store(stage.name, stage.fingerprint).commits()]
    order = [commit.worker for commit in sorted(commits, key=lambda commit: commit.committed_at)]
    return {"shards": {name: order.count(name) for name in sorted(set(order))},
            "changes": sum(before != after for before, after in pairwise(order))}


def _show(output: Path, summary: dict[str, Any]) -> None:
    console = Console(highlight=False)
    numbers = summary["stats"]
    workers = ", ".join(f"{name} {count}" for name, count in summary["workers"]["shards"].items())
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in {
        "report": summary["report"],
        "shards": f"{summary['dataset']}/*.tar, with index.parquet",
        "statistics": f"editfoundry data stats {output}",
        "rejects": f"editfoundry data funnel {output} --check",
        "": "",
        "photographs used": f"{numbers['photographs']}, of {numbers['distinct_scenes']} distinct scenes; "
                            f"{numbers['large_photographs']} with a short side of at least 1000",
        "single edits": f"{sum(numbers['pairs'].values())}: " + _counts(numbers["pairs"]),
        "conversations": f"{sum(numbers['conversations'].values())}: " + _counts(numbers["conversations"]),
        "on real objects": str(numbers["origins"].get("photograph", 0)),
        "time and memory": f"{summary['seconds']} s, at most {decimal(summary['peak_pss_bytes'])} (PSS, all processes)",
        "shards committed": f"{workers}; the worker changed {summary['workers']['changes']} times",
    }.items():
        table.add_row(name, value)
    if editor := summary.get("editor"):
        before, after = editor["loss"]
        table.add_row("", "")
        table.add_row("miniature editor", f"random weights, {editor['steps']} steps in {editor['seconds']} s")
        table.add_row("its loss", f"{before:.3f} to {after:.3f} in validation; giving the picture back has "
                                  f"{editor['identity_loss']:.3f}")
        table.add_row("its report", editor["report"])
        table.add_row("edit with it", f"editfoundry train export {editor['run']} MODEL, then editfoundry edit PICTURE "
                      "INSTRUCTION --model MODEL -o OUT; it edits nothing well")
    console.print(table)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
