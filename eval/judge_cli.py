"""`editfoundry judge`: score edits, compare results, measure a judge against people, and test whether to believe it."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from editfoundry.core.errors import EditFoundryError
from editfoundry.eval.variadic import VariadicCommand
from editfoundry.models.judge.types import Head, Order, Steps

if TYPE_CHECKING:
    from editfoundry.eval.judging import Task
    from editfoundry.models.judge.types import EditJudge

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Score edits with a judge, measure it against people, and test whether it can be believed.",
)

PLAIN_WIDTH = 200

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
