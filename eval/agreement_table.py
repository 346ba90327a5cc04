"""The agreement of a judge with people as a table for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from editfoundry.core.text import one_line

MEASURES = {
    "spearman_per_model_fisher": "Spearman, per model (Fisher)",
    "spearman_pooled": "Spearman, pooled",
    "kendall_pooled": "Kendall τ-b, pooled",
    "exact": "exact, 0–10",
    "within_one": "within ±1, 0–10",
    "kappa_quadratic": "quadratic κ, 0–10",
    "levels_exact": "exact, three levels",
    "levels_kappa_quadratic": "quadratic κ, three levels",
    "pairwise_accuracy": "pairs people tell apart",
    "pairwise_accuracy_ties": "all pairs, ties count",
    "pairwise_accuracy_calibrated": "all pairs, ties calibrated",
}


def table(report: Mapping[str, Any], dimension: str) -> Table:
    """One dimension of the report of `agreement`: values with intervals, and people beside the judge."""
    of = report[dimension]
    people = of["human_human"]
    several = people["raters"] > 1
    title = f"{dimension}: {of['n']} samples of {of['cases']} cases, {len(of['model_means'])} models"
    shown = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    columns = ["judge, people's mean"]
    if several:
        columns += ["rater, rater", "rater, others' mean", "judge, same", "judge − rater"]
    shown.add_column("", no_wrap=True)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    for name, words in MEASURES.items():
        row = [_cell(of[name], of["intervals"][name])]
        for group in ("pairwise", "leave_one_out", "judge", "judge_minus_rater") if several else ():
            value = people[group].get(name)
            row.append(_cell(value, people["intervals"][group][name]) if name in people[group] else "")
        shown.add_row(words, *row)
    for model, value in of["spearman_per_model"].items():
        interval = of["intervals"]["spearman_per_model"][model]
        shown.add_row(f"Spearman, {one_line(model, 40)}", _cell(value, interval))
    return shown


def notes(report: Mapping[str, Any]) -> list[str]:
    """What must be said beside the tables: what is not defined, what was left out, and the rule for ties."""
    lines = [
        f"{dimension} {name}: not defined: {reason}"
        for dimension, of in report.items()
        if dimension != "about"
        for name, reason in of["undefined"].items()
    ]
    samples = report["about"]["samples"]
    left_out = {words: samples[key] for key, words in
                (("rated_but_not_scored", "rated but not scored"), ("rated_by_some", "not rated by every rater"),
                 ("scored_but_not_rated_by_all", "scored but not rated by all")) if samples[key]}  # fmt: skip
    lines += [f"left out: {count} samples {words}" for words, count in left_out.items()]
    return [*lines, *(f"note: {note}" for note in report["about"]["notes"])]


def _cell(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
