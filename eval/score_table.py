"""The scores of one edit as a table for a terminal."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from editfoundry.core.text import one_line
from editfoundry.models.judge.rubric import Scale

EIGHTHS = " ▏▎▍▌▋▊▉"
WIDEST = 8
LONGEST_REASON = 300


def score_table(row: dict[str, Any], scale: Scale) -> Table:
    """A line per dimension: the score, and where it has probabilities, a bar for each value of the scale."""
    table = Table(title_justify="left", header_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("score", justify="right")
    probabilities = row.get("probabilities", {})
    deviations = row.get("deviations", {})
    if probabilities:
        for value in scale.values:
            table.add_column(str(value))
    if deviations:
        table.add_column("deviation", justify="right")
    width = WIDEST if len(scale.values) <= WIDEST else WIDEST // 2
    for key, score in row["scores"].items():
        bars = [f"{bar(share, width)} {share:.0%}" for share in probabilities.get(key, ())]
        table.add_row(key, f"{score:.2f}", *bars, *([f"{deviations[key]:.2f}"] if deviations else []))
    table.add_row("overall", f"{row['overall']:.2f}")
    return table


def score_notes(row: dict[str, Any]) -> Iterator[str]:
    """What is to be said below the table."""
    if row["reason"]:
        yield f"reason: {one_line(row['reason'], LONGEST_REASON)}"
    if row["above_first"]:
        yield f"above the first score, and counted as it: {', '.join(row['above_first'])}"
    if row.get("uncovered", 0) >= 0.01:
        yield f"the model gave up to {row['uncovered']:.0%} to something else than a score"


def bar(share: float, width: int) -> str:
    """A bar of at most `width` characters, in eighths of one.

    >>> bar(0.53, 8)
    '████▏'
    """
    whole, eighths = divmod(round(share * width * 8), 8)
    return "█" * whole + EIGHTHS[eighths].strip()
