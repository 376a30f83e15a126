"""Quantities: the only place that formats or parses one.

Memory is counted in bytes (`int`) and shown in GiB (base 2); bandwidth is counted in bytes per
second and shown in GB/s (base 10), as vendors and network people do.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MIB = 1024**2
GIB = 1024**3
GBPS = 1e9  # bytes per second in one GB/s
TFLOP = 1e12

_COUNT = re.compile(r"^\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbgt]?)\s*$", re.IGNORECASE)
_FACTOR = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True)
class Interval:
    """An uncertain figure: `likely`, and the ends of its 80 % interval, all in one unit."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"not an interval: {self.low} <= {self.likely} <= {self.high}")


def parse_count(text: str) -> int:
    """A count written by a person: `7b`, `1.5m`, `4096`, `2e9`. Raises ValueError otherwise."""
    match = _COUNT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a count; write a number such as 7b, 350m, 1.5t or 4096")
    value = float(match[1]) * _FACTOR[match[2].lower()]
    if not math.isfinite(value) or value > 1e18:
        raise ValueError(f"{text!r} is too large a count; the limit is 1e18")
    return round(value)


def count(value: float) -> str:
    """A count with one letter for its size: `6.74 B`, `124 M`, `512`."""
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g}"


def gib(value_bytes: float) -> str:
    """Bytes as GiB with two or three significant digits: `13.5 GiB`, `0.25 GiB`."""
    value = value_bytes / GIB
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} GiB"


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
    return f"{bytes_per_s / GBPS:,.4g} GB/s"


def bit_rate(bytes_per_s: float) -> str:
    """A bandwidth in bits, as network people say it: `400 Gbit/s`, `41.2 Mbit/s`."""
    bits = bytes_per_s * 8
    for factor, letter in ((1e9, "G"), (1e6, "M")):
        if bits >= factor:
            return f"{amount(bits / factor)} {letter}bit/s"
    return f"{amount(bits / 1000)} kbit/s"


def seconds(value_s: float) -> str:
    """A duration in the unit that people would say: `250 ms`, `3.2 s`, `4.5 min`, `2.1 h`."""
    if value_s < 1:
        return f"{value_s * 1000:.3g} ms"
    if value_s < 120:
        return f"{value_s:.3g} s"
    if value_s < 7200:
        return f"{value_s / 60:.3g} min"
    return f"{value_s / 3600:.3g} h" if value_s < 172800 else f"{value_s / 86400:.4g} days"


def tflops(flops_per_s: float) -> str:
    """A rate of computation in TFLOP/s."""
    return f"{flops_per_s / TFLOP:,.4g} TFLOP/s"


def amount(value: float) -> str:
    """A figure of three digits, in full where it is large: `0.42`, `12.3`, `1,234,000`."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
