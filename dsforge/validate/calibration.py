"""Finished runs against their predictions: two factors and an overhead, with what is left over.

The seconds of a step are those of compute (with optimizer and bubble) and those that wait on links,
host copies and disks. Two factors on them are fitted so that the logarithms of the steps agree,
beside what is believed without any run: that the predictor is right to about a quarter in compute
and to a factor of 1.6 in waiting. So one run moves what it tells of, and not the other factor. With
four runs and more, a run far from all others is kept out, by name; a run that ended out of memory
is no step, but a bound of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, inf, log, sqrt
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.errors import DsforgeError
from dsforge.estimate.time import TimeTerms
from dsforge.specs import FROZEN, Calibration
from dsforge.units import GIB

BELIEVED = 0.2, 0.4  # standard deviations of the logarithms of both factors before any run
NOISE = 0.03  # of steps of runs that differ in nothing
FEWEST_TO_DROP = 4  # runs
FAR = 0.2  # logarithm: nearer runs are never kept out
SPREADS = 4.0  # of the other runs, beyond which one is kept out
LARGEST = 10  # factor of a calibration
ROUNDS, REFITS = 50, 3
WIDEST = 2.0  # logarithm: half an interval that says nothing
QUANTILE = 1.2816  # of a normal distribution: 80 % lie within


class FinishedRun(NamedTuple):
    """A run, what was predicted of it without calibration, and what came."""

    name: str
    gpu: str
    terms: TimeTerms
    step_s: float | None = None
    allocated_bytes: tuple[float, float] | None = None  # predicted, measured on the fullest rank
    least_bytes: float | None = None  # that a run out of memory would have allocated beyond

    @property
    def computing_s(self) -> float:
        """Predicted seconds that the first factor is for."""
        terms = self.terms
        return terms.compute_s + terms.optimizer_s + terms.bubble_s

    @property
    def waiting_s(self) -> float:
        """Predicted seconds that the second factor is for."""
        return self.terms.communication_s + self.terms.offload_s


class Factor(NamedTuple):
    """A fitted factor with its 80 % interval."""

    low: float
    likely: float
    high: float


class CalibratedRun(BaseModel):
    """One run beside its predictions."""

    model_config = FROZEN

    name: str = Field(description="Folder of the run, or row of the table.")
    step_s: float | None = Field(description="Measured seconds of a step; none: out of memory.")
    before_s: float = Field(description="Predicted seconds of a step without calibration.")
    after_s: float = Field(description="Predicted seconds of a step with the calibration.")
    kept_out: str = Field(description="Why the run is not in the fit; empty: it is.")


class CalibrationDocument(BaseModel):
    """What `dsforge calibrate --json` prints."""

    model_config = FROZEN

    calibration: Calibration = Field(description="The factors, as the card has them.")
    compute: tuple[float, float] = Field(description="80 % interval of the factor of compute.")
    waiting: tuple[float, float] = Field(description="80 % interval of the factor of waiting.")
    error_before: float = Field(description="Median of |error| of the steps, without calibration.")
    error_after: float = Field(description="The same with the calibration.")
    memory_runs: int = Field(description="Runs whose memory was measured or bounded.")
    runs: tuple[CalibratedRun, ...] = Field(description="Every run, those kept out too.")


def calibrated(runs: Sequence[FinishedRun]) -> CalibrationDocument:
    """The calibration of runs on one kind of cluster; at least one has measured steps."""
    timed = [run for run in runs if run.step_s is not None]
    kept, dropped = _without_outliers(timed)
    fit = _fitted(kept)
    overhead, told = _overhead_gib(runs)
    _check(fit)
    found = Calibration(
        gpu=runs[0].gpu,
        runs=len(kept),
        compute=_short(fit.compute.likely),
        waiting=_short(fit.waiting.likely),
        step_error=_short(fit.step_error),
        memory_overhead_gib=_short(overhead),
    )
    before, after = ({run.name: _step_s(run, by) for run in runs} for by in (None, found))
    errors = [
        median(abs(each[run.name] / (run.step_s or inf) - 1) for run in kept)
        for each in (before, after)
    ]
    return CalibrationDocument(
        calibration=found,
        compute=(fit.compute.low, fit.compute.high),
        waiting=(fit.waiting.low, fit.waiting.high),
        error_before=errors[0],
        error_after=errors[1],
        memory_runs=told,
        runs=tuple(
            CalibratedRun(
                name=run.name,
                step_s=run.step_s,
                before_s=before[run.name],
                after_s=after[run.name],
                kept_out=dropped.get(run.name, "" if run.step_s else "out of memory: a bound"),
            )
            for run in runs
        ),
    )


def _check(fit: _Fit) -> None:
    """Raise where a factor is beyond what a calibration can mean."""
    for name, factor in (("compute", fit.compute), ("waiting", fit.waiting)):
        if not 1 / LARGEST < factor.likely < LARGEST:
            message = f"{name} would have to be {factor.likely:.3g}x of what is predicted"
            raise DsforgeError(message, "check that the runs are those of their plans")


class _Fit(NamedTuple):
    compute: Factor
    waiting: Factor
    step_error: float


def _without_outliers(runs: list[FinishedRun]) -> tuple[list[FinishedRun], dict[str, str]]:
    """Runs to fit, and why each of the others is kept out: at most one in four."""
    kept = list(runs)
    dropped: dict[str, str] = {}
    while len(kept) >= FEWEST_TO_DROP and len(dropped) < len(runs) // FEWEST_TO_DROP:
        off = [_left_over(kept[:at] + kept[at + 1 :], kept[at]) for at in range(len(kept))]
        worst = max(range(len(kept)), key=lambda at: abs(off[at]))
        others = median(abs(each) for at, each in enumerate(off) if at != worst)
        if abs(off[worst]) < max(FAR, SPREADS * others):
            break
        run = kept.pop(worst)
        dropped[run.name] = f"{exp(off[worst]):.2f}x of what the other runs say: kept out"
    return kept, dropped


def _left_over(others: Sequence[FinishedRun], run: FinishedRun) -> float:
    """Logarithm of a run's step over what the others say of it."""
    fit = _fitted(others)
    said = run.computing_s * fit.compute.likely + run.waiting_s * fit.waiting.likely
    return log((run.step_s or said) / said)


