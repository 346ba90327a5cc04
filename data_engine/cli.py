"""`editfoundry data`: build, check, export and report edit datasets."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from editfoundry.core.config import load_config
from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import canonical_json
from editfoundry.data_engine.audit import Finding, Funnel, funnel, verify
from editfoundry.data_engine.export import FORMATS, SPLIT_BYTES, export
from editfoundry.data_engine.forget import forget
from editfoundry.data_engine.ledger import full_disk_stops
from editfoundry.data_engine.repair import drop_rejected, repair
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.stats import Stats, stats

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                  help="Build, check, export and report edit datasets.")

EXECUTORS = ("local",)
PLAIN_WIDTH = 200
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.command("run")
def run_command(
    config: Annotated[str, typer.Option("-c", "--config", help="Configuration file, or the name of a packaged one.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; an unfinished run resumes.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes. The result is the same for any number.")] = 1,
    executor: Annotated[str, typer.Option(help="Where the work runs: local.")] = "local",
    retry: Annotated[list[str] | None, typer.Option(metavar="REASON", help="Try again what was rejected for this "
                                                    "reason, such as captioner_failed; repeatable.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                        help="Override a setting; repeatable.")] = None,
) -> None:
    """Make a dataset from photographs, or go on where an earlier run stopped."""
    from editfoundry.data_engine.config import RunConfig
    from editfoundry.data_engine.runner import run

    if executor not in EXECUTORS:
        raise UsageError(f"--executor {executor}: unknown; available: {', '.join(EXECUTORS)}")
    settings = load_config(RunConfig, config, overrides or ())
    if retry:
        with full_disk_stops(output):
            _say(f"trying {drop_rejected(RunDir.existing(output), retry)} shards again")
    dataset = run(settings, output, workers=workers)
    if dataset is not None and not any(dataset.glob("*.tar")):
        _say("note: no sample was accepted; the funnel says what was missing")
    _say(f"dataset: {dataset}\nfunnel:  editfoundry data funnel {output}\nreport:  editfoundry data report {output}")


@app.command("funnel")
def funnel_command(
    run: Run,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 unless every source is accounted for.")] = False,
    as_json: Json = False,
) -> None:
    """Show how many sources every stage took in, accepted and rejected, and why."""
    result = funnel(RunDir.existing(run))
    if as_json:
        typer.echo(result.to_json())
    else:
        _console().print(_funnel_table(result))
    for problem in result.problems:
        _say(f"problem: {problem}")
    if check and result.problems:
        raise typer.Exit(1)


@app.command("verify")
def verify_command(run: Run, as_json: Json = False) -> None:
    """Hash every committed file and the dataset again; exit 1 if anything is changed, missing or extra."""
    findings = verify(RunDir.existing(run))
    _print_findings(findings, as_json)
    if findings:
        raise typer.Exit(1)
    _say(f"{run}: every file is as recorded")


@app.command("repair")
def repair_command(run: Run, workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1) -> None:
    """Delete what `verify` finds broken, make it again, and publish again."""
    from editfoundry.data_engine.imports.run import rerun

    folder = RunDir.existing(run)
    with full_disk_stops(run):
        findings = repair(folder, rerun(folder, workers))
    _print_findings(findings, as_json=False)
    _say(f"{run}: {len(findings)} problems repaired" if findings else f"{run}: nothing to repair")


@app.command("forget")
def forget_command(
    run: Run,
    digest: Annotated[str, typer.Option("--sha256", metavar="H", help="SHA-256 of the photograph or donor.")] = "",
    url: Annotated[str, typer.Option("--url", metavar="U", help="Its source URL, or its address in the run.")] = "",
) -> None:
    """Remove a source and everything made from it from every artifact of the run, for good."""
    if bool(digest) == bool(url):
        raise UsageError("data forget: give either --sha256 H or --url U")
    if digest and not SHA256.fullmatch(digest):
        raise UsageError(f"--sha256 {digest}: a SHA-256 has 64 hexadecimal digits")
    with full_disk_stops(run):
        done = forget(RunDir.existing(run), digest.lower() or url)
    _say(f"{run}: forgot {done.sources} source(s); {done.rows} rows removed, {done.shards} shards compacted. "
         f"The report was deleted: `editfoundry data report {run}` writes it again")


@app.command("stats")
def stats_command(run: Run, as_json: Json = False) -> None:
    """Show what the dataset holds and what making it cost."""
    result = stats(RunDir.existing(run))
    if as_json:
        typer.echo(result.to_json())
    else:
        for table in _stats_tables(result):
            _console().print(table)
    for problem in result.problems:
        _say(f"problem: {problem}")


@app.command("export")
def export_command(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder to write.", show_default=False)],
    layout: Annotated[str, typer.Option("--format", help=f"Layout: {' or '.join(FORMATS)}.")],
    split_bytes: Annotated[int, typer.Option(min=512, help="Size of the parts of an ImgEdit tar.")] = SPLIT_BYTES,
) -> None:
    """Write the dataset in another layout."""
    _say(f"exported to {export(RunDir.existing(run), layout, out, split_bytes)}")


@app.command("report")
def report_command(run: Run) -> None:
    """Write a self-contained HTML page about the run."""
    from editfoundry.data_engine.report import write_report

    with full_disk_stops(run):
        typer.echo(write_report(run))


@app.command("plan")
def plan_command(
    config: Annotated[str, typer.Option("-c", "--config", help="Configuration file, or the name of a packaged one.")],
    images: Annotated[int, typer.Option(min=1, help="Photographs to plan for.")] = 10_000,
    gpu_memory: Annotated[float, typer.Option(min=1, help="Memory of one GPU in GB.")] = 80.0,
    measured: Annotated[Path | None, typer.Option(help="A finished run whose shares and seconds are used.")] = None,
    assumptions: Annotated[str, typer.Option(help="File of seconds, tokens and shares that nothing measured yet.")]
    = "data/assumptions.yaml",
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                        help="Override a setting; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Show stages, models, memory, GPU-hours and API cost of a run; exit 1 when a stage does not fit on the GPU."""
    from editfoundry.data_engine.config import RunConfig
    from editfoundry.data_engine.plan import plan, plan_rows

    result = plan(load_config(RunConfig, config, overrides or ()), images, gpu_memory,
                  RunDir.existing(measured) if measured else None, assumptions)
    if as_json:
        typer.echo(result.to_json())
    else:
        table = _table(f"{images:,} photographs; seconds assumed for {result.machine}; "
                       f"checked against GPUs of {result.gpu_memory_gb:g} GB",
                       ("stage", "inputs", "model", "checkpoints", "weights", "licence", "GB", "calls", "GPU-h", "USD"),
                       text=("stage", "model", "checkpoints", "licence"), wrapped=("checkpoints", "licence"))
        for row in plan_rows(result):
            table.add_row(*row)
        _console().print(table)
        typer.echo(f"Together: {result.gpu_hours:,.1f} GPU-hours, {result.api_usd:,.2f} USD for APIs, about "
                   f"{result.samples:,} samples, {result.storage_gb:,.1f} GB")
        typer.echo("Assumed, not measured here:" if not measured else "Assumed or measured elsewhere:")
        for note in result.assumptions:
            typer.echo(f"  {note}")
    for problem in result.problems:
        _say(f"problem: {problem}")
    if not result.fits:
        raise typer.Exit(1)


