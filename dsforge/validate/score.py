"""How far predictions are off: by source, over sources of equal weight, and in what they rank.

A source of a thousand rows must not drown one of nine, so each weighs the same. Quantiles are
values of the sample (no interpolation): an error that is quoted did occur.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import StatisticsError, correlation, mean, median
from typing import NamedTuple

FEWEST = 5  # layouts of a group whose ranking says anything


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed relative errors of some rows, and how many of their intervals held."""

    rows: int = field(metadata={"description": "Rows that were compared."})
    median: float = field(metadata={"description": "Median of the absolute relative error."})
    p90: float = field(metadata={"description": "90th percentile of the absolute relative error."})
    bias: float = field(metadata={"description": "Median of the signed relative error."})
    holds: float = field(metadata={"description": "Share of rows inside the 80 % interval."})


@dataclass(frozen=True, slots=True)
class Decisions:
    """How well the predicted order of layouts serves somebody who takes the first."""

    groups: int = field(
        metadata={"description": "Groups of five layouts and more that differ in nothing else."}
    )
    spearman: float = field(metadata={"description": "Rank correlation, mean over groups."})
    regret: float = field(
        metadata={"description": "How much slower the pick is than the best, mean over groups."}
    )
    worst_regret: float = field(metadata={"description": "The same in the worst group."})
    repeat_spread: float | None = field(
        metadata={
            "description": "Slowest over fastest run of equal settings, less 1: mean over settings "
            "with several runs; none: no run is repeated."
        }
    )


class Run(NamedTuple):
    """One run of a group: its settings, and the seconds of its step."""

    setting: Hashable
    predicted: float
    took: float


class Outcome(NamedTuple):
    """One prediction and whether its interval holds the measured value."""

    error: float
    holds: bool


def errors(outcomes: Sequence[Outcome]) -> Errors:
    """The errors of one source."""
    sizes = sorted(abs(outcome.error) for outcome in outcomes)
    return Errors(
        rows=len(sizes),
        median=median(sizes),
        p90=sizes[math.ceil(0.9 * len(sizes)) - 1],
        bias=median(outcome.error for outcome in outcomes),
        holds=mean(outcome.holds for outcome in outcomes),
    )


def overall(sources: Mapping[str, Sequence[Outcome]]) -> Errors:
    """Errors over all sources, each weighing the same; `holds` is over rows, bias over sources."""
    weighted = sorted(
        (abs(outcome.error), 1 / len(found)) for found in sources.values() for outcome in found
    )
    every = [outcome for found in sources.values() for outcome in found]
    return Errors(
        rows=len(every),
        median=_quantile(weighted, 0.5),
        p90=_quantile(weighted, 0.9),
        bias=median(median(o.error for o in found) for found in sources.values()),
        holds=mean(outcome.holds for outcome in every),
    )


def _quantile(weighted: Iterable[tuple[float, float]], share: float) -> float:
    """The first value, ascending, at which the summed weight reaches a share of the whole."""
    pairs = list(weighted)
    wanted, reached = share * sum(weight for _, weight in pairs), 0.0
    for value, weight in pairs:
        reached += weight
        if reached >= wanted:
            return value
    return pairs[-1][0]


def decisions(groups: Iterable[Sequence[Run]]) -> Decisions | None:
    """How the predicted order serves, from the runs of each group.

    Runs of equal settings count as one layout with the median of their times: no predictor can
    order them. None where no group has five layouts whose times differ.
    """
    settings = [_layouts(group) for group in groups]
    large = [_medians(layouts) for layouts in settings if len(layouts) >= FEWEST]
    orders = [rho for rho in (_spearman(group) for group in large) if rho is not None]
    if not orders:
        return None
    regrets = [_regret(group) for group in large]
    repeated = [runs for layouts in settings for runs in layouts if len(runs) > 1]
    spreads = [max(r.took for r in runs) / min(r.took for r in runs) - 1 for runs in repeated]
    return Decisions(
        groups=len(orders),
        spearman=mean(orders),
        regret=mean(regrets),
        worst_regret=max(regrets),
        repeat_spread=mean(spreads) if spreads else None,
    )


def _layouts(group: Sequence[Run]) -> list[list[Run]]:
    """The runs of each setting."""
    found: dict[Hashable, list[Run]] = defaultdict(list)
    for run in group:
        found[run.setting].append(run)
    return list(found.values())


def _medians(layouts: Iterable[Sequence[Run]]) -> list[tuple[float, float]]:
    """Predicted and measured seconds of each setting."""
    return [(median(r.predicted for r in runs), median(r.took for r in runs)) for runs in layouts]


def _regret(group: Sequence[tuple[float, float]]) -> float:
    """How much slower the layout predicted to be the fastest is; of several, their mean."""
    first = min(predicted for predicted, _ in group)
    picked = mean(took for predicted, took in group if predicted == first)
    return picked / min(took for _, took in group) - 1


def by_key(pairs: Iterable[tuple[str, Outcome]]) -> dict[str, list[Outcome]]:
    """Outcomes of each source, sources in alphabetical order."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for source, outcome in pairs:
        found[source].append(outcome)
    return dict(sorted(found.items()))


def _spearman(group: Sequence[tuple[float, float]]) -> float | None:
    """Rank correlation of predicted and measured; none where all are equal."""
    first, second = (_ranks(column) for column in zip(*group, strict=True))
    try:
        return correlation(first, second)
    except StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, counted from 0; equal values share their mean rank."""
    ordered = sorted(values)
    return [(bisect_left(ordered, v) + bisect_right(ordered, v) - 1) / 2 for v in values]
