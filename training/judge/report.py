"""The report of a judge's training: one self-contained HTML page with its agreement beside the untuned judge's.

Deterministic, as the editor's is.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from editfoundry.models.judge.folder import read_settings
from editfoundry.training.curves import RunCurves, below
from editfoundry.training.metrics import HeadReport, JudgeRow, JudgeValidationRow
from editfoundry.training.report_parts import (
    Figure,
    averaging_note,
    course,
    figure,
    memory,
    settings,
    short,
    speed,
    totals,
    write_page,
)
from editfoundry.training.rundir import saved_config

UNTUNED = "untuned"
MINIATURE = (
    "A random-weight miniature: the real classes in the real layout, small enough for a laptop, with random weights "
    "where the real judge has trained ones. Its curves show that the trainer works, and nothing of how good a judge "
    "becomes."
)
AGREEMENT = (
    "On photographs that are kept apart. Spearman's correlation is of the overall scores, with its 95% interval "
    "(bootstrap by photograph); exact and within one are of single scores, rounded; the error is the mean absolute "
    "one. A judge that gives every edit the same score has no correlation."
)
JudgeCurves = RunCurves[JudgeRow, JudgeValidationRow]


def write_judge_report(run: Path) -> Path:
    """Write RUN/report/index.html and return its path.

    Raises UsageError when `run` is no training run or has no metrics yet, EditFoundryError when its files are damaged.
    """
    config = saved_config(run)
    curves = JudgeCurves(run, JudgeRow, JudgeValidationRow)
    name = str(config.get("name", "training run"))
    return write_page(run, {
        "title": f"{name} · training report",
        "name": name,
        "lede": _lede(config, curves),
        "miniature": MINIATURE if _is_miniature(config) else "",
        "headline": list(_headline(curves)),
        "agreement": list(_agreement(curves)),
        "agreement_note": AGREEMENT,
        "losses": [*_spearman(curves), *_losses(curves)],
        "curves_note": averaging_note(curves),
        "by_type": [],
        "stories": [],
        "course": list(course(curves)),
        "totals": list(_totals(curves)),
        "problems": [],
        "settings": list(settings(config)),
        "images": {},
    })  # fmt: skip


def _lede(config: Mapping[str, Any], curves: JudgeCurves) -> str:
    heads = [name for name, weight in config.get("heads", {}).items() if weight]
    step = curves.last_train.step if curves.last_train else 0
    return (
        f"A judge, trained for {', '.join(heads)}: {step:,} of {config.get('steps', 0):,} steps, "
        f"{curves.samples:,} samples."
    )


def _is_miniature(config: Mapping[str, Any]) -> bool:
    """Whether the judge it started from says so of itself; False where that judge is no longer there."""
    found = read_settings(Path(str(config.get("model", ""))).expanduser())
    return found is not None and found.miniature


def _headline(curves: JudgeCurves) -> Iterator[tuple[str, str, str]]:
    first, last = curves.first_validation, curves.last_validation
    if last:
        for name, report in last.heads.items():
            before = first.heads.get(name) if first and first.step < last.step else None
            notes = [_interval(report)]
            if before and first and not first.step:
                notes.append(f"{_correlation(before)} {UNTUNED}")
            yield f"Spearman, {name}", _rounded(report.spearman), "; ".join(filter(None, notes))
        if last.preference is not None:
            yield "Comparisons answered as given", f"{last.preference:.1%}", ""
    if train := curves.last_train:
        loss = curves.train.get("loss")
        yield "Training loss", short(train.loss), f"{short(loss.points[0][1])} at first" if loss else ""
        yield from speed(curves)
    yield from memory(curves)


def _agreement(curves: JudgeCurves) -> Iterator[tuple[str, ...]]:
    """Rows of head, when, and what was measured: of the first validation and of the last."""
    rows = [row for row in (curves.first_validation, curves.last_validation) if row]
    for name in rows[-1].heads if rows else ():
        for row in rows[: 1 + (rows[0].step < rows[-1].step)]:
            report = row.heads[name]
            when = f"step {row.step:,}" if row.step else f"{UNTUNED} (step 0)"
            yield (
                name,
                when,
                _correlation(report),
                " / ".join(_rounded(value) for value in report.spearman_by_dimension.values()),
                f"{report.exact:.1%}",
                f"{report.within_one:.1%}",
                short(report.error),
            )


def _spearman(curves: JudgeCurves) -> Iterator[Figure]:
    """By head: correlation over the steps, beside the untuned judge's, and that of single dimensions."""
    first = curves.first_validation
    for name in curves.last_validation.heads if curves.last_validation else ():
        found = curves.validation.get(f"heads/{name}/spearman")
        if not found:
            continue
        lines = {"trained": found.points}
        before = first.heads[name].spearman if first and not first.step else None
        if before is not None:
            lines[UNTUNED] = [(0.0, before), (found.points[-1][0], before)]
        yield figure(f"Spearman, {name}", lines, "Of overall scores, on photographs kept apart.", head=True)
        dimensions = below(curves.validation, f"heads/{name}/spearman_by_dimension")
        if len(dimensions) > 1:
            places = {f"score {int(place) + 1}": points for place, points in dimensions.items()}
            yield figure(f"Spearman by dimension, {name}", places, head=True)


def _losses(curves: JudgeCurves) -> Iterator[Figure]:
    """The training loss, and its parts by head where there are several."""
    heads = below(curves.train, "loss_by_head")
    if "loss" in curves.train:
        yield figure("Training loss", {"loss": curves.train["loss"].points}, head=True)
    for name, points in heads.items() if len(heads) > 1 else ():
        yield figure(f"Training loss, {name}", {name: points}, head=True)


def _totals(curves: JudgeCurves) -> Iterator[tuple[str, str]]:
    yield from totals(curves)
    yield "Steps left out as not finite", f"{curves.skipped_steps:,}"
    if last := curves.last_validation:
        weights = "averaged weights" if last.averaged else "trained weights"
        yield "Validated on", f"{last.samples:,} samples on photographs kept apart, with the {weights}"


def _correlation(report: HeadReport) -> str:
    """A correlation with its interval."""
    return f"{_rounded(report.spearman)} {_interval(report)}".strip()


def _interval(report: HeadReport) -> str:
    return "" if report.low is None or report.high is None else f"[{report.low:.2f}, {report.high:.2f}]"


def _rounded(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
