"""How good intervals are: an interval score, and what they would be without one source.

A wide interval holds everything and says nothing. The interval score (Gneiting and Raftery 2007,
section 6.2) charges the width, and 2 / 0.2 for each unit by which an 80 % interval misses; here in
logarithms, so that seconds and days weigh the same. It is compared with that of a constant ratio
around the same likely values.

Widths were set by looking at the tables. Whether they carry over is seen with each source left out:
the other sources of its class say by which factor all widths would have to be stretched for 80 % of
them to lie inside, sources weighing the same, and the source is judged by intervals so stretched.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Literal, NamedTuple

HELD = 0.8  # of the values that an interval should hold
MISS = 2 / (1 - HELD)  # what a miss costs, of its distance
Kind = Literal["step", "memory"]
CONSTANT: dict[Kind, tuple[float, float]] = {"step": (0.91, 1.15), "memory": (0.96, 1.12)}


class Judged(NamedTuple):
    """An interval and the value that came; of a step in seconds, of memory in bytes or GiB."""

    source: str
    kind: Kind
    low: float
    likely: float
    high: float
    actual: float

    @property
    def stretch(self) -> float:
        """The factor of the width at which the interval just holds the value."""
        off = math.log(self.actual / self.likely)
        room = math.log(self.high / self.likely) if off > 0 else math.log(self.likely / self.low)
        return abs(off) / max(room, 1e-9)

    @property
    def score(self) -> float:
        """The interval score, in logarithms; less is better."""
        return _score(self.low, self.high, self.actual)

    @property
    def constant_score(self) -> float:
        """That of a constant ratio around the likely value."""
        low, high = CONSTANT[self.kind]
        return _score(low * self.likely, high * self.likely, self.actual)


class SourceIntervals(NamedTuple):
    """The intervals of one source."""

    values: int
    inside: float
    score: float
    constant_score: float
    stretch_of_others: float  # that would hold 80 % of the other sources of its class
    inside_without: float  # of its values, with intervals stretched so


def _score(low: float, high: float, actual: float) -> float:
    miss = max(0.0, math.log(low / actual), math.log(actual / high))
    return math.log(high / low) + MISS * miss


def by_source(values: Iterable[Judged]) -> dict[str, SourceIntervals]:
    """Every source of one class, judged, and left out once."""
    found: dict[str, list[Judged]] = defaultdict(list)
    for value in values:
        found[value.source].append(value)
    return {name: _judged(name, found) for name in sorted(found)}


def _judged(name: str, sources: Mapping[str, Sequence[Judged]]) -> SourceIntervals:
    rows = sources[name]
    others = [found for other, found in sources.items() if other != name]
    stretch = stretch_of(others) if others else 1.0
    return SourceIntervals(
        values=len(rows),
        inside=mean(row.stretch <= 1 for row in rows),
        score=mean(row.score for row in rows),
        constant_score=mean(row.constant_score for row in rows),
        stretch_of_others=stretch,
        inside_without=mean(row.stretch <= stretch for row in rows),
    )


def stretch_of(sources: Sequence[Sequence[Judged]]) -> float:
    """The factor of all widths that holds 80 % of the values, sources weighing the same."""
    weighted = sorted((row.stretch, 1 / len(rows)) for rows in sources for row in rows)
    reached, wanted = 0.0, HELD * len(sources)
    for stretch, weight in weighted:
        reached += weight
        if reached >= wanted - 1e-9:
            return stretch
    return weighted[-1][0]
