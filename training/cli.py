"""`editfoundry train`: make an editor or a judge, train it, look at the run, and take the result."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from editfoundry.core.config import load_config
from editfoundry.models.editor.loading import refuse_existing
from editfoundry.training.config import TrainConfig
from editfoundry.training.judge.config import JudgeTrainConfig
from editfoundry.training.launch import CACHER, JUDGE_TRAINER, TRAINER, command, usable_cores, visible_gpus
from editfoundry.training.rundir import check_folder, is_judge, saved_config

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Make an editor or a judge, train it, report on the run, and export the result.",
)
CONFIGS: dict[str, type[TrainConfig | JudgeTrainConfig]] = {
    TRAINER: TrainConfig,
    CACHER: TrainConfig,
    JUDGE_TRAINER: JudgeTrainConfig,
}
"""What the module that accelerate launches is configured by."""


class Weights(StrEnum):
    """Which weights of a checkpoint."""

    averaged = "averaged"
    trained = "trained"


Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")
]
ConfigFile = Annotated[
    str, typer.Argument(metavar="CONFIG", help="Configuration file, or the name of a packaged one.", show_default=False)
]
Accelerate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A file of accelerate, or the name of a packaged one (accelerate/zero2.yaml); "
        "accelerate/ddp.yaml where there is a GPU, else accelerate/cpu.yaml.",
    ),
]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes, instead of the file's number.")]
RunOut = Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; an unfinished run resumes.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and stop there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.", show_default=False)]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="New folder to write.", show_default=False)]


@app.command("editor")
def editor_command(
    config: ConfigFile,
    output: RunOut,
    accelerate: Accelerate = None,
    processes: Processes = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train the editor, or go on where an earlier run stopped: accelerate's launcher starts the trainer."""
    _launch(TRAINER, config, output, overrides or [], _flags(dry_run, as_json), accelerate, processes)


@app.command("judge")
def judge_command(
    config: ConfigFile,
    output: RunOut,
    accelerate: Accelerate = None,
    processes: Processes = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train a judge, or go on where an earlier run stopped: accelerate's launcher starts the trainer."""
    _launch(JUDGE_TRAINER, config, output, overrides or [], _flags(dry_run, as_json), accelerate, processes)


@app.command("cache")
def cache_command(
    config: ConfigFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the cache; an unfinished one resumes.")],
    accelerate: Accelerate = None,
    processes: Processes = None,
    overrides: Overrides = None,
) -> None:
    """Keep what the frozen encoders make of the samples, for `data.feature_cache`; says first what it costs."""
    _launch(CACHER, config, output, overrides or [], [], accelerate, processes)


def _flags(dry_run: bool, as_json: bool) -> list[str]:
    return [flag for flag, given in (("--dry-run", dry_run), ("--json", as_json)) if given]


def _launch(
    module: str,
    config: str,
    output: Path,
    overrides: list[str],
    flags: list[str],
    accelerate: str | None,
    processes: int | None,
) -> NoReturn:
    """Become the command that runs a module with these arguments; what is wrong is said before processes start."""
    wanted = load_config(CONFIGS[module], config, overrides)
    if module != CACHER and "--dry-run" not in flags:
        check_folder(output, wanted)
    gpus = visible_gpus()
    if accelerate is None:
        accelerate, processes = (
            ("accelerate/ddp.yaml", processes or gpus) if gpus else ("accelerate/cpu.yaml", processes)
        )
    settings = [part for override in overrides for part in ("--set", override)]
    program = [module, config, "-o", str(output), *settings, *flags]
    launched = command(program, accelerate, gpus=gpus, cores=usable_cores(), processes=processes)
    if module != CACHER:
        wanted.accumulation(launched.processes)
    typer.echo(f"starting {launched}", err=True)
    launched.replace_process()


@app.command("init-editor")
def init_editor_command(
    out: Out,
    config: Annotated[str, typer.Option("-c", "--config", help="Configuration file, or the name of a packaged one.")],
    overrides: Overrides = None,
) -> None:
    """Put an editor together from released models, with new connectors, ready to be trained."""
    refuse_existing(out)  # before much is loaded
    from editfoundry.models.editor.initialise import InitConfig, init_editor

    typer.echo(init_editor(load_config(InitConfig, config, overrides or ()), out))


@app.command("miniature")
def miniature_command(
    out: Out,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
    judge: Annotated[bool, typer.Option("--judge", help="A judge instead of an editor.")] = False,
) -> None:
    """Write an editor of the real classes with random weights, small enough to try the trainer on a laptop."""
    refuse_existing(out)  # before much is loaded
    if judge:
        from editfoundry.models.judge.miniature import write_miniature_judge

        typer.echo(write_miniature_judge(out, seed=seed))
        return
    from editfoundry.models.editor.miniature import write_miniature

    typer.echo(write_miniature(out, seed=seed))


@app.command("export")
def export_command(
    run: Run,
    out: Out,
    step: Annotated[int | None, typer.Option(min=0, help="Of the checkpoint; the newest by default.")] = None,
    weights: Annotated[
        Weights | None, typer.Option(help="Averaged ones or trained ones; averaged where the run averages.")
    ] = None,
) -> None:
    """Write the trained editor for `editfoundry edit --model`, or the trained judge for `editfoundry judge`."""
    refuse_existing(out)  # before much is loaded
    ema = None if weights is None else weights is Weights.averaged
    if is_judge(saved_config(run)):
        from editfoundry.training.judge.export import export_judge

        typer.echo(export_judge(run, out, step=step, ema=ema))
        return
    from editfoundry.training.export import export

    typer.echo(export(run, out, step=step, ema=ema))


@app.command("report")
def report_command(run: Run) -> None:
    """Write one self-contained HTML page with the curves and validations of a run, and print its path."""
    if is_judge(saved_config(run)):
        from editfoundry.training.judge.report import write_judge_report

        typer.echo(write_judge_report(run))
        return
    from editfoundry.training.report import write_report

    typer.echo(write_report(run))
