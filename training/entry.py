"""What the modules that accelerate launches have in common: their command line, a training run, and how they end."""

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.failures import report_failure

if TYPE_CHECKING:
    from accelerate import Accelerator

    from editfoundry.training.config import TrainConfig
    from editfoundry.training.judge.config import JudgeTrainConfig
    from editfoundry.training.loop import TrainingLoop

Loop = TypeVar("Loop", bound="TrainingLoop[Any]")


def parser(module: str, description: str, output: str) -> ArgumentParser:
    """A parser of CONFIG, -o and --set. output: what -o names."""
    made = ArgumentParser(prog=f"editfoundry.training.{module}", description=description)
    made.add_argument("config", help="a YAML file, or the name of a packaged one (train/stage1.yaml)")
    made.add_argument("-o", "--output", type=Path, required=True, help=output)
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting; repeatable")
    return made


def trainer_parser(module: str, description: str) -> ArgumentParser:
    """A parser of a trainer's command line."""
    made = parser(module, description, "folder of the run; an unfinished run resumes")
    made.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop there")
    made.add_argument("--json", action="store_true", help="print JSON for machines")
    return made


def train(
    arguments: Namespace,
    config: "TrainConfig | JudgeTrainConfig",
    make: "Callable[[Path, Accelerator], Loop]",
    show: Callable[[Loop, bool], None],
    what: str,
) -> None:
    """Train as the command line says, in a folder of its own if only a dry run is asked for.

    make: the trainer of a run's folder. show: print what it will do, as JSON or for people. what: editor or judge.
    Raises EditFoundryError for whatever the user can act on.
    """
    from editfoundry.training.metrics import TRACKERS
    from editfoundry.training.rundir import claim, held
    from editfoundry.training.sharding import make_accelerator

    accelerator = make_accelerator(log_with=list(config.trackers) or None, project_dir=arguments.output / TRACKERS)
    run: Path = arguments.output
    with ExitStack() as stack:
        if arguments.dry_run:
            run = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            with accelerator.main_process_first():
                claim(run, config)
                if accelerator.is_main_process:
                    stack.enter_context(held(run, config))
        trainer = make(run, accelerator)
        if accelerator.is_main_process:
            show(trainer, arguments.json)
        if arguments.dry_run:
            return
        trainer.prepare()
        trainer.fit()
    accelerator.end_training()
    if accelerator.is_main_process:
        print(
            f"{run}: {config.steps} steps are done; look at them with `editfoundry train report {run}`, and take the "
            f"{what} with `editfoundry train export {run} OUT`",
            file=sys.stderr,
        )


def run(job: Callable[[], None]) -> None:
    """Do it; expected failures become one line on stderr and their exit code."""
    try:
        job()
    except (EditFoundryError, OSError) as error:
        sys.exit(report_failure(error))
