"""`editfoundry models`: list, pull and locate model weights, and show what configurations can name.

JSON goes to stdout; progress and messages to stderr.
"""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table

from editfoundry.models.implementations import implementations, markdown
from editfoundry.models.store import Store

app = typer.Typer(no_args_is_help=True, help="List, pull and locate model weights.", rich_markup_mode=None,
                  pretty_exceptions_enable=False)
stderr = Console(stderr=True)


class StackName(StrEnum):
    """The two stacks: small weights from packages for the CPU, or the full-size models of the hub."""

    embedded = "embedded"
    full = "full"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]


@app.callback()
def models() -> None:
    """List, pull and locate model weights."""


@app.command("list")
def list_models(stack: Annotated[StackName | None, typer.Option(help="Only this stack.")] = None,
                as_json: AsJson = False) -> None:
    """Show every model: role, size, licence, source, and whether its weights are here."""
    store = Store()
    rows = [_row(store, model) for model, entry in store.manifest.models.items()
            if stack is None or entry.stack == stack.value]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    console = Console()
    for name in dict.fromkeys(row["stack"] for row in rows):
        table = Table(Column("model", no_wrap=True), "role", Column("size", justify="right", no_wrap=True), "licence",
                      "here", box=SIMPLE, title=f"{name} stack", title_justify="left")
        for row in rows:
            if row["stack"] == name:
                table.add_row(row["id"], row["role"], decimal(row["bytes"]), row["licence"],
                              "yes" if row["present"] else "no")
        console.print(table)
    console.print(f"Weights live in {store.cache_dir}. `editfoundry models pull` fetches the embedded stack; "
                  "--json says more about sources and licences.", highlight=False, soft_wrap=True)


def _row(store: Store, model: str) -> dict[str, Any]:
    entry = store.manifest.entry(model)
    return {"id": model, "role": entry.role, "use": entry.use, "bytes": entry.bytes, "licence": entry.licence,
            "licence_note": entry.licence_note, "stack": entry.stack,
            "source": store.manifest.source_of(model), "present": store.present(model)}


@app.command("pull")
def pull_models(ids: Annotated[list[str] | None, typer.Argument(help="Model ids; none means the whole stack.")] = None,
                stack: Annotated[StackName, typer.Option(help="Which stack, when no ids are given.")]
                = StackName.embedded,
                verify: Annotated[bool, typer.Option("--verify", help="Re-hash present files, re-fetch damaged ones.")]
                = False,
                as_json: AsJson = False) -> None:
    """Fetch weights into the model cache. Present ones are left alone, so an interrupted pull can be repeated."""
    store = Store()
    with PullProgress() as progress:
        outcomes = store.pull(ids or (), stack=stack.value, verify=verify, progress=progress.update)
    if as_json:
        typer.echo(json.dumps({"cache": str(store.cache_dir), "models": outcomes}, indent=2))
        return
    for model, outcome in outcomes.items():
        stderr.print(f"{outcome:>8}  {model}", highlight=False)
    stderr.print(f"{len(outcomes)} models in {store.cache_dir}", highlight=False, soft_wrap=True)


@app.command("path")
def model_path(model: Annotated[str | None, typer.Argument(help="Model id; none means the cache directory.")] = None,
               ) -> None:
    """Print where a model's weights are: a file, or a directory when it has several files."""
    store = Store()
    typer.echo(str(store.path(model)) if model else str(store.cache_dir))


@app.command("implementations")
def list_implementations(
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page of the documents.")] = False,
) -> None:
    """Show everything a configuration can name under `models`: role, stack, checkpoints, options."""
    if as_markdown:
        typer.echo(markdown(), nl=False)
        return
    found = list(implementations())
    if as_json:
        typer.echo(json.dumps([one.row() for one in found], indent=2))
        return
    table = Table("role", Column("name", no_wrap=True), "stack", "checkpoints", "what it is", box=SIMPLE)
    for one in found:
        table.add_row(one.role, f"{one.name}{' *' if one.default else ''}", one.stack, ", ".join(one.checkpoints),
                      one.summary)
    Console(markup=False).print(table)
    typer.echo("* its stack's default. --json and --markdown give the options with their defaults.")


class PullProgress:
    """One bar with speed and time left for each download; silent when stderr is not a terminal."""

    def __init__(self) -> None:
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                              TimeRemainingColumn(), console=stderr, disable=not stderr.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "PullProgress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, source: str, done: int, total: int) -> None:
        """Progress callback of `Store.pull`; called from several threads, each with its own source."""
        if source not in self._tasks:
            self._tasks[source] = self._bars.add_task(source, total=total)
        self._bars.update(self._tasks[source], completed=done)
