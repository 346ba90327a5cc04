"""`editfoundry judge`: score edits, compare results, measure a judge against people, and test whether to trust it."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.eval.variadic import VariadicCommand
from editfoundry.models.judge.types import Head, Order, Steps

if TYPE_CHECKING:
    from editfoundry.eval.judging import Task
    from editfoundry.eval.known_pairs import KnownEdits
    from editfoundry.models.judge.types import EditJudge

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Score edits with a judge, measure it against people, and test whether it can be believed.",
)

PLAIN_WIDTH = 200
SAMPLES, MOST_SAMPLES = 40, 10_000
DEFAULT_DATASET = Path("runs/quickstart/dataset")

Spec = Annotated[str, typer.Option("--judge", metavar="SPEC", help="local:DIR, or openai:MODEL@URL.")]
RubricName = Annotated[
    str | None, typer.Option("--rubric", metavar="NAME", help="edit, types, or a file; else what the judge learnt.")
]
AskedHead = Annotated[Head | None, typer.Option("--head", help="How scores are read; else what the judge learnt.")]
AskedSteps = Annotated[Steps, typer.Option("--steps", help="Of the head expected: one reply, or each score alone.")]
AskedOrder = Annotated[Order | None, typer.Option("--order", help="As released, or what is shared first.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Questions side by side, of a local judge.")]
Device = Annotated[str, typer.Option(help="Where a local judge runs: auto, cpu, cuda, cuda:1.")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Of a local judge's weights.")]
MaxPixels = Annotated[int | None, typer.Option(min=1, help="Pixels of a picture, to which larger ones are shrunk.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=8, help="Most tokens of a reply.")]
KeyVariable = Annotated[
    str | None, typer.Option("--api-key-env", metavar="NAME", help="Environment variable with a server's key.")
]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Requests to a server at a time.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Verdicts = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="File of verdicts; resumes.")]


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
        out = console()
        for name in dimensions:
            out.print(table(report, name))
    for line in notes(report):
        typer.echo(line, err=True)


@app.command("check")
def check_command(
    spec: Spec,
    dataset: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The dataset of a run; runs/quickstart/dataset by default.")
    ] = None,
    anchors: Annotated[Path | None, typer.Option(metavar="DIR", help="A frozen set, in place of a dataset.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=MOST_SAMPLES, help="Edits to test on, 40 by default.")
    ] = None,
    rubric: RubricName = None,
    head: AskedHead = None,
    steps: AskedSteps = "chained",
    order: AskedOrder = None,
    batch: Batch = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_pixels: MaxPixels = None,
    max_new_tokens: MaxNewTokens = None,
    api_key_env: KeyVariable = None,
    concurrency: Concurrency = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What -o wrote before, to see whether the judge changed.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write JSON to a file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test a judge on edits whose verdict is known, and say for which score it can be trusted."""
    from editfoundry.core.hashing import canonical_json
    from editfoundry.core.progress import progress
    from editfoundry.eval.check_table import check_table, drift_lines, drift_table, verdict_lines
    from editfoundry.eval.drift import drift, read_report, refuse_other_rubric
    from editfoundry.eval.judge_check import check_judge, write_report
    from editfoundry.models.judge.spec import JudgeOptions, open_judge

    if output is not None and output.exists() and not output.is_file():
        raise UsageError(f"{output}: not a file; give -o the path of a file")
    before = read_report(against) if against else None
    options = JudgeOptions(
        rubric, head, steps, order, batch, device, dtype, max_pixels, max_new_tokens, api_key_env, concurrency,
        _ledger(output) if output else None,
    )  # fmt: skip
    judge = open_judge(spec, options)
    if before is not None:
        refuse_other_rubric(before, judge.rubric)
    report = check_judge(judge, _known_edits(dataset, anchors, samples), lambda pairs: progress("check", pairs))
    if output is not None:
        write_report(report, output)  # at once: nothing that follows may lose it
    if before is not None:
        report["drift"] = drift(report, before, judge.rubric)
        if output is not None:
            write_report(report, output)
    if as_json:
        typer.echo(canonical_json(report))
    else:
        console().print(check_table(report))
        for line in verdict_lines(report):
            typer.echo(line)
        if before is not None:
            console().print(drift_table(report["drift"]))
            for line in drift_lines(report["drift"]):
                typer.echo(line)
    for line in report["notes"]:
        typer.echo(f"note: {line}", err=True)


