"""Makes the supporting modules importable, here and (through the inherited path) in the workers that tests spawn."""

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from editfoundry.training import cli
from editfoundry.training.launch import Command

SUPPORT = str(Path(__file__).parents[1] / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that this process would have become; there are no GPUs."""
    commands: list[Command] = []

    def replace_process(self: Command) -> NoReturn:
        commands.append(self)
        sys.exit(0)

    monkeypatch.setattr(Command, "replace_process", replace_process)
    monkeypatch.setattr(cli, "visible_gpus", lambda: 0)
    return commands
