"""Quantities: the only place that formats or parses one.

Memory is counted in bytes (`int`) and shown in GiB (base 2); bandwidth is counted in bytes per
second and shown in GB/s (base 10), as vendors and network people do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

MIB = 1024**2
GIB = 1024**3
GBPS = 1e9  # bytes per second in one GB/s
TFLOP = 1e12
TWO_DAYS_S = 172800
SAME = 1.005  # a smaller ratio is one

_COUNT = re.compile(r"^\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbgt]?)\s*$", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "b": 3, "g": 3, "t": 4}  # of a thousand
# Numbers as people write them: in ASCII digits, finite.
WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
REAL = re.compile(r"[+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Interval:
    """An uncertain figure: `likely`, and the ends of its 80 % interval, all in one unit."""

    low: float = field(metadata={"description": "Lower end of the 80 % interval."})
    likely: float = field(metadata={"description": "Expected value of the quantity."})
    high: float = field(metadata={"description": "Upper end of the 80 % interval."})

    def __post_init__(self) -> None:
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"not an interval: {self.low} <= {self.likely} <= {self.high}")


def span_text(value: Interval, show: Callable[[float], str]) -> str:
    """The ends of an interval: `low to high`."""
    return f"{show(value.low)} to {show(value.high)}"


def likely_text(value: Interval, show: Callable[[float], str]) -> str:
    """An interval in words: `likely (low to high)`."""
    return f"{show(value.likely)} ({span_text(value, show)})"


def parse_count(text: str, *, thousand: int = 1000) -> int:
    """A count written by a person: `7b`, `1.5m`, `4096`, `2e9`. Raises ValueError otherwise.

    `thousand` is what a `k` stands for: 1024 for sequence lengths and batches, where 8k is 8192.
    """
    match = _COUNT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a count; write a number such as 7b, 350m, 1.5t or 4096")
    value = float(match[1]) * float(thousand) ** _POWER[match[2].lower()]
    if not math.isfinite(value) or value > 1e18:
        raise ValueError(f"{text!r} is too large a count; the limit is 1e18")
    return round(value)


def digits(value: float, most: int = 3) -> str:
    """A number of so many significant digits, never as a power of ten: `0.42`, `12.3`, `1,230`."""
    rounded = float(f"{value:.{most}g}")
    if rounded == 0 or not math.isfinite(rounded):
        return f"{rounded:g}"
    places = max(0, most - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """A count with one letter for its size: `6.74 B`, `124 M`, `512`."""
    value = float(f"{value:.3g}")  # 999.9 million is a billion
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{digits(value / factor)} {letter}"
    return digits(value)


def gib(value_bytes: float) -> str:
    """Bytes as GiB with two or three significant digits: `13.5 GiB`, `0.25 GiB`."""
    value = value_bytes / GIB
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{places}f} GiB"


def size(value_bytes: float) -> str:
    """Bytes in the unit that shows them: `512 bytes`, `64.0 KiB`, `3.5 MiB`, `13.5 GiB`."""
    if value_bytes >= GIB:
        return gib(value_bytes)
    for factor, unit in ((MIB, "MiB"), (1024, "KiB")):
        if value_bytes >= factor:
            return f"{value_bytes / factor:,.1f} {unit}"
    return f"{value_bytes:,.0f} bytes"


def gb_per_s(bytes_per_s: float) -> str:
    """A bandwidth in GB/s (base 10)."""
    return f"{digits(bytes_per_s / GBPS, 4)} GB/s"


def bit_rate(bytes_per_s: float) -> str:
    """A bandwidth in bits, as network people say it: `400 Gbit/s`, `41.2 Mbit/s`."""
    bits = bytes_per_s * 8
    for factor, letter in ((1e9, "G"), (1e6, "M")):
        if bits >= factor:
            return f"{amount(bits / factor)} {letter}bit/s"
    return f"{amount(bits / 1000)} kbit/s"


def seconds(value_s: float) -> str:
    """A duration in the unit that people would say: `250 ms`, `3.2 s`, `4.5 min`, `2.1 h`."""
    if value_s >= TWO_DAYS_S:
        return f"{digits(value_s / 86400, 4)} days"
    value_s = float(f"{value_s:.3g}")  # 999.9 ms are a second
    if value_s < 1:
        return f"{digits(value_s * 1000)} ms"
    if value_s < 120:
        return f"{digits(value_s)} s"
    if value_s < 7200:
        return f"{digits(value_s / 60)} min"
    return f"{digits(value_s / 3600)} h"


def tflops(flops_per_s: float) -> str:
    """A rate of computation in TFLOP/s."""
    return f"{digits(flops_per_s / TFLOP, 4)} TFLOP/s"


def amount(value: float) -> str:
    """A figure of three digits, in full where it is large: `0.42`, `12.3`, `1,234,000`."""
    return digits(value)


def some(number: int, what: str) -> str:
    """A number of things: `1 GPU`, `1,024 GPUs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def times(other_s: float, mine_s: float) -> str:
    """How a step compares with another: `1.23x faster`, `2.5x slower`, `as fast`."""
    ratio = max(other_s, mine_s) / min(other_s, mine_s)
    if ratio < SAME:
        return "as fast"
    return f"{factor(ratio)} {'faster' if other_s < mine_s else 'slower'}"


def factor(ratio: float) -> str:
    """A ratio in words: `1.23x`, `12.5x`, `1,230x`."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{digits(ratio)}x"
