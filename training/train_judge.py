"""Train a judge: `accelerate launch … -m editfoundry.training.train_judge CONFIG -o RUN`.

The configuration says what is trained, accelerate's own file says on what. Repeating the command resumes.
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from editfoundry.core.config import load_config
from editfoundry.training import entry
from editfoundry.training.judge.config import JudgeTrainConfig


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The command line."""
    parser = entry.parser("train_judge", "Train a judge, or resume.", "folder of the run; an unfinished run resumes")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop there")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    return parser.parse_args(arguments)


def train(arguments: Namespace) -> None:
    """Train as the command line says. Raises EditFoundryError for whatever the user can act on."""
    config = load_config(JudgeTrainConfig, arguments.config, arguments.set)
    from editfoundry.training.judge.summary import show
    from editfoundry.training.judge.trainer import JudgeTrainer
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
        trainer = JudgeTrainer(config, run, accelerator)
        if accelerator.is_main_process:
            show(trainer, as_json=arguments.json)
        if arguments.dry_run:
            return
        trainer.prepare()
        trainer.fit()
    accelerator.end_training()
    if accelerator.is_main_process:
        print(
            f"{run}: {config.steps} steps are done; look at them with `editfoundry train report {run}`, and take the "
            f"judge with `editfoundry train export {run} OUT`",
            file=sys.stderr,
        )


def main() -> None:
    """Entry point."""
    arguments = parse()
    entry.run(lambda: train(arguments))


if __name__ == "__main__":
    main()
