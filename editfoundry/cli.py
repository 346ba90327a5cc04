"""The root command. Mounts each area's commands by name and imports an area only when it is called."""

import importlib
import io
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as to_command

from editfoundry import __version__
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.failures import report_failure

AREAS = {
    "quickstart": ("editfoundry.quickstart", "Build a small edit dataset, and train a miniature editor on it."),
    "data": ("editfoundry.data_engine.cli", "Build, check, export and report edit datasets."),
    "train": ("editfoundry.training.cli", "Make an editor, train it, report on the run, and export the result."),
    "judge": ("editfoundry.eval.judge_cli", "Score edits with a judge, and measure and test judges."),
    "models": ("editfoundry.models.cli", "List, pull and locate model weights."),
    "edit": ("editfoundry.models.editor.cli", "Edit a picture by an instruction, with an editor that was trained."),
    "doctor": ("editfoundry.doctor", "Say what is installed, which weights are present, and what each enables."),
}


class Areas(TyperGroup):
    """Click group whose commands live in other modules and load on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(AREAS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in AREAS:
            return None
        command = to_command(importlib.import_module(AREAS[cmd_name][0]).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in AREAS.items()])


app = typer.Typer(
    cls=Areas, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """From photographs to instruction-based edit datasets, editors, judges and benchmarks."""
    if version:
        typer.echo(f"editfoundry {__version__}")
        raise typer.Exit


def main() -> None:
    """Console entry point: expected failures become one line on stderr and their exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")  # names of files may be any bytes
    try:
        app()
    except BrokenPipeError:
        sys.stderr.close()
        os._exit(1)
    except (EditFoundryError, OSError) as error:
        sys.exit(report_failure(error))


if __name__ == "__main__":
    main()
