"""What the benchmarks share: interleaved timing, ratios with their spread, and a report that names the machine."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

Contender = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One job, done by our code and by each peer on the same data.

    A contender does the whole job once and returns the seconds it took. items: how many items one job handles.
    A peer whose name starts with "floor" does less than the job: no code could be expected to beat it.
    """

    name: str
    items: int
    ours: Contender
    peers: Mapping[str, Contender]


def timed(job: Callable[[], object]) -> Contender:
    """A contender from a function: wall-clock seconds of one call."""

    def contender() -> float:
        started = time.perf_counter()
        job()
        return time.perf_counter() - started

    return contender


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest value, to six significant digits."""
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{number:.6g}") for name, number in numbers.items()}


def measure(case: Case, rounds: int, warm_ups: int = 1) -> list[dict[str, Any]]:
    """Time a case: in every round each contender runs once, and who starts changes from round to round.

    Returns one result per peer. `ratio` is our time over the peer's in the same round (below 1: we are faster), so
    that what else the machine does in a round weighs on both sides.
    """
    contenders = {"editfoundry": case.ours, **case.peers}
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_ups, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            elapsed = contenders[name]()
            if number >= 0:
                seconds[name].append(elapsed)
    ours = seconds["editfoundry"]
    return [
        {
            "case": case.name,
            "peer": peer,
            "items": case.items,
            "ours_seconds": spread(ours),
            "peer_seconds": spread(seconds[peer]),
            "ratio": spread([mine / theirs for mine, theirs in zip(ours, seconds[peer], strict=True)]),
        }
        for peer in case.peers
    ]


def arguments(purpose: str, rounds: int) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--rounds", type=int, default=rounds, help="measured rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and how busy the machine is."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def report(as_json: bool, benchmark: str, *, rounds: int, data: Mapping[str, Any], packages: Sequence[str],
           results: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None = None) -> None:
    """Print what was measured, on which data, machine and versions. facts: numbers that are no ratio of times."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in ("editfoundry", *packages)}}
    content: dict[str, Any] = {
        "benchmark": benchmark, "machine": machine(), "versions": versions, "rounds": rounds, "data": dict(data),
        "results": [dict(result) for result in results], "facts": dict(facts or {})}
    if as_json:
        print(json.dumps(content, indent=2))
        return
    print(f"{benchmark}: median of {rounds} rounds (min to max); ratio = our time / the peer's, below 1 is faster")
    for section in ("machine", "versions", "data"):
        print(f"{section}: " + ", ".join(f"{key} {value}" for key, value in content[section].items()))
    print(f"\n{'case':<34} {'peer':<38} {'ours/item':>12} {'peer/item':>12}  ratio")
    for result in results:
        ours, theirs = (result[side]["median"] / result["items"] for side in ("ours_seconds", "peer_seconds"))
        ratio = result["ratio"]
        print(f"{result['case']:<34} {result['peer']:<38} {_duration(ours):>12} {_duration(theirs):>12}  "
              f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})")
    for key, value in content["facts"].items():
        print(f"{key}: {value}")


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
