"""Decoder layers through torch.compile: one graph serves them all, as they are alike.

Compiled is the layer, not the model, so that the output layer that gives the loss and DeepSpeed's
hooks stay outside, and compiling takes as long for 80 layers as for 2. Each new shape is compiled
again, for up to a minute: batches are padded to the sequence length.
"""

from __future__ import annotations

from typing import Any

from dsforge.errors import Problem
from dsforge.job import TrainJob
from dsforge.strategy import FULLY_SHARDED
from dsforge.train.parallel.engine_config import EngineConfig


def check_compile(job: TrainJob, config: EngineConfig) -> list[Problem]:
    """Why a run cannot compile its layers; empty where it can, or does not ask for it."""
    if not job.compile:
        return []
    if config.zero_stage == FULLY_SHARDED:
        message = "`compile` must be false with ZeRO stage 3, whose hooks gather weights in a layer"
        return [Problem("compile-stage", message, "use ZeRO stage 0, 1 or 2")]
    if config.mode.layout.model_ranks > 1:
        message = "`compile` must be false where ranks share a replica"
        return [Problem("compile-mode", message, "use data parallelism alone, or compile: false")]
    return []


def compile_layers(model: Any) -> None:
    """Compile the decoder layers of a model in place, each at its first call."""
    from torch.nn import ModuleList

    depth = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, ModuleList))
    layers = next((found for found in lists if len(found) == depth), ())
    for layer in layers:
        layer.compile()