@app.command("tune-gates")
def tune_gates_command(
    run: Run,
    labels: Annotated[Path, typer.Option(help='JSON lines {"key": "…", "good": true or false}, one per edit.')],
    recall: Annotated[float, typer.Option(help="Share of the good edits that the thresholds must keep.")] = 0.9,
    as_json: Json = False,
) -> None:
    """Propose thresholds for the gates from a few hundred labelled edits, best of a run with permissive ones."""
    from editfoundry.data_engine.tuning import tune

    result = tune(RunDir.existing(run), labels, recall)
    if as_json:
        typer.echo(result.to_json())
        return
    table = _table("Proposed under verify.thresholds", ("threshold", "value"), text=("threshold",))
    for name, value in result.thresholds.items():
        table.add_row(name, f"{value:g}")
    _console().print(table)
    shares = {"precision": result.precision, "recall": result.recall, "precision before": result.before}
    for what, share in shares.items():
        typer.echo(f"{what:>16}: {share.value:.1%} (95% interval {share.low:.1%} to {share.high:.1%})")
    typer.echo(f"From {result.labels} labels ({result.good} good) on {result.photographs} photographs; precision and "
               "recall are of photographs that the thresholds were not chosen on.")
    if not result.conclusive:
        _say("note: these labels cannot tell the precision with and without the thresholds apart; label more edits")
    if result.unknown:
        _say(f"note: {len(result.unknown)} labelled keys are not in this dataset, first {result.unknown[0]}")


