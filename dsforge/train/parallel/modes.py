"""Modes: how the DeepSpeed config splits the ranks beyond data parallelism, and what cannot meet.

DeepSpeed reads these sizes after all ranks are up, and takes some combinations in silence without
doing what they say. The rules here have the planner's ids, so that a plan and a run agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dsforge.ds_config import BALANCED, DsConfig, Partition
from dsforge.errors import Problem
from dsforge.layout import Layout
from dsforge.rules import divisors, listed
from dsforge.rules.trainer import Heads, sequence_problems
from dsforge.strategy import GRADIENTS_SHARDED

# Of transformers' tensor-parallel plans, as DeepSpeed reads them (`tp_plan_converter.py`).
STYLES = {"colwise", "colwise_gather_output", "rowwise", "replicated_with_grad_allreduce"}


class Mode(NamedTuple):
    """The parallel sizes of a run, and how the layers fall to the pipeline stages."""

    layout: Layout
    partition: Partition = BALANCED


DATA_PARALLEL = Mode(Layout())


def mode_of(config: DsConfig, world_size: int) -> tuple[Mode, list[Problem]]:
    """The mode that a config asks for on `world_size` ranks, and what cannot meet in it."""
    found = (
        _world_size(config, world_size),
        _together(config),
        _stage_with_tensor(config),
        _stage_with_pipeline(config),
        _offload_with_pipeline(config),
        _split_vocabulary(config),
        _mean_over_stretches(config),
        *_offloads(config),
    )
    layout = Layout(
        data_parallel_size=config.replicas(world_size),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_stages,
        context_parallel_size=config.sequence_parallel_size,
    )
    return Mode(layout, config.partition), [problem for problem in found if problem is not None]


def _world_size(config: DsConfig, world_size: int) -> Problem | None:
    ranks = config.model_ranks
    if world_size % ranks == 0:
        return None
    return Problem(
        "world-size",
        f"the ranks (={world_size}) must be a multiple of tensor (={config.tensor_parallel_size}) "
        f"x pipeline (={config.pipeline_stages}) x sequence parallel size "
        f"(={config.sequence_parallel_size})",
        f"start {-(-world_size // ranks) * ranks} ranks",
    )


def _together(config: DsConfig) -> Problem | None:
    """Two ways to split a replica.

    `PipelineModule` takes layers, AutoTP and Ulysses take Hugging Face models.
    """
    tensor, stages = config.tensor_parallel_size, config.pipeline_stages
    sequence = config.sequence_parallel_size
    if sum(size > 1 for size in (tensor, stages, sequence)) <= 1:
        return None
    return Problem(
        "deepspeed-3d",
        f"tensor (={tensor}), pipeline (={stages}) and sequence parallelism (={sequence}) must not "
        "meet in DeepSpeed",
        "use one of them, with data parallelism",
    )


def _stage_with_tensor(config: DsConfig) -> Problem | None:
    tensor = config.tensor_parallel_size
    if tensor == 1 or not config.shards_parameters:
        return None
    return Problem(
        "zero-tensor",
        f"`zero_optimization.stage` (=3) must be 0, 1 or 2 with tensor parallelism (={tensor})",
        "use ZeRO stage 2, or no `tensor_parallel`",
    )


def _stage_with_pipeline(config: DsConfig) -> Problem | None:
    """`PipelineEngine.__init__`: ZeRO-2 and ZeRO-3 are incompatible with pipelines."""
    stages, zero_stage = config.pipeline_stages, config.zero_stage or 0
    if stages == 1 or zero_stage < GRADIENTS_SHARDED:
        return None
    return Problem(
        "zero-pipeline",
        f"`zero_optimization.stage` (={zero_stage}) must be 0 or 1 with pipeline stages "
        f"(={stages})",
        "use ZeRO stage 1, or no `pipeline`",
    )


def _offload_with_pipeline(config: DsConfig) -> Problem | None:
    device, stages = config.offload_optimizer, config.pipeline_stages
    if stages == 1 or device in (None, "none"):
        return None
    return Problem(
        "offload-pipeline",
        f"`offload_optimizer.device` (={device}) must be none with pipeline stages (={stages})",
        "drop `offload_optimizer`, or `pipeline`",
    )


def _split_vocabulary(config: DsConfig) -> Problem | None:
    """AutoTP's own loss over a split vocabulary: ours weighs answers, and needs whole logits."""
    if config.tensor_parallel_size == 1 or not config.splits_vocabulary:
        return None
    return Problem(
        "tensor-vocabulary",
        "`tensor_parallel.vocab_parallel_lm_head` (=true) must be false: the loss of answers needs "
        "the logits of the whole vocabulary",
        "drop the key",
    )


