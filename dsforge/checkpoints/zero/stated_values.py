"""Values that checkpoint files state (counts, shapes, stages), checked before they are used."""

from __future__ import annotations

from typing import Any

from dsforge.checkpoints.pickles.keys import STAGE_NUMBERS
from dsforge.checkpoints.pickles.machine import MAX_COUNT, MAX_DIMENSIONS
from dsforge.checkpoints.pickles.values import Foreign, Name
from dsforge.errors import DsforgeError

MAX_RANKS = 1_000_000  # beyond it a count is damage
# What values of other types and shapes than expected lead to.
MISFITS = (
    *(KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError),
    *(RecursionError, MemoryError),
)


def stage_of(state: dict[str, Any]) -> int:
    """The ZeRO stage that an optimizer file says; 1 where it says none (bf16 master weights)."""
    stage = state.get("zero_stage", 1)
    if isinstance(stage, Name):  # a member of DeepSpeed's enum by its name
        name = stage.path.rpartition(".")[2]
        if name not in STAGE_NUMBERS:
            raise DsforgeError(
                f"{name!r} is not a ZeRO stage", "the file is damaged, or not a checkpoint"
            )
        return STAGE_NUMBERS[name]
    if isinstance(stage, Foreign):
        stage = stage.arguments[0]
    return whole_number(stage, "zero_stage", most=3)


def partition_count(state: dict[str, Any]) -> int:
    """The number of ranks that share the optimizer states, as a file of one of them says."""
    count = state["partition_count"]
    counts = count if isinstance(count, list | tuple) else (count,)
    return max(whole_number(each, "partition_count") for each in counts)


def whole_number(value: Any, name: str, *, most: int = MAX_RANKS) -> int:
    """A count that a file states. Raises ValueError where it is none, or too large."""
    if not isinstance(value, int) or not 0 <= value <= most:
        shown = f"{value:,}" if isinstance(value, int) else type(value).__name__
        raise ValueError(f"`{name}` is {shown[:40]}, not a whole number up to {most:,}")
    return value


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a parameter that a file states. Raises ValueError where it is none."""
    if not isinstance(value, tuple | list) or len(value) > MAX_DIMENSIONS:
        raise ValueError("a shape is not a tuple of sizes")
    return tuple(whole_number(size, "shape", most=MAX_COUNT) for size in value)


def inner_optimizer(state: dict[str, Any]) -> dict[str, Any]:
    """The inner optimizer's own state dict."""
    base = state.get("base_optimizer_state") or state["optimizer_state_dict"]
    if isinstance(base, list):  # elastic checkpoints of stages 1 and 2
        return {"state": dict(enumerate(base)), "param_groups": [{}]}
    return dict(base)
