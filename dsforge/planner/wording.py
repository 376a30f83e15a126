"""A reason with what it is about, and how one plan is named against another."""

from __future__ import annotations

from math import log
from typing import NamedTuple

from dsforge.plan import Reason, Request
from dsforge.planner.explore import Candidate
from dsforge.planner.figures import memory_label
from dsforge.units import seconds, times

LIKELY_ONLY = "only by the likely memory estimate, not by the upper one"


class Said(NamedTuple):
    """A reason and what it is about: the logarithm of a ratio of step times."""

    cost: float
    reason: Reason


def said(rule: str, message: str, ratio: float = 1.0) -> Said:
    """A reason about a step that is `ratio` times as long as another, or the other way round."""
    return Said(abs(log(ratio)), Reason(rule=rule, message=message))


def against(other: Candidate, mine_s: float) -> str:
    """`Megatron dp8 mbs1 x8 is 1.23x faster (3.74 s)`."""
    how = times(other.step_s, mine_s)
    return f"{other.strategy.label()} is {how} ({seconds(other.step_s)})"


def memory_name(request: Request) -> str:
    """What the memory is called that a plan must fit into."""
    return memory_label("device", on_cpu=request.cluster.gpu.is_cpu)
