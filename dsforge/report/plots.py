"""Pictures of measured runs: curves over steps, and predicted intervals beside measured values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsforge.explain.chart import (
    COLOURS,
    GRID,
    INK,
    LETTER,
    Box,
    Scale,
    area,
    dot,
    legend,
    line,
    log_ticks,
    path,
    picture,
    text,
    ticks,
)
from dsforge.units import Interval, digits

WIDTH, ROW, TOP = 1140.0, 34.0, 60.0
PLOT = Box(80.0, 60.0, 1120.0, 340.0)
MOST_POINTS = 1000  # of a curve; longer ones show the mean of each stretch
WIDE = 20  # largest over smallest value from which on an axis is logarithmic
ROOM = 0.05  # of the axis beyond the values


class Curve(NamedTuple):
    """Values over steps."""

    name: str
    points: tuple[tuple[float, float], ...]


class Span(NamedTuple):
    """A row of a chart of intervals: a value, and the interval around it."""

    name: str
    value: Interval
    text: str
    is_measured: bool = False


def curve_plot(title: str, unit: str, curves: tuple[Curve, ...], band: Interval | None) -> str:
    """Curves over optimizer steps; a predicted interval is a band behind them."""
    drawn = [Curve(curve.name, _thinned(curve.points)) for curve in curves if curve.points]
    values = [y for curve in drawn for _, y in curve.points]
    steps = [x for curve in drawn for x, _ in curve.points]
    if band is not None:
        values += [band.low, band.high]
    along = _linear(min(steps), max(steps), PLOT.left, PLOT.right)
    up = _fitted(values)
    parts = [*_axes(along, up, unit)]
    if band is not None:
        low, high, likely = up.at(band.low), up.at(band.high), up.at(band.likely)
        ends = ((PLOT.left, low), (PLOT.right, low), (PLOT.right, high), (PLOT.left, high))
        parts.append(area(ends, COLOURS[1], opacity=0.25))
        middle = ((PLOT.left, likely), (PLOT.right, likely))
        parts.append(path(middle, COLOURS[1], stroke_dasharray="5 4"))
    entries = []
    for place, curve in enumerate(drawn):
        colour = COLOURS[(0, 5, 2, 3, 4, 6, 7)[place % 7]]
        places = [(along.at(x), up.at(y)) for x, y in curve.points]
        parts.append(path(places, colour))
        if len(places) <= ROW:
            parts += [
                dot(x, y, 3.5, colour, hint=f"step {point[0]:g}: {digits(point[1], 4)} {unit}")
                for (x, y), point in zip(places, curve.points, strict=True)
            ]
        entries.append((curve.name, colour))
    entries += [("predicted, 80 % interval", COLOURS[1])] if band is not None else []
    return picture(WIDTH, PLOT.bottom + 52, title, [*parts, *legend(entries, PLOT.left, 46)])


def _thinned(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """At most `MOST_POINTS` points: of longer curves the mean of each stretch."""
    each = -(-len(points) // MOST_POINTS)
    parts = [points[begin : begin + each] for begin in range(0, len(points), each)]
    return tuple((part[-1][0], sum(y for _, y in part) / len(part)) for part in parts)


def _linear(low: float, high: float, begin: float, end: float) -> Scale:
    """A scale of some length, also where there is one value."""
    return Scale(low, high if high > low else low + 1, begin, end)


def _fitted(values: list[float]) -> Scale:
    """A vertical scale with room around the values; logarithmic where they differ much."""
    low, high = min(values), max(values)
    if low > 0 and high / low > WIDE:
        return Scale(low / 1.2, high * 1.2, PLOT.bottom, PLOT.top, logarithmic=True)
    room = (high - low or abs(high) or 1.0) * ROOM
    return Scale(low - room, high + room, PLOT.bottom, PLOT.top)


def _axes(along: Scale, up: Scale, unit: str) -> Iterator[str]:
    """Both axes with their values."""
    for value in ticks(along.low, along.high, 10):
        if value % 1:
            continue  # there is no half step
        x = along.at(value)
        yield line((x, PLOT.top), (x, PLOT.bottom))
        yield text(x, PLOT.bottom + 18, f"{value:g}", anchor="middle")
    yield text((PLOT.left + PLOT.right) / 2, PLOT.bottom + 40, "optimizer step", anchor="middle")
    for value in (log_ticks if up.logarithmic else ticks)(up.low, up.high):
        y = up.at(value)
        yield line((PLOT.left, y), (PLOT.right, y), GRID)
        yield text(PLOT.left - 8, y + 4, f"{value:g}", anchor="end")
    yield text(18, (PLOT.top + PLOT.bottom) / 2, unit, anchor="middle", turned=True)


def span_plot(title: str, unit: str, spans: tuple[Span, ...], mark: float | None = None) -> str:
    """One row a value with its interval; predicted and measured rows differ in colour and mark."""
    left = 40 + LETTER * max(len(span.name) for span in spans)
    right = WIDTH - 40 - LETTER * max(len(span.text) for span in spans)
    bottom = TOP + ROW * len(spans)
    along = Scale(0.0, 1.05 * (max(span.value.high for span in spans) or 1.0), left, right)
    parts = []
    for tick in ticks(0.0, along.high):
        x = along.at(tick)
        parts += [
            line((x, TOP), (x, bottom)),
            text(x, bottom + 18, f"{tick:g}", anchor="middle"),
        ]
    if mark is not None:
        x = along.at(mark)
        parts.append(line((x, TOP - 6), (x, bottom), INK, stroke_dasharray="5 3", stroke_width="2"))
    parts.append(text((left + right) / 2, bottom + 40, unit, anchor="middle"))
    for place, span in enumerate(spans):
        parts += _span(span, along, TOP + ROW * place + ROW / 2)
    kinds: Iterable[tuple[str, str]] = (("predicted", COLOURS[1]), ("measured", COLOURS[0]))
    return picture(WIDTH, bottom + 52, title, [*parts, *legend(kinds, 16, 46)])


def _span(span: Span, along: Scale, y: float) -> Iterator[str]:
    """A row: name, interval, value, text."""
    colour = COLOURS[0] if span.is_measured else COLOURS[1]
    low, likely, high = (
        along.at(end) for end in (span.value.low, span.value.likely, span.value.high)
    )
    yield text(16, y + 4, span.name, bold=span.is_measured)
    yield line((low, y), (high, y), colour, stroke_width="8", stroke_opacity="0.45")
    hint = f"{span.name}: {span.text}"
    yield dot(likely, y, 6, colour, hint=hint, ring=span.is_measured)
    yield text(WIDTH - 16, y + 4, span.text, anchor="end")
