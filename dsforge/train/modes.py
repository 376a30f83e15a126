"""Modes: how the DeepSpeed config splits the ranks beyond data parallelism, and what cannot meet.

DeepSpeed reads these sizes after all ranks are up, and takes some combinations in silence without
doing what they say. The rules here have the planner's ids, so that a plan and a run agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dsforge.errors import Problem
from dsforge.layout import Layout
from dsforge.rules import divisors, listed
from dsforge.rules.trainer import Heads, sequence_problems
from dsforge.strategy import FULLY_SHARDED

BALANCED = "parameters"  # stages of equally many parameters; DeepSpeed's own word for it
PARTITIONS = (BALANCED, "best", "uniform")
# Of transformers' tensor-parallel plans, as DeepSpeed reads them (`tp_plan_converter.py`).
STYLES = {"colwise", "colwise_gather_output", "rowwise", "replicated_with_grad_allreduce"}
Partition = str | tuple[int, ...]


class Mode(NamedTuple):
    """The parallel sizes of a run, and how the layers fall to the pipeline stages."""

    layout: Layout
    partition: Partition = BALANCED


DATA_PARALLEL = Mode(Layout())


def read_mode(
    settings: dict[str, Any], zero_stage: int, world_size: int
) -> tuple[Mode, list[Problem]]:
    """The mode that a DeepSpeed config asks for on `world_size` ranks, and what is wrong with it.

    Sizes: `tensor_parallel.autotp_size`, `pipeline.stages` and `sequence_parallel_size`.
    """
    problems: list[Problem] = []
    tensor = _size(settings, ("tensor_parallel", "autotp_size"), problems)
    stages = _size(settings, ("pipeline", "stages"), problems)
    sequence = _size(settings, ("sequence_parallel_size",), problems)
    ranks = tensor * stages * sequence
    if world_size % ranks:
        problems.append(_world_size(world_size, tensor, stages, sequence))
    found = (
        _together(tensor, stages, sequence),
        _stage_with_tensor(zero_stage, tensor),
        _stage_with_pipeline(zero_stage, stages),
        _offload_with_pipeline(settings, stages),
        _split_vocabulary(settings, tensor),
        _mean_over_stretches(settings, zero_stage, sequence),
        *_offloads(settings, zero_stage),
    )
    partition, problem = _partition(settings, stages)
    problems += [p for p in (*found, problem) if p is not None]
    layout = Layout(
        data_parallel_size=max(1, world_size // ranks),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        context_parallel_size=sequence,
    )
    return Mode(layout, partition), problems


def _block(settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def _size(settings: dict[str, Any], path: tuple[str, ...], problems: list[Problem]) -> int:
    """A parallel size; 1 where it is not given, or switched off by 0."""
    block = settings if len(path) == 1 else _block(settings, path[0])
    value = block.get(path[-1], 1)
    if value in (0, "auto") and value is not False:
        return 1
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    name = ".".join(path)
    message = f"`{name}` (={value}) must be a whole number above 0"
    problems.append(Problem("parallel-size", message))
    return 1


def _world_size(world_size: int, tensor: int, stages: int, sequence: int) -> Problem:
    ranks = tensor * stages * sequence
    return Problem(
        "world-size",
        f"the ranks (={world_size}) must be a multiple of tensor (={tensor}) x pipeline "
        f"(={stages}) x sequence parallel size (={sequence})",
        f"start {-(-world_size // ranks) * ranks} ranks",
    )


def _together(tensor: int, stages: int, sequence: int) -> Problem | None:
    """Two ways to split a replica.

    `PipelineModule` takes layers, AutoTP and Ulysses take Hugging Face models.
    """
    if sum(size > 1 for size in (tensor, stages, sequence)) <= 1:
        return None
    return Problem(
        "deepspeed-3d",
        f"tensor (={tensor}), pipeline (={stages}) and sequence parallelism (={sequence}) must not "
        "meet in DeepSpeed",
        "use one of them, with data parallelism",
    )


def _stage_with_tensor(zero_stage: int, tensor: int) -> Problem | None:
    if tensor == 1 or zero_stage < FULLY_SHARDED:
        return None
    return Problem(
        "zero-tensor",
        f"`zero_optimization.stage` (=3) must be 0, 1 or 2 with tensor parallelism (={tensor})",
        "use ZeRO stage 2, or no `tensor_parallel`",
    )


def _stage_with_pipeline(zero_stage: int, stages: int) -> Problem | None:
    """`PipelineEngine.__init__`: ZeRO-2 and ZeRO-3 are incompatible with pipelines."""
    if stages == 1 or zero_stage <= 1:
        return None
    return Problem(
        "zero-pipeline",
        f"`zero_optimization.stage` (={zero_stage}) must be 0 or 1 with pipeline stages "
        f"(={stages})",
        "use ZeRO stage 1, or no `pipeline`",
    )


def _offload_with_pipeline(settings: dict[str, Any], stages: int) -> Problem | None:
    device = _block(_block(settings, "zero_optimization"), "offload_optimizer").get("device")
    if stages == 1 or device in (None, "none"):
        return None
    return Problem(
        "offload-pipeline",
        f"`offload_optimizer.device` (={device}) must be none with pipeline stages (={stages})",
        "drop `offload_optimizer`, or `pipeline`",
    )


def _split_vocabulary(settings: dict[str, Any], tensor: int) -> Problem | None:
    """AutoTP's own loss over a split vocabulary: ours weighs answers, and needs whole logits."""
    if tensor == 1 or _block(settings, "tensor_parallel").get("vocab_parallel_lm_head") is not True:
        return None
    return Problem(
        "tensor-vocabulary",
        "`tensor_parallel.vocab_parallel_lm_head` (=true) must be false: the loss of answers needs "
        "the logits of the whole vocabulary",
        "drop the key",
    )


