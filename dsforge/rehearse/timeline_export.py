"""The timeline for the eye (SVG) and for a trace viewer (Chrome's JSON, read by Perfetto too).

The horizontal axis counts allocations and releases, for there are no seconds in a rehearsal.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from dsforge.explain.chart import ticks
from dsforge.rehearse.timeline import OWNERS, Level, Span, Timeline, levels
from dsforge.units import GIB, digits, gib

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1200, 420, 70, 40, 60
COLUMNS = 1200  # the highest level of each column is drawn, so that no peak is lost
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b8b0ac", "#e45756")
TICKS = 5


def picture(timeline: Timeline, title: str) -> str:
    """A stacked area of device memory by owner, as SVG text."""
    course = [Level(), *levels(timeline)]
    columns = _columns(course)
    top = max(level.total for level in columns) or 1
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{_escaped(title)}, peak {gib(top)}</text>',
        *(_area(columns, index, top) for index in range(len(OWNERS))),
        *(_tick(gib_ * GIB, top) for gib_ in ticks(0.0, top / GIB, TICKS)),
        *(_phase(span, len(course)) for span in timeline.spans),
        *(_legend(index) for index in range(len(OWNERS))),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


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


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - 10)


def _y(value: float, top: int) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _area(columns: list[Level], index: int, top: int) -> str:
    """The band of one owner, on those of the owners before it."""
    last = max(1, len(columns) - 1)
    upper = [(_x(i / last), _y(sum(c[: index + 1]), top)) for i, c in enumerate(columns)]
    lower = [(_x(i / last), _y(sum(c[:index]), top)) for i, c in enumerate(columns)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in upper + lower[::-1])
    return f'<polygon points="{points}" fill="{COLOURS[index]}"/>'


def _tick(value: float, top: int) -> str:
    y = _y(value, top)
    text = f"{digits(value / GIB)} GiB"
    line = f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#0002"/>'
    return f'{line}<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _phase(span: Span, length: int) -> str:
    begin, end = _x(span.start / length), _x(span.end / length)
    line = f'<line x1="{begin:.1f}" x2="{begin:.1f}" y1="{TOP}" y2="{HEIGHT - 40}" stroke="#0006"/>'
    if end - begin < len(span.name) * 6:
        return f"{line}<title>{span.name}</title>"
    middle = (begin + end) / 2
    return f'{line}<text x="{middle:.1f}" y="{HEIGHT - 44}" text-anchor="middle">{span.name}</text>'


def _legend(index: int) -> str:
    x = LEFT + index * 150
    box = f'<rect x="{x}" y="{HEIGHT - 26}" width="12" height="12" fill="{COLOURS[index]}"/>'
    return f'{box}<text x="{x + 18}" y="{HEIGHT - 16}">{OWNERS[index].replace("_", " ")}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