def _mean_over_stretches(config: DsConfig) -> Problem | None:
    """ZeRO-3 without reduce_scatter: its two ways to reduce gradients would scale differently."""
    whole = config.sequence_parallel_size == 1 or config.reduce_scatter
    if whole or not config.shards_parameters:
        return None
    return Problem(
        "sequence-reduce-scatter",
        "`zero_optimization.reduce_scatter` (=false) must be true with sequence parallelism under "
        "ZeRO stage 3",
        "drop the key, or use ZeRO stage 2",
    )


def _offloads(config: DsConfig) -> Iterator[Problem]:
    """What DeepSpeed takes below ZeRO stage 3 without doing it (`stage_1_and_2.py`)."""
    if config.shards_parameters:
        return
    stage = config.zero_stage
    if config.offload_parameters != "none":
        message = f"`offload_param` must have ZeRO stage 3 (={stage}); it would be ignored"
        yield Problem("offload-parameters", message, "use stage 3, or drop the block")
    if config.offload_optimizer == "nvme":
        message = f"`offload_optimizer.device` (=nvme) must have ZeRO stage 3 (={stage})"
        yield Problem("nvme-stage", message, "use stage 3, or cpu")
    if config.offload_ratio < 1:
        message = (
            f"`offload_optimizer.ratio` (={config.offload_ratio}) must have ZeRO stage 3 "
            f"(={stage}); it would be ignored"
        )
        yield Problem("offload-ratio", message, "use stage 3, or drop `ratio`")


def check_tensor(mode: Mode, configuration: Any, *, adapters: bool) -> list[Problem]:
    """What a model cannot do under tensor parallelism; `configuration` is the transformers one.

    AutoTP shards whole heads, by the plan that transformers has for a kind of model.
    """
    size = mode.layout.tensor_parallel_size
    shape = configuration.get_text_config()
    heads = shape.num_attention_heads
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    plan, kind = getattr(configuration, "base_model_tp_plan", None), configuration.model_type
    found = [
        Problem("lora-tensor", "LoRA must not meet tensor parallelism", "use ZeRO instead")
        if adapters
        else None,
        None
        if plan and set(plan.values()) <= STYLES
        else Problem(
            "tensor-model",
            f"models of type {kind} have no tensor-parallel plan that DeepSpeed knows",
            "use ZeRO instead",
        ),
        _divides("tensor-heads", size, "attention heads", heads),
        _divides("tensor-kv-heads", size, "key/value heads", kv_heads),
    ]
    return [problem for problem in found if problem is not None]


def check_sequence(
    mode: Mode, configuration: Any, *, attention: str, packing: bool
) -> list[Problem]:
    """What a model cannot do under sequence parallelism."""
    size, shape = mode.layout.context_parallel_size, configuration.get_text_config()
    window = getattr(shape, "sliding_window", None) and getattr(shape, "use_sliding_window", True)
    heads = Heads(
        configuration.model_type,
        shape.num_attention_heads,
        getattr(shape, "num_key_value_heads", None),
        latent=getattr(shape, "kv_lora_rank", None) is not None,
        windowed=bool(window),
    )
    found = list(sequence_problems(size, heads, attention=attention))
    if attention == "eager":
        message = "`attention` (=eager) must be sdpa or flash_attention_2 with sequence parallelism"
        found.append(Problem("sequence-attention", message, "use sdpa"))
    if packing:
        message = "`packing` must be false with sequence parallelism: masks of packs are dropped"
        found.append(Problem("sequence-packing", message, "set `packing: false`"))
    return found


def _divides(rule: str, size: int, what: str, count: int) -> Problem | None:
    if count % size == 0:
        return None
    message = f"the tensor parallel size (={size}) must divide the {what} (={count})"
    return Problem(rule, message, f"use {listed(divisors(count))}")
