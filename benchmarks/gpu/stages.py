"""Images a second and peak GPU memory of every stage of the full stack, on full-size models with random weights.

Nothing is downloaded: models are built on the GPU from their released configurations, and run by the project's own
classes with their default options. Also: what a stage run through the runner costs over a bare loop. Meant for one GPU
of 80 GB; takes less than ten minutes unattended. Without a GPU it says so and measures nothing, unless with --tiny.
"""

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import transformers
import yaml
from _measure import machine, spread
from _overhead import overhead
from _subjects import SUBJECTS, Bench, Job, Subject, forget_shared

from editfoundry.core.config import load_config
from editfoundry.data_engine.plan import ASSUMPTIONS, Assumptions

PACKAGES = ("editfoundry", "torch", "transformers", "diffusers", "open_clip_torch")
RUNNER = "runner"
Result = dict[str, Any]


class Clock:
    """What is left of the time for everything."""

    def __init__(self, limit_s: float) -> None:
        self._ends = time.perf_counter() + limit_s

    def left(self) -> float:
        return self._ends - time.perf_counter()


def main() -> None:
    options = arguments().parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("skipped: no CUDA device; every figure of the full stack stays unmeasured here (--tiny shows that this "
              "script works)")  # fmt: skip
        return
    unknown = sorted(set(options.only or ()) - {*(subject.name for subject in SUBJECTS), RUNNER})
    if unknown:
        sys.exit(f"--only {unknown[0]}: there are {', '.join(subject.name for subject in SUBJECTS)}, {RUNNER}")
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench("cpu" if options.tiny else "cuda", options.tiny, Path(folder))
        results = measure_all(bench, options)
    content = {"benchmark": "gpu", "machine": machine(), "device": device_name(bench), "versions": versions(),
               "tiny": options.tiny, "results": results}  # fmt: skip
    print_table(content)
    if options.json:
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if options.assumptions:
        measured = assumptions(load_config(Assumptions, ASSUMPTIONS), results, basis(bench))
        options.assumptions.write_text(yaml.safe_dump(measured, sort_keys=False, width=120), encoding="utf-8")
    if any(result["state"] == "failed" for result in results):
        sys.exit(1)


