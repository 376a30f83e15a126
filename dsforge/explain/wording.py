"""Explained numbers as text: with their unit, and in words where those are easier to read."""

from __future__ import annotations

from dsforge.units import gib, seconds, tflops

LARGE = 1e4  # from here on thousands are separated
EXACT = 1e18  # whole numbers below are shown in full
ROUNDED = 1e6  # from here on two decimals are enough


def quantity(value: float, unit: str) -> str:
    """A number with its unit; bytes in GiB, seconds and rates in words too."""
    said = f"{number(value)} {unit}".strip()
    words = {"bytes": gib, "s": seconds, "FLOP/s": tflops}.get(unit)
    large = unit != "bytes" or value >= 1 << 20
    return f"{said} ({words(value)})" if words and value and large else said


def number(value: float) -> str:
    """A number that loses nothing a reader could notice: whole ones in full, large ones nearly."""
    if float(value).is_integer() and abs(value) < EXACT:
        return f"{value:.0f}" if abs(value) < LARGE else f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= ROUNDED else f"{value:.12g}"
