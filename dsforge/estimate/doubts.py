"""How far a prediction may be off: the ends of its 80 % interval, by what is known of the run.

What is not known widens an interval, what was measured does not narrow another. Three classes of
runs are told apart. Of *named software* the kernels are known: each engine has its own ends
(`Engine.step_ends`), as the published rows of `training.csv` lie around their predictions. Of
*others* (`software`) only what they state is known: which kernels and versions, how much of the
host, which launcher, and which of the engine's defaults they changed is not. What *waits* on links,
disks and host is less certain than what computes, whoever wrote the scripts.

The ends are quantiles: a tenth of the rows below, a tenth above, sources weighing the same.
`benchmarks/published/intervals.md` has them beside what the rows ask for with each source left out.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import NamedTuple

from dsforge.specs import Calibration, ClusterSpec, Workload
from dsforge.strategy import Strategy
from dsforge.traced import Constant
from dsforge.units import Interval

SOURCE = "estimate/doubts.py"
NAMED = f"{SOURCE}: 80 % of published steps of named software lie within"
OTHERS = f"{SOURCE}: 80 % of published figures of scripts that are not known lie within"
# Widths in logarithms, beside those of the engine.
EIGHT_BITS = 0.1  # tensorwise, rowwise, blockwise and mx recipes (rows mbridge, dgxc)
COMPILER = 0.12  # what torch.compile fuses by its version (rows titan)
CALIBRATED = f"{SOURCE}: as finished runs lay around what was fitted on them; waits twice as wide"
STATES = f"{SOURCE}: of the states and buffers: padding, alignment"
SUMS = f"{SOURCE}: of the states: others sum gradients in 16 bits or 32, and keep copies"
KERNELS = f"{SOURCE}: of activations and logits: kernels differ"
UNNAMED = f"{SOURCE}: of activations and logits: nobody said which kernels, loss and attention"


# RAM of a node: published figures lie within these shares of the likely value
# (benchmarks/published/figures.md, quantity `host`).
HOST_ENDS = Interval(0.9, 1.0, 1.25)


class Ends(NamedTuple):
    """Both ends of an 80 % interval as shares of the likely value."""

    low: Constant
    high: Constant


class StepDoubts(NamedTuple):
    """The ends of each kind of seconds of a step."""

    computing: Ends
    waiting: Ends  # on links and on other stages
    offload: Ends
    host: Ends  # the optimizer on the CPU
    attention_more: float  # times the seconds of attention that the upper end has more


def _ends(name: str, low: float, high: float, source: str) -> Ends:
    return Ends(
        Constant(low, f"{name}_error_low", "", source),
        Constant(high, f"{name}_error_high", "", source),
    )


OFFLOAD = _ends("offload", 0.7, 1.8, NAMED)  # what launchers of others add stands beside it
# Threads, NUMA and page-locked memory of somebody else's launch: CPU Adam took 22 s where the
# threads of a socket take one (deepspeedai/DeepSpeed#1635); binding cores saves a quarter (#7474).
OTHERS_HOST = _ends("host", 0.7, 3.0, OTHERS)
OTHERS_COMPUTE = _ends("computing", 0.74, 1.48, OTHERS)
OTHERS_WAITING = _ends("waiting", 0.6, 1.95, OTHERS)
# FlashAttention-1 and kernels that compute the masked half take about twice as long as those of
# today (Dao 2023, arXiv:2307.08691, figure 5).
OLDER_ATTENTION = Constant(
    1.0, "older_attention", "", f"{SOURCE}: Dao 2023, figure 5: half as fast"
)
OTHERS_STATES_ERROR = Constant(0.15, "states_error", "share", SUMS)
OTHERS_ACTIVATION_ERROR = Constant(0.35, "activation_error", "share", UNNAMED)


def is_of_others(strategy: Strategy) -> bool:
    """Whether somebody else's scripts run it."""
    return strategy.runs_as.software == "others"


def step_doubts(cluster: ClusterSpec, strategy: Strategy, workload: Workload) -> StepDoubts:
    """How far the seconds of a strategy may be off."""
    if cluster.calibration is not None:
        return _calibrated(cluster.calibration)
    if is_of_others(strategy):
        newest = strategy.runs_as.attention == "flash"  # others are as old as they say
        older = OLDER_ATTENTION if newest else 0.0
        return StepDoubts(OTHERS_COMPUTE, OTHERS_WAITING, OTHERS_HOST, OTHERS_HOST, older)
    engine = strategy.engine
    more = [EIGHT_BITS] if workload.precision == "fp8" else []
    more += [COMPILER] if strategy.runs_as.kernels == "compiled" else []
    low, high = engine.step_ends
    ends = exp(-_together(log(low), *more)), exp(_together(log(high), *more))
    computing = _ends("computing", *ends, NAMED)
    waiting = _ends("waiting", *engine.waiting_ends, NAMED)
    return StepDoubts(computing, waiting, OFFLOAD, computing, 0.0)


def _calibrated(calibration: Calibration) -> StepDoubts:
    """The ends that finished runs of the cluster leave."""
    width = calibration.step_error
    computing = _ends("computing", exp(-width), exp(width), CALIBRATED)
    waits = _ends("waiting", exp(-2 * width), exp(2 * width), CALIBRATED)
    return StepDoubts(computing, waits, waits, computing, 0.0)


def _together(*widths: float) -> float:
    """The width of doubts that do not depend on each other, in logarithms."""
    return sqrt(sum(width**2 for width in widths))


def memory_errors(strategy: Strategy) -> tuple[Constant, Constant]:
    """Shares by which states with buffers, and what grows with the batch, may be off."""
    if is_of_others(strategy):
        return OTHERS_STATES_ERROR, OTHERS_ACTIVATION_ERROR
    states, activations = strategy.engine.memory_errors
    return (
        Constant(states, "states_error", "share", STATES),
        Constant(activations, "activation_error", "share", KERNELS),
    )