@app.command("import")
def import_command(
    config: Annotated[str, typer.Option("-c", "--config", help="Configuration file, or the name of a packaged one.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; an unfinished run resumes.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes. The result is the same for any number.")] = 1,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                        help="Override a setting; repeatable.")] = None,
) -> None:
    """Make a dataset from finished edit datasets of others, checked like our own."""
    from editfoundry.data_engine.imports.config import ImportConfig
    from editfoundry.data_engine.imports.run import import_datasets

    dataset = import_datasets(load_config(ImportConfig, config, overrides or ()), output, workers=workers)
    if dataset is not None and not any(dataset.glob("*.tar")):
        _say("note: no row was accepted; the funnel says why")
    _say(f"dataset: {dataset}\nfunnel:  editfoundry data funnel {output}\nreport:  editfoundry data report {output}")


@app.command("select")
def select_command(
    metadata: Annotated[list[str], typer.Argument(metavar="METADATA...", help="Parquet files, folders or patterns.",
                                                  show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.parquet", help="File to write.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the source, "
                                                        "such as metadata.punsafe.max=0.5; repeatable.")] = None,
) -> None:
    """Write the rows of LAION metadata that pass the cuts, as a list for img2dataset."""
    from editfoundry.core.config import from_overrides
    from editfoundry.data_engine.layouts.laion import select
    from editfoundry.data_engine.source_spec import SourceSpec

    if output.suffix != ".parquet" or output.exists():
        raise UsageError(f"-o {output}: {'is there already' if output.exists() else 'must end in .parquet'}")
    spec = from_overrides(SourceSpec, {"path": metadata[0], "format": "laion"}, overrides or ())
    with full_disk_stops(output):
        counts = select(metadata, spec, output)
    _say(f"{output}: {_reasons(dict(sorted(counts.items())))}")


def _print_findings(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        typer.echo(canonical_json([finding.model_dump(mode="json") for finding in findings]))
        return
    for finding in findings:
        typer.echo(finding.line())


def _funnel_table(result: Funnel) -> Table:
    columns = ("stage", "shards", "inputs", "accepted", "rejected", "outputs", "rejected because", "parts rejected")
    table = _table("", columns, text=("stage", *columns[-2:]), wrapped=columns[-2:])
    for row in result.rows:
        parts = [f"{unit}: {_reasons(reasons)}" for unit, reasons in row.parts.items()]
        table.add_row(f"{row.stage}{' *' if row.barrier else ''}", f"{row.shards}/{row.expected_shards}",
                      str(row.inputs), str(row.accepted), str(row.rejected), str(row.outputs), _reasons(row.rejects),
                      "; ".join(parts))
    table.caption = "* gathers all shards into one artifact"
    return table


def _stats_tables(result: Stats) -> list[Table]:
    counts = _table("Dataset", ("what", "value"), text=("what", "value"))
    facts: dict[str, Any] = {
        "edges": result.edges, "conversations": _reasons(result.conversations) or "none", "turns": result.turns,
        "origins": _reasons(result.origins), "splits": _reasons(result.splits), "licences": _reasons(result.licences),
        "photographs": result.photographs, "distinct scenes": result.distinct_scenes,
        "photographs with short side ≥ 1000": result.large_photographs,
        "largest share of one photograph": f"{result.largest_photograph_share:.1%}",
        "unique instruction tokens": result.unique_tokens, "words an instruction": result.words_per_instruction,
        "sizes": _reasons(result.sizes), "stack": ", ".join(result.stacks),
        "proposed gate order": ", ".join(result.proposed_gate_order) or "none measured",
    }
    for name, value in facts.items():
        counts.add_row(name, str(value))
    types = _table("Single edits by type", ("type", "edits", "share"), text=("type",))
    for name, count in result.pairs.items():
        types.add_row(name, str(count), f"{result.pair_shares[name]:.1%}")
    elapsed = _table("Worker seconds by stage", ("stage", "seconds"), text=("stage",))
    for name, seconds in result.elapsed_s.items():
        elapsed.add_row(name, f"{seconds:.1f}")
    gates = _table("Gates", ("gate", "calls", "ms a call", "refused", "rate"), text=("gate",))
    for gate in result.gates:
        gates.add_row(gate.name, str(gate.calls), f"{gate.seconds_per_call * 1000:.1f}", str(gate.refused),
                      f"{gate.refusal_rate:.1%}")
    return [counts, types, elapsed, *([gates] if result.gates else [])]


def _console() -> Console:
    """Standard output: as wide as the terminal, and wide enough for every table where it is none."""
    return Console(markup=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def _table(title: str, columns: tuple[str, ...], text: tuple[str, ...], wrapped: tuple[str, ...] = ("value",)) -> Table:
    """An empty table; `text` columns are set left, `wrapped` ones may break their lines, the others never do."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column in text else "right", no_wrap=column not in wrapped,
                         overflow="fold")
    return table


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _say(text: str) -> None:
    typer.echo(text, err=True)
