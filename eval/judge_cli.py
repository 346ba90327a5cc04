"""`editfoundry judge`: score edits, compare results, measure a judge against people, and test whether to believe it."""

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Score edits with a judge, measure it against people, and test whether it can be believed.",
)
