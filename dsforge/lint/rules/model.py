"""Rules: the config against the model that it is to train (`--model`)."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.ds_config import PARAMETERS_SHARDED
from dsforge.findings import Hit
from dsforge.lint.case import ZERO, Case, rule
from dsforge.lint.rows import If, Row, rules
from dsforge.lint.schemas.releases import number
from dsforge.units import count, gib

BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
DEFAULT_BUCKET = 500_000_000
BYTES = 2
KNOWS_LEAVES = number("0.18.0")  # the first release with `leaf_module` and its default classes
DEFAULT_LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")
OVERFLOWING = ("gemma", "gemma2", "gemma3_text", "t5", "mt5", "umt5")
STAGE = (ZERO, "stage")
TENSOR = ("tensor_parallel", "autotp_size")


@rule(
    "model-bucket",
    "warning",
    why="A bucket is allocated whole, whatever the model: on a small model the buckets, not the "
    "model, fill the card, and a higher stage needs more memory than a lower one.",
    evidence="deepspeedai/DeepSpeed#1302 (default 5e8 buckets), LianjiaTech/BELLE#402",
)
def model_bucket(case: Case) -> Iterator[Hit]:
    """A bucket larger than the model."""
    if case.model is None or not case.stage:
        return
    from dsforge.estimate.params import parameters

    size = parameters(case.model)
    for key in BUCKETS:
        bucket = case.number(ZERO, key)
        if bucket is not None and bucket > size:
            waste = gib((bucket - size) * BYTES)
            message = (
                f"`{key}` (={count(bucket)}) is larger than the model ({count(size)}): {waste}"
            )
            yield Hit((ZERO, key), message + " for nothing", f"use {max(1_000_000, size // 4)}")


@rule(
    "model-bucket-default",
    "info",
    why="The default is 5e8 elements, made for models of tens of billions.",
    evidence="deepspeedai/DeepSpeed#1302",
)
def model_bucket_default(case: Case) -> Iterator[Hit]:
    """The default bucket on a small model."""
    if case.model is None or not case.stage or case.at(ZERO, BUCKETS[0]) is not None:
        return
    from dsforge.estimate.params import parameters

    size = parameters(case.model)
    if size < DEFAULT_BUCKET:
        message = f"the default `reduce_bucket_size` (5e8) is larger than the model ({count(size)})"
        yield Hit((ZERO,), message, f"set it to {max(1_000_000, size // 4)}")


@rule(
    "model-moe-leaf",
    "warning",
    why="At stage 3 every module's forward is a collective. A rank whose tokens skip an expert "
    "never joins it, and all wait for ever. Leaf modules gather all experts of a layer at once.",
    evidence="deepspeedai/DeepSpeed#5066, deepspeedai/DeepSpeed#5008, "
    "ScienceOne-AI/DeepSeek-671B-SFT-Guide#7",
)
def model_moe_leaf(case: Case) -> Iterator[Hit]:
    """Experts at stage 3 without leaf modules."""
    model = case.model
    if model is None or model.moe is None or case.stage != PARAMETERS_SHARDED:
        return
    known = case.release >= KNOWS_LEAVES
    if case.block(ZERO, "leaf_module") or (known and model.model_type in DEFAULT_LEAVES):
        return
    message = f"{model.name} has experts, and no `leaf_module` names their block: idle experts hang"
    fix = "name the MoE block in `zero_optimization.leaf_module.classes`"
    fix = fix if known else "call deepspeed.utils.set_z3_leaf_modules in the program"
    yield Hit(STAGE, message, fix)


@rule(
    "model-heads",
    "error",
    why="Each rank holds whole attention heads.",
    evidence="DeepSpeed module_inject/auto_tp.py; deepspeedai/DeepSpeed#3634 (52 heads on 8 cards)",
)
def model_heads(case: Case) -> Iterator[Hit]:
    """Attention heads that the tensor ranks cannot share."""
    model, size = case.model, case.tensor_parallel_size
    if model is not None and model.attention_heads % size:
        message = f"`autotp_size` (={size}) must divide the {model.attention_heads} attention heads"
        yield Hit(TENSOR, message + f" of {model.name}")


@rule(
    "model-kv-heads",
    "error",
    why="Key and value heads are cut like the others; fewer than ranks leaves some without any.",
    evidence="pytorch/torchtitan#2574, NVIDIA-NeMo/Automodel#799",
)
def model_kv_heads(case: Case) -> Iterator[Hit]:
    """Key/value heads that the tensor ranks cannot share."""
    model, size = case.model, case.tensor_parallel_size
    if model is not None and model.kv_heads % size:
        message = f"`autotp_size` (={size}) must divide the {model.kv_heads} key/value heads"
        yield Hit(TENSOR, message + f" of {model.name}")


@rule(
    "model-stages",
    "error",
    why="A stage without a layer has nothing to send, and an uneven split waits for its fullest "
    "stage; some engines drop the rest without a word.",
    evidence="NVIDIA/Megatron-LM#1304 (30 layers on 4 stages trained 28), modelscope/ms-swift#5737",
)
def model_stages(case: Case) -> Iterator[Hit]:
    """Layers that the pipeline stages cannot share evenly."""
    model, stages = case.model, case.pipeline_stages
    if model is not None and model.layers % stages:
        message = f"`stages` (={stages}) must divide the {model.layers} layers of {model.name}"
        yield Hit(("pipeline", "stages"), message)


ROWS = rules(
    Row(
        "model-tied-tensor",
        "warning",
        If("@tensor_parallel_size", "above", 1),
        "{model} ties its embeddings; AutoTP before 0.19.4 cuts only the head",
        "use a newer DeepSpeed, or autotp_size 1",
        title="Tied embeddings under an AutoTP that does not know them.",
        why="Older AutoTP cuts the output head without the embedding that shares its matrix, "
        "so the two part, and the saved model is not the trained one.",
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
        "turn to infinity, and the loss scale falls to its floor.",
        evidence="hiyouga/LlamaFactory#251, modelscope/ms-swift#4374; "
        "transformers' T5 documentation",
        when=(If("@model_type", "in", OVERFLOWING),),
    ),
)
