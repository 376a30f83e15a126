"""How a ds_config splits the ranks of a rehearsal; no torch, so that bad input is told at once."""

from __future__ import annotations

from typing import Any

from dsforge.ds_config import read
from dsforge.errors import SpecError
from dsforge.train.parallel.modes import Mode
from dsforge.train.parallel.modes import mode_of as split

# What cannot be built at all. What else is wrong with a config the engine says itself.
UNBUILDABLE = {"world-size", "parallel-size", "deepspeed-3d", "pipeline-partition"}


def mode_of(settings: dict[str, Any], world_size: int) -> Mode:
    """The split of so many ranks under a ds_config. Raises SpecError where there is none."""
    config, unread = read(settings, filled_in=False)
    mode, clashes = split(config, world_size)
    problems = [*unread, *clashes]  # the engine judges the rest
    problems = [problem for problem in problems if problem.rule in UNBUILDABLE]
    if problems:
        raise SpecError(tuple(problems))
    return mode
