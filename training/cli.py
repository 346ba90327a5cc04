"""`editfoundry train`: make an editor, train it, look at the run, and take the result."""

from pathlib import Path
from typing import Annotated

import typer

from editfoundry.core.config import load_config
from editfoundry.training.config import TrainConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Make an editor, train it, report on the run, and export the result.",
)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")
]
ConfigFile = Annotated[
    str, typer.Argument(metavar="CONFIG", help="Configuration file, or the name of a packaged one.", show_default=False)
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.", show_default=False)]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="New folder to write.", show_default=False)]


@app.command("editor")
def editor_command(
    config: ConfigFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; an unfinished run resumes.")],
    accelerate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A file of accelerate, or the name of a packaged one (accelerate/zero2.yaml); "
            "accelerate/ddp.yaml where there is a GPU, else accelerate/cpu.yaml.",
        ),
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes, instead of the file's number.")] = None,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and stop there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Train the editor, or go on where an earlier run stopped: accelerate's launcher starts the trainer."""
    from editfoundry.training import launch

    load_config(TrainConfig, config, overrides or ())  # what is wrong in it is said before processes start
    gpus = launch.visible_gpus()
    trainer = [config, "-o", str(output), *(part for override in overrides or () for part in ("--set", override))]
    trainer += [flag for flag, given in (("--dry-run", dry_run), ("--json", as_json)) if given]
    command = launch.command(
        trainer,
        accelerate or ("accelerate/ddp.yaml" if gpus else "accelerate/cpu.yaml"),
        gpus=gpus,
        cores=launch.usable_cores(),
        processes=processes or (gpus if gpus and accelerate is None else None),
    )
    typer.echo(f"starting {command}", err=True)
    command.replace_process()


@app.command("init-editor")
def init_editor_command(
    out: Out,
    config: Annotated[str, typer.Option("-c", "--config", help="Configuration file, or the name of a packaged one.")],
    overrides: Overrides = None,
) -> None:
    """Put an editor together from released models, with new connectors, ready to be trained."""
    from editfoundry.models.editor.initialise import InitConfig, init_editor

    typer.echo(init_editor(load_config(InitConfig, config, overrides or ()), out))


@app.command("miniature")
def miniature_command(
    out: Out,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
) -> None:
    """Write an editor of the real classes with random weights, small enough to try the trainer on a laptop."""
    from editfoundry.models.editor.miniature import write_miniature

    typer.echo(write_miniature(out, seed=seed))


@app.command("export")
def export_command(
    run: Run,
    out: Out,
    step: Annotated[int | None, typer.Option(min=0, help="Of the checkpoint; the newest by default.")] = None,
    averaged: Annotated[
        bool | None,
        typer.Option("--ema/--no-ema", help="The averaged weights or the trained ones; averaged where there are any."),
    ] = None,
) -> None:
    """Write the trained editor as a pipeline folder, for `editfoundry edit --model`."""
    from editfoundry.training.export import export

    typer.echo(export(run, out, step=step, ema=averaged))


@app.command("report")
def report_command(run: Run) -> None:
    """Write one self-contained HTML page with the curves and validation edits of a run, and print its path."""
    from editfoundry.training.report import write_report

    typer.echo(write_report(run))
