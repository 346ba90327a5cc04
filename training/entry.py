"""What the modules that accelerate launches have in common: their command line, and how they end."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.failures import report_failure


def parser(module: str, description: str, output: str) -> ArgumentParser:
    """A parser of CONFIG, -o and --set. output: what -o names."""
    made = ArgumentParser(prog=f"editfoundry.training.{module}", description=description)
    made.add_argument("config", help="a YAML file, or the name of a packaged one (train/stage1.yaml)")
    made.add_argument("-o", "--output", type=Path, required=True, help=output)
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting; repeatable")
    return made


def run(job: Callable[[], None]) -> None:
    """Do it; expected failures become one line on stderr and their exit code."""
    try:
        job()
    except (EditFoundryError, OSError) as error:
        sys.exit(report_failure(error))
