"""Train the editor: `accelerate launch … -m editfoundry.training.train_editor CONFIG -o RUN`.

The configuration says what is trained, accelerate's own file says on what. Repeating the command resumes.
"""

from argparse import Namespace
from collections.abc import Sequence

from editfoundry.core.config import load_config
from editfoundry.training import entry
from editfoundry.training.config import TrainConfig


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The command line."""
    return entry.trainer_parser("train_editor", "Train the editor, or resume.").parse_args(arguments)


def train(arguments: Namespace) -> None:
    """Train as the command line says. Raises EditFoundryError for whatever the user can act on."""
    config = load_config(TrainConfig, arguments.config, arguments.set)
    from editfoundry.training.summary import show
    from editfoundry.training.trainer import Trainer

    entry.train(arguments, config, lambda run, accelerator: Trainer(config, run, accelerator), show, "editor")


def main() -> None:
    """Entry point."""
    arguments = parse()
    entry.run(lambda: train(arguments))


if __name__ == "__main__":
    main()