@app.command("anchors")
def anchors_command(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="The dataset of a run.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder.")],
    samples: Annotated[int, typer.Option(min=1, max=MOST_SAMPLES, help="Edits to make pairs of.")] = SAMPLES,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of edits.")] = 0,
) -> None:
    """Freeze edits whose verdict is known, for `judge check --anchors`, and print the folder."""
    from editfoundry.core.progress import progress
    from editfoundry.eval.anchors import write_anchors

    about = write_anchors(dataset, output, samples, seed, lambda pairs: progress("anchors", pairs))
    typer.echo(output)
    pictures = about["pictures"]
    typer.echo(
        f"{about['pairs']} pairs of {about['samples']} edits, {pictures['count']} pictures, "
        f"{pictures['bytes'] / 1e6:.1f} MB",
        err=True,
    )


@app.command("score")
def score_command(
    pairs: Annotated[Path, typer.Option(metavar="FILE", help="JSONL: id, source, result, instruction, type.")],
    spec: Spec,
    output: Verdicts,
    rubric: RubricName = None,
    head: AskedHead = None,
    steps: AskedSteps = "chained",
    order: AskedOrder = None,
    batch: Batch = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_pixels: MaxPixels = None,
    max_new_tokens: MaxNewTokens = None,
    api_key_env: KeyVariable = None,
    concurrency: Concurrency = None,
    as_json: AsJson = False,
) -> None:
    """Score edits: one line for each pair of OUT, in their order. Repeating the command goes on where it stopped."""
    from editfoundry.eval.judging import SCORE
    from editfoundry.models.judge.spec import JudgeOptions, open_judge

    options = JudgeOptions(
        rubric, head, steps, order, batch, device, dtype, max_pixels, max_new_tokens, api_key_env, concurrency,
        _ledger(output),
    )  # fmt: skip
    _judge_file(SCORE, open_judge(spec, options), pairs, output, as_json)


@app.command("prefer")
def prefer_command(
    pairs: Annotated[Path, typer.Option(metavar="FILE", help="JSONL: id, source, first, second, instruction, type.")],
    spec: Spec,
    output: Verdicts,
    rubric: RubricName = None,
    head: AskedHead = None,
    order: AskedOrder = None,
    batch: Batch = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_pixels: MaxPixels = None,
    max_new_tokens: MaxNewTokens = None,
    api_key_env: KeyVariable = None,
    concurrency: Concurrency = None,
    as_json: AsJson = False,
) -> None:
    """Choose between two results of one instruction, shown in both orders. Repeating the command resumes."""
    from editfoundry.eval.judging import PREFER
    from editfoundry.models.judge.spec import JudgeOptions, open_judge

    options = JudgeOptions(
        rubric, head, "chained", order, batch, device, dtype, max_pixels, max_new_tokens, api_key_env, concurrency,
        _ledger(output),
    )  # fmt: skip
    _judge_file(PREFER, open_judge(spec, options), pairs, output, as_json)


