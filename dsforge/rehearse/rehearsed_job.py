"""What is rehearsed: the model, and how a ds_config splits the ranks. No torch is imported.

So a mistake in the input is reported at once, before the seconds that importing the engine takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsforge.ds_config import read
from dsforge.errors import SpecError
from dsforge.specs import LoraSpec, Reference
from dsforge.strategy import TrainedLoss
from dsforge.train.parallel.modes import Mode
from dsforge.train.parallel.modes import mode_of as mode_of_config

# Rules without which no engine can be built; all others are left to the engine to judge.
UNBUILDABLE = {"world-size", "parallel-size", "deepspeed-3d", "partition-form"}


class RehearsedJob(NamedTuple):
    """What is trained: a transformers config (`model_type` included), and how."""

    config: Mapping[str, Any]
    sequence_length: int
    recompute: bool = False
    lora: LoraSpec | None = None
    loss: TrainedLoss = "plain"
    reference: Reference | None = None  # of DPO; none: next tokens are trained
    offload_activations: bool = False
    tiled_mlp: bool = False

    @property
    def quantises(self) -> bool:
        """Whether its frozen matrices are packed in 4 bits."""
        return self.lora is not None and self.lora.frozen_format is not None


def mode_of(settings: dict[str, Any], world_size: int) -> Mode:
    """The parallel mode of a ds_config on so many ranks. Raises SpecError if impossible."""
    config, unread = read(settings, filled_in=False)
    mode, clashes = mode_of_config(config, world_size)
    problems = [*unread, *clashes]
    problems = [problem for problem in problems if problem.rule in UNBUILDABLE]
    if problems:
        raise SpecError(tuple(problems))
    return mode
