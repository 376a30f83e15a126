"""What a pipeline needs to know of a kind of model: where its parts are, and how stages share them.

A stage is a row of neighbours in the sequence embedding, decoder layers, norm, head. The kinds are
listed, each with a test against one rank: a model whose forward does more between those parts (a
scaled embedding, a second norm) would train something else without saying so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from dsforge.errors import Problem
from dsforge.train.parallel.modes import Mode


class Anatomy(NamedTuple):
    """Names of the parts of a base model; `entry` acts once, between embedding and layers."""

    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    entry: tuple[str, ...] = ()


ANATOMIES = {
    "llama": Anatomy(),
    "mistral": Anatomy(),
    "qwen2": Anatomy(),
    "qwen3": Anatomy(),
    "gpt_neox": Anatomy("embed_in", "layers", "final_layer_norm", ("emb_dropout",)),
    "gpt2": Anatomy("wte", "h", "ln_f", ("wpe", "drop")),
}


def check_pipeline(mode: Mode, configuration: Any, *, adapters: bool) -> list[Problem]:
    """What a model cannot do as a pipeline; `configuration` is the transformers one."""
    stages, kind = mode.layout.pipeline_parallel_size, configuration.model_type
    problems = []
    if adapters:
        problems.append(
            Problem("lora-pipeline", "LoRA must not meet pipeline stages", "use ZeRO instead")
        )
    if kind not in ANATOMIES:
        message = f"models of type {kind} are not split into pipeline stages"
        problems.append(
            Problem("pipeline-model", message, f"known are {', '.join(sorted(ANATOMIES))}")
        )
        return problems
    layers = configuration.num_hidden_layers
    if stages > layers:
        message = f"`pipeline.stages` (={stages}) must not exceed the decoder layers (={layers})"
        problems.append(Problem("pipeline-size", message, f"use {layers} or less"))
    if isinstance(mode.partition, tuple) and sum(mode.partition) != layers:
        message = (
            f"`pipeline.partition` (={list(mode.partition)}) must hold all decoder layers "
            f"(={layers}), and holds {sum(mode.partition)}"
        )
        problems.append(Problem("pipeline-partition", message))
    return problems


def explicit_bounds(counts: Sequence[int], before: int, after: int) -> list[int]:
    """Bounds of stages in the sequence of pieces, from the decoder layers of each stage.

    `before` and `after` are the pieces around the decoder layers: they go to the outer stages.
    """
    inner = [before + total for total in accumulate(counts)]
    return [0, *inner[:-1], inner[-1] + after]
