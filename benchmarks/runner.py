"""The local executor against a bare loop: what running a stage through it costs, and what the driver's memory does.

The stage computes for a fixed time of processor per record and writes a small row. The peer is the same computation in
as many processes, each looping over its equal share, with nothing read, written or committed.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import psutil
from _measure import Case, arguments, measure, report, spread, timed

from editfoundry.core.config import Config
from editfoundry.core.progress import Advance
from editfoundry.data_engine import runner
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.sources import IngestConfig, SourceSpec
from editfoundry.data_engine.stages.base import Item, Outcome, Stage

SAMPLE_EVERY_S = 0.05
STEP = 10_000


class Row(Record):
    """What flows: nothing but an id."""

    id: str


class WorkConfig(Config):
    """milliseconds: processor time per record."""

    milliseconds: float


class BenchmarkConfig(Config):
    """The part of RunConfig that the runner reads, and a section per stage."""

    seed: int = 0
    shard_size: int
    batch_timeout_s: float = 600
    ingest: IngestConfig
    work: WorkConfig

    def shared(self) -> dict[str, object]:
        return {"shard_size": self.shard_size}


class List(Stage):
    """Turns every listed file into a row, without opening it."""

    name: ClassVar[str] = "ingest"
    row: ClassVar[type[Record]] = Row

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [[Item(Row(id=item.record.id))] for item in batch]


class Work(Stage):
    """Computes for a fixed time per row."""

    name: ClassVar[str] = "work"
    row: ClassVar[type[Record]] = Row

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        loop(len(batch), self.config.milliseconds)
        return [[Item(item.record)] for item in batch]


def loop(records: int, milliseconds: float) -> None:
    """Keep the processor busy for a fixed time per record."""
    for _ in range(records):
        until = time.thread_time() + milliseconds / 1e3
        while time.thread_time() < until:
            sum(range(STEP))


class Stopwatch:
    """A progress bar that draws nothing and notes times: the start of the run's first batch, and each stage's wave."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.first_batch_s = 0.0
        self.waves: dict[str, float] = {}

    @contextmanager
    def bar(self, stage: str, total: int) -> Iterator[Advance]:
        del total
        entered = time.perf_counter()
        yield self._advance
        self.waves[stage] = time.perf_counter() - entered

    def _advance(self, count: int) -> None:
        del count
        self.first_batch_s = self.first_batch_s or time.perf_counter() - self.started


def run(sources: Path, shard_size: int, milliseconds: float, workers: int, stages: Sequence[type[Stage]]) -> Stopwatch:
    """Run the stages over the files of a folder, in a run folder of its own."""
    ingest = IngestConfig(sources=(SourceSpec(path=str(sources)),))
    config = BenchmarkConfig(shard_size=shard_size, ingest=ingest, work=WorkConfig(milliseconds=milliseconds))
    with tempfile.TemporaryDirectory(dir=sources.parent) as folder:
        stopwatch = Stopwatch()
        runner.run(config, Path(folder) / "run", workers=workers, stages=stages, bar=stopwatch.bar)
    return stopwatch


class PeakPss:
    """Samples the proportional set size of this process and of its children; `driver` and `workers` are the peaks."""

    def __init__(self) -> None:
        self.driver = self.workers = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakPss":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._done.wait(SAMPLE_EVERY_S):
            self.driver = max(self.driver, _pss(me))
            self.workers = max(self.workers, sum(map(_pss, me.children())))


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it ended while it was being looked at
        return 0


def drive(sources: Path, shard_size: int) -> dict[str, float]:
    """Peak memory of a driver and its worker over cheap records, and the seconds their one stage took."""
    with PeakPss() as peak:
        stopwatch = run(sources, shard_size, 0.0, 1, (List,))
    return {"driver": peak.driver, "worker": peak.workers, "seconds": stopwatch.waves["ingest"]}


def files(folder: Path, count: int) -> Path:
    """A folder of `count` empty photographs: they are listed, never opened."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:08d}.jpg").touch()
    return folder


def overhead(folder: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Ratios to the bare loop for every number of workers, and how long it takes until the first batch starts."""
    sources = files(folder / "timed", options.records)
    results, facts = [], {}
    for workers in options.workers:
        starts: list[float] = []

        def ours(workers: int = workers, starts: list[float] = starts) -> float:
            stopwatch = run(sources, options.shard_size, options.milliseconds, workers, (List, Work))
            starts.append(stopwatch.first_batch_s)
            return stopwatch.waves["work"]

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            shares = [len(range(worker, options.records, workers)) for worker in range(workers)]
            bare = partial(pool.map, loop, shares, [options.milliseconds] * workers)
            list(pool.map(loop, [1] * workers, [options.milliseconds] * workers))
            peers = {f"floor: bare loop, {_count(workers, 'process', 'es')}": timed(partial(_exhaust, bare))}
            if workers > 1:
                peers["bare loop, 1 process"] = timed(partial(loop, options.records, options.milliseconds))
            case = Case(f"stage, {_count(workers, 'worker', 's')}", options.records, ours, peers)
            results += measure(case, options.rounds, warm_ups=0)
        facts[f"start_up_s_{workers}"] = spread(starts)
    return results, facts


def _exhaust(start: Callable[[], Iterator[None]]) -> None:
    for _ in start():
        pass


def _count(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def memory(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Peaks for few and for many records, in drivers of their own, interleaved; the ratio should be 1."""
    few, many = options.memory_records
    folders = {count: files(folder / f"cheap{count}", count) for count in (few, many)}
    peaks: dict[int, list[dict[str, float]]] = {few: [], many: []}
    for _ in range(options.memory_rounds):
        for count, sources in folders.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                peaks[count].append(pool.submit(drive, sources, few).result())

    def ratio(of: str) -> dict[str, float]:
        return spread([large[of] / small[of] for small, large in zip(peaks[few], peaks[many], strict=True)])

    growth = [(large["driver"] - small["driver"]) / (many - few)
              for small, large in zip(peaks[few], peaks[many], strict=True)]
    return {
        "memory_records": [few, many],
        "driver_peak_pss_mib": {str(count): spread([p["driver"] / 2**20 for p in peaks[count]]) for count in peaks},
        "driver_peak_pss_ratio": ratio("driver"),
        "driver_bytes_per_record": spread(growth),
        "worker_peak_pss_ratio": ratio("worker"),
        "cheap_record_us": spread([(large["seconds"] - small["seconds"]) / (many - few) * 1e6
                                   for small, large in zip(peaks[few], peaks[many], strict=True)]),
    }


def main() -> None:
    parser = arguments("Run a stage through the local executor and in a bare loop.", rounds=5)
    parser.add_argument("--records", type=int, default=48, help="records of the timed stage (default: %(default)s)")
    parser.add_argument("--milliseconds", type=float, default=50, help="processor time per record")
    parser.add_argument("--shard-size", type=int, default=8, help="records per shard of the timed stage")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers to measure")
    parser.add_argument("--memory-records", type=int, nargs=2, default=[1000, 20000], metavar=("FEW", "MANY"))
    parser.add_argument("--memory-rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results, facts = overhead(Path(name), options)
        facts |= memory(Path(name), options)
    data = {"records": options.records, "milliseconds_each": options.milliseconds, "shard_size": options.shard_size}
    report(options.json, "runner", rounds=options.rounds, data=data, results=results, facts=facts,
           packages=("pyarrow", "pydantic", "psutil"))


if __name__ == "__main__":
    main()
