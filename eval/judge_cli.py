"""`editfoundry judge`: score edits, compare results, measure a judge against people, and test whether to believe it."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from editfoundry.eval.variadic import VariadicCommand

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Score edits with a judge, measure it against people, and test whether it can be believed.",
)

PLAIN_WIDTH = 200


@app.callback()
def judge() -> None:
    """Score edits with a judge, measure it against people, and test whether it can be believed."""


class Dimension(StrEnum):
    """What is scored: whether the result follows, whether it is a good picture, and both."""

    SC = "SC"
    PQ = "PQ"
    O = "O"  # noqa: E741


class AgreementCommand(VariadicCommand):
    """Takes `--human A B C` as well as `--human A --human B --human C`."""

    variadic = frozenset({"--human"})


@app.command("agreement", cls=AgreementCommand)
def agreement_command(
    human: Annotated[
        list[Path], typer.Option(metavar="FILE...", help="Ratings, a file per rater: uid<TAB>model…, cells [sc,pq].")
    ],
    model: Annotated[Path, typer.Option(metavar="FILE", help="Scores: JSON {model: {uid: {SC: […], PQ: […]}}}.")],
    dimension: Annotated[Dimension | None, typer.Option(help="Only this one; all three by default.")] = None,
    replicates: Annotated[
        int, typer.Option("--bootstrap", min=0, max=10_000, help="Replicates, 0 for no intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure how far a judge agrees with people, and people with each other."""
    from editfoundry.core.hashing import canonical_json
    from editfoundry.core.progress import progress
    from editfoundry.eval.agreement import DIMENSIONS, agreement, comparisons
    from editfoundry.eval.agreement_table import notes, table
    from editfoundry.eval.ratings import lay_side_by_side, read_raters, read_scores

    ratings = lay_side_by_side([read_raters(file) for file in human], read_scores(model))
    dimensions = (dimension.value,) if dimension else DIMENSIONS
    with progress("agreement", comparisons(len(human), len(dimensions))) as advance:
        report = agreement(ratings, dimensions, replicates, seed, advance)
    if as_json:
        typer.echo(canonical_json(report))
    else:
        console = Console(markup=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        for name in dimensions:
            console.print(table(report, name))
    for line in notes(report):
        typer.echo(line, err=True)