def arguments() -> argparse.ArgumentParser:
    names = ", ".join(subject.name for subject in SUBJECTS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help=f"measure only this; repeatable: {names}, "
                        f"{RUNNER} (overhead of the runner)")  # fmt: skip
    parser.add_argument("--budget-s", type=float, default=24, help="seconds of calls per model (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=570,
                        help="seconds after which no further model is started (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20, help="most calls per job (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU: shows that the script works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as one JSON object")
    parser.add_argument("--assumptions", type=Path, metavar="FILE",
                        help="write a file for `editfoundry data plan --assumptions`")  # fmt: skip
    return parser


def measure_all(bench: Bench, options: argparse.Namespace) -> list[Result]:
    """Every subject's results, in order; one that fails is reported and the next is tried."""

    def of_subject(subject: Subject) -> list[Result]:
        return measure(bench, subject, options.rounds, min(options.budget_s, clock.left()))

    def of_runner() -> list[Result]:
        figures = overhead(bench, records=8 if bench.tiny else 128, rounds=1 if bench.tiny else 3)
        return [{"subject": RUNNER, "state": "measured", **figures}]

    work = {subject.name: partial(of_subject, subject) for subject in SUBJECTS} | {RUNNER: of_runner}
    clock, results = Clock(options.limit_s), []
    for name, measured in work.items():
        if options.only and name not in options.only:
            continue
        if clock.left() <= 0:
            results.append({"subject": name, "state": "skipped", "reason": "the time limit was reached"})
            continue
        try:
            results += measured()
        except Exception as error:  # noqa: BLE001 - reported, and the exit code
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            results.append({"subject": name, "state": "failed", "reason": reason})
        release(bench)
    return results


def measure(bench: Bench, subject: Subject, rounds: int, budget_s: float) -> list[Result]:
    """Build the subject's models and time its jobs."""
    before, started = allocated(bench), time.perf_counter()
    jobs = subject.jobs(bench)
    synchronise(bench)
    built_s, weights = time.perf_counter() - started, gigabytes(allocated(bench), before)
    common = {"subject": subject.name, "state": "measured", "checkpoints": list(subject.checkpoints),
              "build_s": round(built_s, 2), "weights_gb": weights}  # fmt: skip
    return [{**common, **timed(bench, job, rounds, budget_s / len(jobs), before)} for job in jobs]


def timed(bench: Bench, job: Job, rounds: int, budget_s: float, before: int) -> Result:
    """One warm-up call, then calls until there are enough or the budget is spent, at least one."""
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    job.run()
    synchronise(bench)
    seconds: list[float] = []
    started = time.perf_counter()
    while len(seconds) < rounds and (not seconds or time.perf_counter() - started < budget_s):
        begun = time.perf_counter()
        job.run()
        synchronise(bench)
        seconds.append((time.perf_counter() - begun) / job.items)
    peak = torch.cuda.max_memory_allocated() if bench.device == "cuda" else 0
    figures = spread(seconds)
    return {"job": job.key, "per": job.per, "work": job.work, "items_per_call": job.items, "calls": len(seconds),
            "seconds": figures, "per_second": float(f"{1 / figures['median']:.4g}"),
            "peak_gb": gigabytes(peak, before)}  # fmt: skip


def allocated(bench: Bench) -> int:
    return torch.cuda.memory_allocated() if bench.device == "cuda" else 0


def gigabytes(now: int, before: int) -> float | None:
    """GB that came since; None where memory is not counted."""
    return round((now - before) / 1e9, 2) if now else None


def synchronise(bench: Bench) -> None:
    if bench.device == "cuda":
        torch.cuda.synchronize()


def release(bench: Bench) -> None:
    """Free what a subject held, so that the next begins on an empty device."""
    forget_shared()
    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()


def device_name(bench: Bench) -> str:
    return str(torch.cuda.get_device_name()) if bench.device == "cuda" else "CPU"


def basis(bench: Bench) -> str:
    """What a measured figure rests on."""
    size = "tiny models, for no plan" if bench.tiny else "random weights"
    return f"measured by benchmarks/gpu on {device_name(bench)}, {size}"


def versions() -> dict[str, str]:
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}, **cuda}


def assumptions(assumed: Assumptions, results: Sequence[Mapping[str, Any]], why: str) -> dict[str, Any]:
    """The assumptions with the seconds and working memory that were measured; the others as they were."""
    content = assumed.model_dump(mode="json")
    jobs = [result for result in results if "job" in result]
    for job in jobs:
        cost = content["models"][job["job"]]
        cost |= {"seconds": job["seconds"]["median"], "per": job["per"], "basis": f"{why}; {job['work']}"}
        if job["peak_gb"] is not None:
            cost["working_gb"] = round(max(job["peak_gb"] - job["weights_gb"], 0.0), 2)
    if jobs:
        content["machine"] = f"{why.split(' on ', 1)[1].split(',')[0]} where measured, else {assumed.machine}"
    return content


def print_table(content: Mapping[str, Any]) -> None:
    """What was measured, on which machine and with which versions."""
    print(f"gpu: median (min to max) seconds per item; device {content['device']}"
          f"{'; TINY models, the figures mean nothing' if content['tiny'] else ''}")  # fmt: skip
    for section in ("machine", "versions"):
        print(f"{section}: " + ", ".join(f"{key} {value}" for key, value in content[section].items()))
    print(f"\n{'job':<26} {'seconds per item':<34} {'items/s':>9} {'weights GB':>11} {'peak GB':>8}  work")
    for result in content["results"]:
        if "job" in result:
            seconds = result["seconds"]
            figures = f"{seconds['median']:.4g} ({seconds['min']:.4g} to {seconds['max']:.4g})"
            memory = f"{_or_dash(result['weights_gb']):>11} {_or_dash(result['peak_gb']):>8}"
            print(f"{result['job']:<26} {figures:<34} {result['per_second']:>9.4g} {memory}  {result['work']}")
        elif result["state"] == "measured":
            ratio = result["ratio"]
            print(f"{RUNNER}: a stage through the runner takes {ratio['median']:.2f} ({ratio['min']:.2f} to "
                  f"{ratio['max']:.2f}) times the bare loop, {result['records']} pictures")  # fmt: skip
        else:
            print(f"{result['subject']}: {result['state']}: {result['reason']}")


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
