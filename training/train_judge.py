"""Train a judge: `accelerate launch … -m editfoundry.training.train_judge CONFIG -o RUN`.

The configuration says what is trained, accelerate's own file says on what. Repeating the command resumes.
"""

from argparse import Namespace
from collections.abc import Sequence

from editfoundry.core.config import load_config
from editfoundry.training import entry
from editfoundry.training.judge.config import JudgeTrainConfig


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The command line."""
    return entry.trainer_parser("train_judge", "Train a judge, or resume.").parse_args(arguments)


def train(arguments: Namespace) -> None:
    """Train as the command line says. Raises EditFoundryError for whatever the user can act on."""
    config = load_config(JudgeTrainConfig, arguments.config, arguments.set)
    from editfoundry.training.judge.summary import show
    from editfoundry.training.judge.trainer import JudgeTrainer

    entry.train(arguments, config, lambda run, accelerator: JudgeTrainer(config, run, accelerator), show, "judge")


def main() -> None:
    """Entry point."""
    arguments = parse()
    entry.run(lambda: train(arguments))


if __name__ == "__main__":
    main()