def _fitted(runs: Sequence[FinishedRun]) -> _Fit:
    """Both factors; runs that differ much from each other say less than what is believed."""
    spread, few = NOISE, 1 + 2 / len(runs)  # a spread that few runs tell is uncertain itself
    for _ in range(REFITS):
        normal = _solved(runs, spread)
        left = [_off(run, normal.u, normal.v) for run in runs]
        spread = sqrt(sum(each**2 for each in left) / max(1, len(runs) - 1) + NOISE**2)
    det = normal.a * normal.c - normal.b**2
    compute = _factor(normal.u, sqrt(normal.c / det))
    waiting = _factor(normal.v, sqrt(normal.a / det))
    return _Fit(compute, waiting, min(WIDEST, QUANTILE * spread * few))


class _Normal(NamedTuple):
    """Logarithms of both factors, and the matrix of the least squares there."""

    u: float
    v: float
    a: float
    b: float
    c: float


def _solved(runs: Sequence[FinishedRun], noise: float) -> _Normal:
    """Least squares of logarithms beside what is believed, by Gauss and Newton."""
    u = v = a = b = c = 0.0
    weights = [1 / believed**2 for believed in BELIEVED]
    for _ in range(ROUNDS):
        a, b, c = weights[0], 0.0, weights[1]
        g, h = -u * weights[0], -v * weights[1]
        for run in runs:
            one, two = run.computing_s * exp(u), run.waiting_s * exp(v)
            share, off = one / (one + two), _off(run, u, v)
            a += (share / noise) ** 2
            b += share * (1 - share) / noise**2
            c += ((1 - share) / noise) ** 2
            g, h = g + share * off / noise**2, h + (1 - share) * off / noise**2
        det = a * c - b * b
        u, v = u + _step((c * g - b * h) / det), v + _step((a * h - b * g) / det)
    return _Normal(u, v, a, b, c)


def _off(run: FinishedRun, u: float, v: float) -> float:
    """Logarithm of the measured step over the one with these factors."""
    return log((run.step_s or inf) / (run.computing_s * exp(u) + run.waiting_s * exp(v)))


def _step(change: float) -> float:
    """A step of the fit, never beyond a factor of e."""
    return max(-1.0, min(1.0, change))


def _factor(value: float, deviation: float) -> Factor:
    width = QUANTILE * deviation
    return Factor(exp(value - width), exp(value), exp(value + width))


def _overhead_gib(runs: Iterable[FinishedRun]) -> tuple[float, int]:
    """GiB allocated beyond the predicted, and how many runs tell: their median, within bounds."""
    beyond = [
        run.allocated_bytes[1] - run.allocated_bytes[0] for run in runs if run.allocated_bytes
    ]
    bounds = [run.least_bytes for run in runs if run.least_bytes is not None]
    likely = median(beyond) if beyond else 0.0
    return max([likely, *bounds]) / GIB, len(beyond) + len(bounds)


def _step_s(run: FinishedRun, by: Calibration | None) -> float:
    """Predicted seconds of a step."""
    if by is None:
        return run.computing_s + run.waiting_s
    return run.computing_s * by.compute + run.waiting_s * by.waiting


def _short(value: float) -> float:
    """Four significant digits, as a person would write it."""
    return float(f"{value:.4g}")
