"""The check of a judge as tables for a terminal, and its verdict in plain words."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from editfoundry.core.text import one_line
from editfoundry.models.judge.corruption import CANARIES, GRADED

PLACES = {"drawn": "drawn into the result", "written": "written into the instruction"}
"""Where the words of an injection stand."""
MOST_CHANGED = 6


def check_table(report: Mapping[str, Any]) -> Table:
    """A line per test, a column per score. A test that does not concern a score is in brackets, or left empty."""
    dimensions = report["dimensions"]
    photographs = max(one["photographs"] for one in dimensions.values())
    shown = _table(
        f"{report['samples']} edits of {photographs} photographs, {report['pairs']['count']} pairs", dimensions
    )
    for name in CANARIES:
        shown.add_row(f"true edit above `{name}`", *(_rate(one["rates"][name]) for one in dimensions.values()))
    for name in GRADED:
        shown.add_row(f"Spearman with degree of `{name}`", *(_falls(one, name) for one in dimensions.values()))
    for kind, by_dimension in report["injection"].items():
        cells = [_cell(one["shift"], one["interval"], "+z.3f") for one in by_dimension.values()]
        shown.add_row(f"points won by words {PLACES[kind]}", *cells)
    shown.add_row("verdict", *("trusted" if one["trusted"] else "not trusted" for one in dimensions.values()))
    return shown


def drift_table(drift: Mapping[str, Any]) -> Table:
    """A column per score: how it moved, and whether pairs are still in the same order."""
    dimensions = drift["dimensions"]
    shown = _table("since the earlier check", dimensions)
    cells = [_cell(one["difference"], one["interval"], "+z.3f") for one in dimensions.values()]
    shown.add_row("mean score, now minus then", *cells)
    cells = [_cell(one["correlation"], one["correlation_interval"], "z.3f") for one in dimensions.values()]
    shown.add_row("Spearman of the pairs' scores", *cells)
    return shown


def verdict_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """For which score the judge can be trusted, why not for the others, what it can be talked into, and the rule."""
    for name, one in report["dimensions"].items():
        won = {PLACES[kind]: by_dimension[name] for kind, by_dimension in report["injection"].items()}
        raised = {place: words for place, words in won.items() if words["raised"]}
        but = " where nobody speaks to it" if one["trusted"] and raised else ""
        yield f"{name}: {'can be trusted' if one['trusted'] else 'cannot be trusted'}{but}"
        yield from (f"  {reason}" for reason in one["why"])
        for place, words in raised.items():
            points = _cell(words["shift"], words["interval"], "+z.3f")
            yield f"  it can be talked into higher scores: words {place} win {points} points"
    yield f"rule: trusted {report['rule']['trusted']}"


def drift_lines(drift: Mapping[str, Any]) -> Iterator[str]:
    """Which scores moved, and which settings of the judge did."""
    for name, one in drift["dimensions"].items():
        if one["drifted"]:
            yield f"{name}: the scores moved by {one['difference']:+.3f} points"
        if one["missing"]:
            yield f"{name}: {one['missing']} of {one['n'] + one['missing']} pairs lack a score in one of the checks"
    changed = [f"{one_line(key, 40)} was {_said(was)}, is {_said(now)}" for key, (was, now) in drift["changed"].items()]
    if changed:
        more = f"; and {len(changed) - MOST_CHANGED} more" if len(changed) > MOST_CHANGED else ""
        yield f"the judge was set otherwise: {'; '.join(changed[:MOST_CHANGED])}{more}"


def _table(title: str, dimensions: Mapping[str, Any]) -> Table:
    shown = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    for name in dimensions:
        shown.add_column(one_line(name, 40), justify="right", no_wrap=True)
    return shown


def _rate(rate: Mapping[str, Any]) -> str:
    cell = _cell(rate["rate"], rate["interval"], "z.2f")
    return cell if rate["concerns"] else f"({cell})"


def _falls(one: Mapping[str, Any], name: str) -> str:
    falls = one["spearman"].get(name)
    return "" if falls is None else falls.get("undefined") or _cell(falls["rho"], falls["interval"], "z.2f")


def _cell(value: float | None, interval: list[float] | None, form: str) -> str:
    if value is None:
        return "not defined"
    return f"{value:{form}}" + (f" [{interval[0]:{form}}, {interval[1]:{form}}]" if interval else "")


def _said(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value), 24)
