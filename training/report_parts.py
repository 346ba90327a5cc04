"""What the reports of all training runs have in common: charts by step, numbers as words, and the page itself."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.filesize import decimal

from editfoundry.core import charts
from editfoundry.core.pages import render
from editfoundry.data_engine.ledger import replace_file
from editfoundry.training.curves import RunCurves

HEAD_WIDTH = 520


@dataclass(frozen=True)
class Figure:
    """A chart with a title, and what is to be said of it. narrow: the same for a phone, where it is another one."""

    title: str
    drawing: Markup
    narrow: Markup | None
    note: str = ""


def write_page(run: Path, context: Mapping[str, Any]) -> Path:
    """Write RUN/report/index.html and return its path."""
    page = render("editfoundry.training:train_report.html.jinja", **context)
    target = run / "report" / "index.html"
    target.parent.mkdir(exist_ok=True)
    replace_file(target, page.encode())
    return target


def figure(
    title: str, series: Mapping[str, list[tuple[float, float]]], note: str = "", *, head: bool = False, **options: Any
) -> Figure:
    """A chart of curves by step; `head`: a wide one, with a narrow form of it."""
    label = f"{title} by step"
    narrow = charts.lines(series, label=label, title="step", **options)
    if not head:
        return Figure(title, narrow, None, note)
    return Figure(title, charts.lines(series, label=label, title="step", width=HEAD_WIDTH, **options), narrow, note)


def course(curves: RunCurves[Any, Any]) -> Iterator[Figure]:
    """How the training itself went."""
    wanted: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("grad_norm", "Gradient norm", "Before clipping. Logarithmic.", {"log": True}),
        ("lr", "Learning rate", "", {"format": ".1e"}),
        ("samples_per_s", "Samples a second", "", {"format": "~s"}),
        ("data_wait", "Waiting for data", "Share of a step's time.", {"format": ".0%"}),
        ("mfu", "Model FLOPs utilisation", "Analytic FLOPs over the GPUs' peak.", {"format": ".0%"}),
        ("mean_weight", "Mean weight of the edit mask", "1 where every image token counts alike.", {}),
    )
    for name, title, note, options in wanted:
        if name in curves.train:
            yield figure(title, {name: curves.train[name].points}, note, **options)


def speed(curves: RunCurves[Any, Any]) -> Iterator[tuple[str, str, str]]:
    """(label, value, note) of throughput and waiting."""
    assert curves.last_train is not None
    yield "Samples a second", short(curves.last_train.samples_per_s), f"{curves.last_train.tokens_per_s:,.0f} tokens"
    waited = curves.train["data_wait"].points
    share = sum(value for _, value in waited) / len(waited)
    yield "Waiting for data", f"{share:.1%}", "of a step's time, on average"


def memory(curves: RunCurves[Any, Any]) -> Iterator[tuple[str, str, str]]:
    """(label, value, note) of the most memory, where that is known."""
    if curves.peak_memory:
        yield "Peak memory", decimal(curves.peak_memory).replace(" ", "\u00a0"), "of the first rank"


def totals(curves: RunCurves[Any, Any]) -> Iterator[tuple[str, str]]:
    """(name, value) of what a run did in all."""
    yield "Samples trained on", f"{curves.samples:,}"
    yield "Tokens trained on", f"{curves.tokens:,}"
    yield "Epochs", short(curves.last_train.epoch) if curves.last_train else "0"
    yield "Time in training steps", duration(curves.seconds)
    yield "Time in validations", duration(curves.validation_seconds)


def averaging_note(curves: RunCurves[Any, Any]) -> str:
    """What a point of a long run's curves is."""
    return f"A point of a training curve is the mean of up to {curves.width:,} steps." if curves.width > 1 else ""


def short(value: float | None) -> str:
    """A number in three digits."""
    return "none" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as words."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def settings(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of every setting, keys dotted."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from settings(value, f"{above}{name}.")
        else:
            yield above + name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
