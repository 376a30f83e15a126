"""Wider intervals for models with parts of which no published measurement is among the rows.

Recurrent layers are priced by formula alone (`recurrence.py`). Their kernels are Triton programs
that reach a share of fused attention's rate that depends on head and state sizes, and transformers
replaces them by many operations where their packages are absent.
"""

from __future__ import annotations

from dsforge.estimate.doubts import memory_errors
from dsforge.specs import ModelSpec
from dsforge.strategy import Strategy
from dsforge.traced import Constant
from dsforge.units import Interval

SOURCE = "estimate/unmeasured.py: no published measurement of recurrent layers"
SLOWER = Constant(1.5, "recurrent_error_high", "", SOURCE)
FASTER = Constant(0.8, "recurrent_error_low", "", SOURCE)
ACTIVATIONS = Constant(0.3, "recurrent_activation_error", "share", SOURCE)


def widened(model: ModelSpec, step: Interval) -> Interval:
    """The interval of a step, wider in the share of layers that are recurrent."""
    if model.recurrent is None:
        return step
    share = model.recurrences
    low = step.low * (1 - share * (1 - FASTER))
    return Interval(low, step.likely, step.high * (1 + share * (SLOWER - 1)))


def errors_of(model: ModelSpec, strategy: Strategy) -> tuple[Constant, Constant]:
    """Shares by which fixed bytes and those that grow with the batch may be off."""
    states, activations = memory_errors(strategy)
    if model.recurrent is None:
        return states, activations
    return states, max(activations, ACTIVATIONS)
