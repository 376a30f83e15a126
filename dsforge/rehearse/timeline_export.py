"""Exports of the timeline: a picture (SVG) and a trace (Chrome's JSON, also read by Perfetto).

The horizontal axis counts allocations and releases, for there are no seconds in a rehearsal.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from dsforge.explain import chart
from dsforge.rehearse.timeline import OWNERS, Level, Span, Timeline, levels
from dsforge.units import GIB, digits, gib

WIDTH, HEIGHT = 1200.0, 440.0
PLOT = chart.Box(80.0, 44.0, 1190.0, 376.0)
COLUMNS = 1200  # the highest level of each column is drawn, so that no peak is lost
TICKS = 5


def picture(timeline: Timeline, title: str) -> str:
    """A stacked area of device memory by owner, as SVG text."""
    course = [Level(), *levels(timeline)]
    columns = _columns(course)
    top = max(level.total for level in columns) or 1
    along = chart.Scale(0.0, 1.0, PLOT.left, PLOT.right)
    up = chart.Scale(0.0, top, PLOT.bottom, PLOT.top)
    names = [owner.replace("_", " ") for owner in OWNERS]
    parts = [
        *(_band(columns, index, along, up) for index in range(len(OWNERS))),
        *(part for value in chart.ticks(0.0, top / GIB, TICKS) for part in _tick(value, up)),
        *(part for span in timeline.spans for part in _phase(span, len(course), along)),
        *chart.legend(zip(names, chart.COLOURS, strict=False), PLOT.left, HEIGHT - 16),
    ]
    return chart.picture(WIDTH, HEIGHT, f"{title}, peak {gib(top)}", parts)


def trace(timeline: Timeline) -> str:
    """The phases as slices and the memory by owner as a counter, as JSON text."""
    events: list[dict[str, Any]] = [
        {
            "name": span.name,
            "ph": "X",
            "pid": 0,
            "tid": 0,
            "ts": span.start,
            "dur": span.end - span.start,
        }
        for span in timeline.spans
    ]
    for place, on_device in (("device memory", True), ("host memory", False)):
        before = None
        for moment, level in enumerate(levels(timeline, on_device=on_device), start=1):
            if level != before:
                counted = level._asdict()
                events.append({"name": place, "ph": "C", "pid": 0, "ts": moment, "args": counted})
            before = level
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def _columns(course: list[Level]) -> list[Level]:
    """The fullest level of each column of the picture."""
    count = min(COLUMNS, len(course))
    edges = [index * len(course) // count for index in range(count + 1)]
    return [max(course[begin:end], key=sum) for begin, end in pairwise(edges)]


def _band(columns: list[Level], index: int, along: chart.Scale, up: chart.Scale) -> str:
    """The band of one owner, on those of the owners before it."""
    last = max(1, len(columns) - 1)
    upper = [(along.at(i / last), up.at(sum(c[: index + 1]))) for i, c in enumerate(columns)]
    lower = [(along.at(i / last), up.at(sum(c[:index]))) for i, c in enumerate(columns)]
    return chart.area((*upper, *reversed(lower)), chart.COLOURS[index], opacity=1)


def _tick(value_gib: float, up: chart.Scale) -> tuple[str, str]:
    """A horizontal line and its value."""
    y = up.at(value_gib * GIB)
    line = chart.line((PLOT.left, y), (PLOT.right, y), chart.INK, stroke_opacity="0.15")
    return line, chart.text(PLOT.left - 6, y + 4, f"{digits(value_gib)} GiB", anchor="end")


def _phase(span: Span, length: int, along: chart.Scale) -> tuple[str, ...]:
    """The beginning of a phase, and its name where there is room for it."""
    begin, end = along.at(span.start / length), along.at(span.end / length)
    foot = PLOT.bottom + 22
    line = chart.line((begin, PLOT.top), (begin, foot), chart.INK, stroke_opacity="0.4")
    if end - begin < len(span.name) * chart.LETTER:
        return (line,)
    return line, chart.text((begin + end) / 2, foot - 4, span.name, anchor="middle")
