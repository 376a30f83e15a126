"""How a ds_config splits the ranks of a rehearsal; no torch, so that bad input is told at once."""

from __future__ import annotations

from typing import Any

from dsforge.errors import SpecError
from dsforge.train.modes import Mode, read_mode

# What cannot be built at all. What else is wrong with a config the engine says itself.
UNBUILDABLE = {"world-size", "parallel-size", "deepspeed-3d", "pipeline-partition"}


def mode_of(settings: dict[str, Any], world_size: int) -> Mode:
    """The split of so many ranks under a ds_config. Raises SpecError where there is none."""
    mode, problems = read_mode(settings, 0, world_size)  # the engine judges the ZeRO stage
    problems = [problem for problem in problems if problem.rule in UNBUILDABLE]
    if problems:
        raise SpecError(tuple(problems))
    return mode
