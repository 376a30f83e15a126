"""Elements of a chart as SVG text: bars, axes, marks, a legend.

SVG stays sharp in reports, holds text that can be searched, and needs no plotting library where
plans are made. Colours are of a palette that colour-blind readers can tell apart (Okabe and Ito
2008).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log10
from typing import NamedTuple

from dsforge.masking import printable

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442")
INK, GRID = "#222222", "#dddddd"
STEPS = (1, 2, 2.5, 5, 10)
FEWEST_TICKS = 4
LETTER = 6.6  # mean width of a letter at size 12, pixels


class Box(NamedTuple):
    """Edges of a rectangle on the picture, in pixels from the top left corner."""

    left: float
    top: float
    right: float
    bottom: float


class Scale(NamedTuple):
    """A linear or logarithmic scale from values to positions in pixels."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The position of a value."""
        if self.logarithmic:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """The whole SVG text."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">'
    )
    back = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    name = text(16, 24, title, size=15, bold=True)
    return (
        "\n".join((head, f"<title>{escaped(title)}</title>", back, name, *parts, "</svg>")) + "\n"
    )


def escaped(words: str) -> str:
    """Text that cannot be taken for markup, without secrets and without what XML cannot hold."""
    return printable(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    size: float = 12,
    bold: bool = False,
    turned: bool = False,
) -> str:
    """One line of text."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    weight = ' font-weight="bold"' if bold else ""
    halo = 'stroke="white" stroke-width="3" paint-order="stroke" stroke-opacity="0.7"'
    style = f'text-anchor="{anchor}" font-size="{size:g}" fill="{INK}" {halo}{weight}{turn}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escaped(words)}</text>'


def bar(box: Box, colour: str, hint: str = "") -> str:
    """A filled rectangle, with a tooltip."""
    width, height = box.right - box.left, box.bottom - box.top
    size = f'width="{width:.2f}" height="{height:.2f}"'
    said = f"<title>{escaped(hint)}</title>" if hint else ""
    return f'<rect x="{box.left:.2f}" y="{box.top:.2f}" {size} fill="{colour}">{said}</rect>'


def line(
    start: tuple[float, float], end: tuple[float, float], colour: str = GRID, **style: str
) -> str:
    """A straight line; `style` are SVG attributes with underscores for dashes."""
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{colour}"{more}/>'


def path(points: Iterable[tuple[float, float]], colour: str, **style: str) -> str:
    """A line through points."""
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'


def area(points: Iterable[tuple[float, float]], colour: str, *, opacity: float = 0.15) -> str:
    """A filled polygon; pale unless `opacity` says otherwise."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{joined}" fill="{colour}" fill-opacity="{opacity:g}"/>'


def dot(x: float, y: float, radius: float, colour: str, *, hint: str, ring: bool = False) -> str:
    """A circle with a tooltip; `ring` outlines it."""
    edge = f'stroke="{INK}" stroke-width="2"' if ring else 'stroke="white" stroke-width="0.8"'
    where = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
    return f'<circle {where} fill="{colour}" {edge}><title>{escaped(hint)}</title></circle>'


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round values from low to high."""
    rough = (high - low) / wanted
    power = 10 ** floor(log10(rough))
    step = next(s * power for s in STEPS if s * power >= rough)
    first = ceil(low / step)
    return [n * step for n in range(first, floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... from low to high; evenly spaced values where those are few."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    found = [f * 10.0**p for p in powers for f in (1, 2, 5) if low <= f * 10.0**p <= high]
    return found if len(found) >= FEWEST_TICKS else ticks(low, high)


def legend(entries: Iterable[tuple[str, str]], x: float, y: float) -> list[str]:
    """A row of coloured squares with their names."""
    parts = []
    for name, colour in entries:
        parts += [bar(Box(x, y - 10, x + 12, y + 2), colour), text(x + 17, y, name)]
        x += 17 + LETTER * len(name) + 18
    return parts