@app.command("one")
def one_command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Picture before the edit.", show_default=False)],
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Picture after the edit.", show_default=False)],
    instruction: Annotated[str, typer.Argument(metavar="INSTRUCTION", help="What was asked.", show_default=False)],
    type: Annotated[str, typer.Option(metavar="TYPE", help="Of the edit, by which the rubric has its section.")],
    spec: Spec,
    rubric: RubricName = None,
    head: AskedHead = None,
    steps: AskedSteps = "chained",
    order: AskedOrder = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_pixels: MaxPixels = None,
    max_new_tokens: MaxNewTokens = None,
    api_key_env: KeyVariable = None,
    as_json: AsJson = False,
) -> None:
    """Score one edit."""
    from editfoundry.core.hashing import canonical_json
    from editfoundry.eval.judging import judge_one
    from editfoundry.eval.pairs import listed
    from editfoundry.eval.score_table import score_notes, score_table
    from editfoundry.models.judge.spec import JudgeOptions, open_judge

    options = JudgeOptions(
        rubric, head, steps, order, None, device, dtype, max_pixels, max_new_tokens, api_key_env
    )  # fmt: skip
    judge = open_judge(spec, options)
    row = judge_one(judge, listed(source, result, instruction, type))
    if as_json:
        typer.echo(canonical_json({**row, "judge": judge.provenance()}))
    elif "error" not in row:
        console().print(score_table(row, judge.rubric.scale))
        for line in score_notes(row):
            typer.echo(line)
    if "error" in row:
        raise EditFoundryError(f"no score: {row['error']['reason']} ({row['error']['detail']})")


@app.command("report")
def report_command(
    verdicts: Annotated[Path, typer.Argument(metavar="OUT", help="Scores, as `judge score` writes them.",
                                             show_default=False)],
    pairs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The pairs, if they are no longer where they were.")
    ] = None,
) -> None:  # fmt: skip
    """Write a page with every pair, its scores and the judge's words, lowest first, and print its path."""
    from editfoundry.eval.judge_report import write_report

    typer.echo(write_report(verdicts, pairs))


def _known_edits(dataset: Path | None, anchors: Path | None, samples: int | None) -> "KnownEdits":
    """What a judge is tested on. Raises UsageError for options that do not go together, and if there is no dataset."""
    from editfoundry.eval.anchors import read_anchors
    from editfoundry.eval.known_pairs import from_dataset

    if anchors is not None:
        if dataset is not None or samples is not None:
            wrong = "--dataset" if dataset is not None else "--samples"
            raise UsageError(f"{wrong} does not go with --anchors, which has its own pairs; leave one of them out")
        return read_anchors(anchors)
    if dataset is None and not DEFAULT_DATASET.is_dir():
        raise UsageError(
            f"no dataset to make pairs of ({DEFAULT_DATASET} is not here); name the `dataset` folder of a run with "
            "--dataset, an anchor set with --anchors, or call `editfoundry quickstart`"
        )
    return from_dataset(dataset or DEFAULT_DATASET, samples or SAMPLES)


def _judge_file(task: "Task", judge: "EditJudge", pairs: Path, output: Path, as_json: bool) -> None:
    """Judge a file's pairs and say what came of it. Raises EditFoundryError where pairs are left without a verdict."""
    from editfoundry.core.hashing import canonical_json
    from editfoundry.core.progress import progress
    from editfoundry.eval.judging import judge_pairs

    counts = judge_pairs(task, judge, pairs, output, lambda left: progress("judge", left))
    typer.echo(canonical_json({**counts, "output": str(output)}) if as_json else output)
    typer.echo(_said(counts), err=True)
    if counts["judged"] < counts["attempted"]:
        reasons = ", ".join(f"{reason} {number}" for reason, number in counts["unanswered"].items())
        raise EditFoundryError(
            f"{counts['attempted'] - counts['judged']} of {counts['attempted']} pairs have no verdict ({reasons}); "
            f"{output} says why for each; repeat the command to try them again"
        )


def _said(counts: dict[str, Any]) -> str:
    means = ", ".join(f"{name} {mean:.3f}" for name, mean in counts["means"].items())
    return f"{counts['judged']} of {counts['attempted']} pairs judged" + (f"; mean {means}" if means else "")


def _ledger(output: Path) -> Path:
    """Where a server's replies are kept, so that none is paid for twice."""
    return output.with_name(f"{output.name}.replies.sqlite")


def console() -> Console:
    """For tables: as wide as the terminal, or wide enough for a file."""
    return Console(markup=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
