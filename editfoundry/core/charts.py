"""Charts for pages, as static inline SVG: Altair draws, vl-convert renders, no script and no request at view time.

Colours are stand-ins that `pages/base.css` replaces, so that one drawing follows the reader's light or dark scheme.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
from markupsafe import Markup

WIDE = 640
NARROW = 300
_INK, _SOFT, _ACCENT, _SECOND, _FAINT, _LINE = "#111111", "#222222", "#333333", "#444444", "#555555", "#666666"
_COLOURS = (_ACCENT, _SECOND, _FAINT)
_STROKES = ((_ACCENT, [1, 0]), (_SECOND, [6, 3]), (_SOFT, [2, 2]))
_RAMP = ("#777701", "#777702", "#777703", "#777704", "#777705")  # from the accent to the second colour
_MARKED = 40  # points of a line up to which each is marked
_ENTRY = 100  # pixels of a legend's entry
_EXTENT = 44  # pixels for the numbers of a y axis
_ROW_HEIGHT = 24
_CHARACTER = 8.0  # pixels of a 12 px character in a wide sans serif: readers' fonts differ from the one measured here


def bars(counts: Mapping[str, int], *, label: str, width: int = NARROW) -> Markup:
    """Horizontal bars, in the mapping's order, each with its number. `label` describes the chart to a screen reader."""
    rows = [{"name": name, "count": count} for name, count in counts.items()]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", sort=None, title=None, axis=_names(counts)),
        x=alt.X("count:Q", title=None, axis=None, scale=alt.Scale(domain=[0, max([*counts.values(), 1]) * 1.18])))
    marks = base.mark_bar(color=_ACCENT, height=13)
    numbers = base.mark_text(align="left", dx=5, color=_SOFT).encode(text=alt.Text("count:Q", format=",d"))
    return _svg((marks + numbers).properties(height=_ROW_HEIGHT * len(rows)), label, width)


def histogram(edges: Sequence[float], counts: Sequence[int], *, label: str, title: str, format: str = "~g",
              width: int = NARROW) -> Markup:
    """Counts per bin: `edges` has one more entry than `counts`. `title` names the x axis, `format` its numbers (d3)."""
    if len(edges) != len(counts) + 1:
        raise ValueError(f"a histogram of {len(counts)} counts needs {len(counts) + 1} edges, got {len(edges)}")
    rows = [{"low": low, "high": high, "count": count}
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(color=_ACCENT, binSpacing=1).encode(
        x=alt.X("low:Q", bin="binned", title=title, axis=alt.Axis(format=format, grid=False, tickCount=5)),
        x2="high:Q",
        y=alt.Y("count:Q", title=None, axis=alt.Axis(tickCount=4, tickMinStep=1, format=",d", domain=False,
                                                     ticks=False)))
    return _svg(chart.properties(height=170), label, width)


def stacked(rows: Sequence[tuple[str, Mapping[str, int]]], *, label: str, width: int = WIDE) -> Markup:
    """One horizontal bar per row, split into at most three parts in the order of the first row, with a legend."""
    parts = list(rows[0][1]) if rows else []
    if len(parts) > len(_COLOURS):
        raise ValueError(f"a stacked chart has at most {len(_COLOURS)} parts, got {', '.join(parts)}")
    values = [{"name": name, "part": part, "order": parts.index(part), "count": count}
              for name, counts in rows for part, count in counts.items()]
    chart = alt.Chart(alt.Data(values=values)).mark_bar(height=14).encode(
        y=alt.Y("name:N", sort=None, title=None, axis=_names(name for name, _ in rows)),
        x=alt.X("sum(count):Q", title=None, axis=alt.Axis(tickCount=5, format=",d", domain=False, ticks=False)),
        color=alt.Color("part:N", sort=parts, scale=alt.Scale(domain=parts, range=list(_COLOURS[:len(parts)])),
                        legend=alt.Legend(orient="top", title=None, symbolType="square")),
        order=alt.Order("order:Q"))
    return _svg(chart.properties(height=(_ROW_HEIGHT + 2) * len(rows)), label, width)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], *, label: str, title: str, format: str = ".3~g",
          ramp: bool = False, log: bool = False, width: int = NARROW) -> Markup:
    """Lines through (x, y) points, one per name, in the mapping's order, with a legend where there are several.

    title: of the x axis. format: of the y axis's numbers (d3). ramp: the names have an order, which the colours follow;
    without it there are at most three, told apart by colour and dashes. log: a logarithmic y axis, and no point that is
    not positive; else it begins at 0.
    """
    if not ramp and len(series) > len(_STROKES):
        raise ValueError(f"at most {len(_STROKES)} lines can be told apart, got {', '.join(series)}")
    names, marked = list(series), max((len(points) for points in series.values()), default=0) <= _MARKED
    kept = [(name, x, y) for name, points in series.items() for x, y in points if y > 0 or not log]
    rows = [{"name": name, "x": x, "y": y} for name, x, y in kept]
    steps = (len(_RAMP) - 1) / max(len(names) - 1, 1)
    styles = [(_RAMP[int(index * steps)], [1, 0]) for index in range(len(names))] if ramp else _STROKES[:len(names)]
    legend = alt.Legend(orient="top", title=None, symbolType="stroke", labelLimit=0,
                        columns=width // _ENTRY) if len(names) > 1 else None
    colours, dashes = (alt.Scale(domain=names, range=[style[part] for style in styles]) for part in (0, 1))
    axis = alt.Axis(tickCount=5, format=format, domain=False, ticks=False, minExtent=_EXTENT,
                    **({"values": _decades(y for *_, y in kept)} if log else {}))
    chart = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.75, point={"size": 18} if marked else False)
    chart = chart.encode(
        x=alt.X("x:Q", title=title, axis=alt.Axis(grid=False, tickCount=4, format="~s"), scale=alt.Scale(nice=False)),
        y=alt.Y("y:Q", title=None, scale=alt.Scale(type="log") if log else alt.Scale(zero=True), axis=axis),
        color=alt.Color("name:N", scale=colours, legend=legend),
        strokeDash=alt.StrokeDash("name:N", scale=dashes, legend=legend))
    return _svg(chart.properties(height=190), label, width)


def _decades(values: Iterable[float]) -> list[float]:
    """The powers of ten around the values: the grid of a logarithmic axis."""
    powers = [math.log10(value) for value in values] or [0.0]
    return [10.0**power for power in range(math.floor(min(powers)), math.ceil(max(powers)) + 1)]


def _names(names: Iterable[str]) -> Any:
    """An axis of names with room for the longest."""
    room = math.ceil(_CHARACTER * max((len(name) for name in names), default=0))
    return alt.Axis(ticks=False, domain=False, labelLimit=0, minExtent=room, maxExtent=room)


def _svg(chart: Any, label: str, width: int) -> Markup:
    axis = alt.AxisConfig(labelColor=_SOFT, titleColor=_SOFT, gridColor=_LINE, domainColor=_LINE, tickColor=_LINE,
                          labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelPadding=6, titlePadding=10)
    themed = chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")).configure(
        background="transparent", padding=2, font="sans-serif", view=alt.ViewConfig(strokeOpacity=0), axis=axis,
        text=alt.MarkConfig(fontSize=12), legend=alt.LegendConfig(labelColor=_INK, labelFontSize=12), aria=False)
    out = io.StringIO()
    themed.save(out, format="svg")
    return Markup('<div role="img" aria-label="{}">').format(label) + Markup(out.getvalue()) + Markup("</div>")
