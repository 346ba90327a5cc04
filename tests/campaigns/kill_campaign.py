"""Kill the data engine at many random moments and see that nothing comes of it. Not part of the ordinary suite.

    python tests/campaigns/kill_campaign.py --kills 30 --seed 0 [--config FILE] [--workers 2] [--out FOLDER]

First the configuration runs undisturbed with one worker (default: the end-to-end tests' photographs, see
`tests/support/photo_run.py`). Then it is run again and again with `--workers`, its whole process group killed with
SIGKILL at a random moment and started again in the same folder; when a run gets to its end, its dataset is compared
with the undisturbed one byte for byte, and a fresh one begins. A moment is a number of committed shards, up to a
quarter of all beyond those there are, and up to two seconds after that; so the kills spread over all stages, starts of
workers and loading of models included, however fast the machine is. Prints a row for every kill (where the run was,
how many shards were committed) and a summary; exits 1 if a dataset differs, `verify` or `funnel` finds a problem, or a
committed shard was lost or made again. Thirty kills take about ten minutes on two cores.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import photo_run

from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.rundir import RunDir

LONGEST_S = 2.0
STRIDE_SHARE = 4
FORCED_KILLS_A_RUN = 8


@dataclass
class Kill:
    """One kill: in which run, how long after how many commits, during which stage, and how many commits there were."""

    run: int
    commits: int
    seconds: float
    stage: str
    committed: int


@dataclass
class Campaign:
    """The kills so far, the runs that came to their end, and everything that was wrong."""

    config: Path
    workers: int
    reference: Path
    stride: int
    rng: random.Random
    kills: list[Kill] = field(default_factory=list)
    finished: int = 0
    problems: list[str] = field(default_factory=list)

    def run_to_the_end(self, path: Path, most: int) -> None:
        """One run in `path`, killed up to `most` times on its way, then checked."""
        number, left = self.finished + 1, most
        committed: dict[str, bytes] = {}
        while left:
            commits, seconds = len(committed) + self.rng.randrange(self.stride), self.rng.uniform(0, LONGEST_S)
            if not photo_run.killed(self.config, path, self.workers, commits, seconds):
                break
            left -= 1
            committed = self._compare(number, path, committed)
            self.kills.append(Kill(number, commits, seconds, reached(path), len(committed)))
            say(f"kill {len(self.kills)}: run {number}, {len(committed)} shards committed")
        code, said = photo_run.data("run", "-c", self.config, "-o", path, "--workers", self.workers)
        self.finished += 1
        if code:
            self.problems.append(f"run {number}: failed with exit code {code}: {said[-500:]}")
            return
        self._compare(number, path, committed)
        self._check(number, path)

    def _compare(self, number: int, path: Path, before: dict[str, bytes]) -> dict[str, bytes]:
        """The commit records now; those of before must be among them, unchanged."""
        now = photo_run.records(path)
        self.problems += [f"run {number}: {name} was lost" for name in before.keys() - now.keys()]
        self.problems += [f"run {number}: {name} was made again" for name in before.keys() & now.keys()
                          if before[name] != now[name]]
        return now

    def _check(self, number: int, path: Path) -> None:
        expected, got = photo_run.tree(self.reference / "dataset"), photo_run.tree(path / "dataset")
        self.problems += [f"run {number}: dataset/{name} differs" for name in sorted(expected.keys() | got.keys())
                          if expected.get(name) != got.get(name)]
        self.problems += [f"run {number}: {finding.line()}" for finding in verify(RunDir(path))]
        self.problems += [f"run {number}: {problem}" for problem in funnel(RunDir(path)).problems]


def reached(path: Path) -> str:
    """The last stage that the run had begun."""
    folder = RunDir(path)
    if not folder.state_file.exists():
        return "before the first stage"
    return ([stage.name for stage in folder.state().stages if stage.fingerprint] or ["before the first stage"])[-1]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(campaign: Campaign, seconds: float) -> None:
    """Print the table of kills and the summary."""
    table = Table("kill", "run", "moment", "in stage", "shards committed")
    for number, kill in enumerate(campaign.kills, start=1):
        moment = f"{kill.commits} + {kill.seconds:.2f} s"
        table.add_row(str(number), str(kill.run), moment, kill.stage, str(kill.committed))
    Console(width=100).print(table)
    for problem in campaign.problems:
        print(f"problem: {problem}")
    stages = len({kill.stage for kill in campaign.kills})
    print(f"{len(campaign.kills)} kills over {campaign.finished} runs, in {stages} different stages, "
          f"{seconds / 60:.1f} minutes: "
          + (f"{len(campaign.problems)} problems" if campaign.problems else
             "every dataset identical to the undisturbed one, nothing lost, nothing made twice"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="how many (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--config", type=Path, help="configuration to run (default: the end-to-end tests')")
    parser.add_argument("--workers", type=int, default=2, help="of the killed runs (default: 2)")
    parser.add_argument("--out", type=Path, help="empty folder to work in, kept (default: a temporary one, deleted)")
    options = parser.parse_args()
    if options.config is None and (reason := photo_run.missing_photographs()):
        parser.error(reason)
    out = options.out or Path(tempfile.mkdtemp(prefix="kill-campaign-"))
    started = time.monotonic()
    try:
        campaign = conduct(out, options.config or photo_run.write_config(out / "inputs"), options)
    finally:
        if options.out is None:
            shutil.rmtree(out)
    show(campaign, time.monotonic() - started)
    return 1 if campaign.problems else 0


def conduct(out: Path, config: Path, options: argparse.Namespace) -> Campaign:
    """Run undisturbed, then killed until there were as many kills as asked for."""
    reference = out / "undisturbed"
    say("running undisturbed, with one worker")
    code, said = photo_run.data("run", "-c", config, "-o", reference, "--workers", 1)
    if code:
        raise SystemExit(f"the undisturbed run failed with exit code {code}: {said[-2000:]}")
    stride = photo_run.count(reference) // STRIDE_SHARE
    campaign = Campaign(config, options.workers, reference, stride, random.Random(options.seed))
    while len(campaign.kills) < options.kills:
        path = out / f"killed{campaign.finished + 1}"
        campaign.run_to_the_end(path, min(FORCED_KILLS_A_RUN, options.kills - len(campaign.kills)))
        if not campaign.problems:
            shutil.rmtree(path)
    return campaign


if __name__ == "__main__":
    sys.exit(main())
