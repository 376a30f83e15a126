"""Rules: the config against the model that it will train (`--model`)."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import ZERO, CheckedFile, rule
from dsforge.lint.conditions import If
from dsforge.lint.rows import Row, rules
from dsforge.lint.schemas.releases import number
from dsforge.units import count, gib
from dsforge.zero_stages import FULLY_SHARDED

BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
DEFAULT_BUCKET = 500_000_000
BYTES = 2
KNOWS_LEAVES = number("0.18.0")  # the first release with `leaf_module` and its default classes
DEFAULT_LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")
OVERFLOWING = ("gemma", "gemma2", "gemma3_text", "t5", "mt5", "umt5")
STAGE = (ZERO, "stage")


@rule(
    "model-bucket",
    "warning",
    why="A bucket is allocated in full, whatever the size of the model: on a small model "
    "the buckets fill the GPU, and a higher stage needs more memory than a lower one.",
    evidence="deepspeedai/DeepSpeed#1302 (default 5e8 buckets), LianjiaTech/BELLE#402",
)
def model_bucket(file: CheckedFile) -> Iterator[Hit]:
    """A bucket larger than the model."""
    if file.model is None or not file.stage:
        return
    from dsforge.estimate.params import parameters

    size = parameters(file.model)
    for key in BUCKETS:
        bucket = file.number(ZERO, key)
        if bucket is not None and bucket > size:
            waste = gib((bucket - size) * BYTES)
            message = (
                f"`{key}` (={count(bucket)}) is larger than the model ({count(size)}): {waste}"
            )
            yield Hit((ZERO, key), message + " wasted", f"use {max(1_000_000, size // 4)}")


@rule(
    "model-bucket-default",
    "info",
    why="The default is 5e8 elements, chosen for models with tens of billions of parameters.",
    evidence="deepspeedai/DeepSpeed#1302",
)
def model_bucket_default(file: CheckedFile) -> Iterator[Hit]:
    """The default bucket on a small model."""
    if file.model is None or not file.stage or file.at(ZERO, BUCKETS[0]) is not None:
        return
    from dsforge.estimate.params import parameters

    size = parameters(file.model)
    if size < DEFAULT_BUCKET:
        message = f"the default `reduce_bucket_size` (5e8) is larger than the model ({count(size)})"
        yield Hit((ZERO,), message, f"set it to {max(1_000_000, size // 4)}")


@rule(
    "model-moe-leaf",
    "warning",
    why="At stage 3 every module's forward is a collective. A rank whose tokens skip an "
    "expert never joins it, and all ranks hang. Leaf modules gather all experts of a "
    "layer at once.",
    evidence="deepspeedai/DeepSpeed#5066, deepspeedai/DeepSpeed#5008, "
    "ScienceOne-AI/DeepSeek-671B-SFT-Guide#7",
)
def model_moe_leaf(file: CheckedFile) -> Iterator[Hit]:
    """Experts at stage 3 without leaf modules."""
    model = file.model
    if model is None or model.moe is None or file.stage != FULLY_SHARDED:
        return
    known = file.release >= KNOWS_LEAVES
    if file.block(ZERO, "leaf_module") or (known and model.model_type in DEFAULT_LEAVES):
        return
    message = (
        f"{model.name} has experts, but no `leaf_module` lists their block: ranks with "
        "idle experts hang"
    )
    fix = "name the MoE block in `zero_optimization.leaf_module.classes`"
    fix = fix if known else "call deepspeed.utils.set_z3_leaf_modules in the program"
    yield Hit(STAGE, message, fix)


@rule(
    "model-stages",
    "info",
    why="Every stage waits for the fullest one. DeepSpeed balances stages by parameters, with the "
    "embedding and the head, so stages with different numbers of layers can be balanced.",
    evidence="DeepSpeed runtime/pipe/module.py, PipelineModule._partition_layers",
)
def model_stages(file: CheckedFile) -> Iterator[Hit]:
    """Layers that the pipeline stages cannot share evenly."""
    model, stages, given = file.model, file.pipeline_stages, file.config.partition
    if model is not None and model.layers % stages and isinstance(given, str):
        message = f"{stages} stages have different numbers of the {model.layers} layers"
        yield Hit(("pipeline", "stages"), message, "name them in `pipeline.partition`")


ROWS = rules(
    Row(
        "model-tied-tensor",
        "warning",
        If("@tensor_parallel_size", "above", 1),
        "{model} ties its embeddings; AutoTP before 0.19.4 shards only the head",
        "use a newer DeepSpeed, or autotp_size 1",
        title="Tied embeddings with an AutoTP release that does not support them.",
        why="Older AutoTP shards the output head without the embedding that shares its matrix, "
        "so the two diverge, and the saved model is not the trained one.",
        evidence="DeepSpeed module_inject/auto_tp.py, _find_tied_weight_partners (absent before "
        "0.19.4)",
        when=(If("@tied_embeddings", "on"),),
        at="tensor_parallel.autotp_size",
        until="0.19.3",
    ),
    Row(
        "model-fp16",
        "warning",
        If("fp16.enabled", "on"),
        "{model} overflows in fp16",
        "use bf16",
        title="fp16 for a family that overflows in it.",
        why="These families were trained in bf16 with activations beyond 65504: in fp16 they "
        "become inf, and the loss scale falls to its minimum.",
        evidence="hiyouga/LlamaFactory#251, modelscope/ms-swift#4374; "
        "transformers' T5 documentation",
        when=(If("@model_type", "in", OVERFLOWING),),
    ),
)