def _mean_over_stretches(settings: dict[str, Any], stage: int, sequence: int) -> Problem | None:
    """ZeRO-3 without reduce_scatter: its two ways to reduce gradients would scale differently."""
    zero = _block(settings, "zero_optimization")
    if sequence == 1 or stage != FULLY_SHARDED or zero.get("reduce_scatter", True) is not False:
        return None
    return Problem(
        "sequence-reduce-scatter",
        "`zero_optimization.reduce_scatter` (=false) must be true with sequence parallelism under "
        "ZeRO stage 3",
        "drop the key, or use ZeRO stage 2",
    )


def _offloads(settings: dict[str, Any], zero_stage: int) -> list[Problem]:
    """What DeepSpeed takes below ZeRO stage 3 without doing it (`stage_1_and_2.py`)."""
    zero = _block(settings, "zero_optimization")
    optimizer, parameters = _block(zero, "offload_optimizer"), _block(zero, "offload_param")
    if zero_stage == FULLY_SHARDED:
        return []
    problems = []
    if parameters.get("device", "none") != "none":
        message = f"`offload_param` must have ZeRO stage 3 (={zero_stage}); it would be ignored"
        problems.append(Problem("offload-parameters", message, "use stage 3, or drop the block"))
    if optimizer.get("device") == "nvme":
        message = f"`offload_optimizer.device` (=nvme) must have ZeRO stage 3 (={zero_stage})"
        problems.append(Problem("nvme-stage", message, "use stage 3, or cpu"))
    if optimizer.get("ratio", 1.0) != 1.0:
        message = (
            f"`offload_optimizer.ratio` (={optimizer['ratio']}) must have ZeRO stage 3 "
            f"(={zero_stage}); it would be ignored"
        )
        problems.append(Problem("offload-ratio", message, "use stage 3, or drop `ratio`"))
    return problems


def _partition(settings: dict[str, Any], stages: int) -> tuple[Partition, Problem | None]:
    """How layers fall to stages: balanced by parameters, uniform, or layers of each stage."""
    given = _block(settings, "pipeline").get("partition", BALANCED)
    if given in PARTITIONS:
        return (BALANCED if given == "best" else given), None
    counts = isinstance(given, list) and all(type(n) is int and n >= 0 for n in given)
    if counts and len(given) == stages:
        return tuple(given), None
    message = (
        f"`pipeline.partition` (={given}) must be {', '.join(PARTITIONS)}, or the decoder layers "
        f"of each of the {stages} stages"
    )
    return BALANCED, Problem("pipeline-partition", message, "for example [12, 10]")


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
