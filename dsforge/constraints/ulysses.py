"""Constraints of sequence parallelism (DeepSpeed's Ulysses) in `dsforge train`.

Ulysses gives each rank all tokens of some attention heads, and drops attention masks.
"""

from __future__ import annotations

from dsforge.constraints.case import Broken, Case, ModelShape, constraint, divisors, listed
from dsforge.zero_stages import FULLY_SHARDED

# `model_type`s that give the same on two ranks as on one (tests/engine/test_sequence_kinds.py).
SEQUENCE_KINDS: tuple[str, ...] = (
    *("arcee", "cohere", "cohere2", "cwm", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4"),
    *("flex_olmo", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "granite", "granitemoe"),
    *("granitemoeshared", "helium", "hunyuan_v1_dense", "internlm3", "iquestcoder", "jais2"),
    *("llama", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo"),
    *("olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3"),
    *("qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"),
)


def _shared(case: Case) -> ModelShape | None:
    """The model whose sequences Ulysses shares out; none where it does not, or is not known."""
    active = not case.on_megatron and case.context_parallel_size > 1
    return case.shape if active else None


@constraint("sequence-heads", source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py", ours=True)
def sequence_heads(case: Case) -> Broken | None:
    """Attention heads that sequence parallelism (Ulysses) cannot share out."""
    size, shape = case.context_parallel_size, _shared(case)
    heads = shape and shape.attention_heads
    if not heads or heads % size == 0:
        return None
    return _must_divide(size, "attention heads", heads)


@constraint(
    "sequence-kv-heads",
    source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py: replicated heads",
    ours=True,
)
def sequence_kv_heads(case: Case) -> Broken | None:
    """Key/value heads that sequence parallelism (Ulysses) cannot share out."""
    size, shape = case.context_parallel_size, _shared(case)
    heads = shape and shape.kv_heads
    if not heads or size % heads == 0 or heads % size == 0:
        return None
    return _must_divide(size, "key/value heads", heads)


@constraint(
    "sequence-model",
    source="dsforge: kinds that give the same on two ranks as on one; ulysses_sp.py gives each "
    "rank all tokens of some heads",
)
def sequence_kind(case: Case) -> Broken | None:
    """A kind of model whose heads sequence parallelism (Ulysses) does not share out."""
    shape = _shared(case)
    if shape is None:
        return None
    known = shape.model_type is None or shape.model_type in SEQUENCE_KINDS
    if known and shape.kv_heads is not None and not shape.latent:
        return None
    return Broken(
        f"models of type {shape.model_type} cannot be trained with sequence parallelism "
        f"({case.context_parallel_size})",
        "use pipeline stages or ZeRO stage 3 instead",
    )


@constraint(
    "sequence-window",
    source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py drops masks: causal attention only",
    ours=True,
)
def sequence_window(case: Case) -> Broken | None:
    """Sliding-window attention with sequence parallelism."""
    shape = _shared(case)
    if shape is None or not shape.windowed or case.attention == "flash_attention_2":
        return None
    return Broken(
        "sliding-window attention with sequence parallelism requires flash_attention_2: masks are "
        "dropped",
        "use flash_attention_2",
    )


@constraint(
    "sequence-attention",
    source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py: no eager kernel",
    ours=True,
)
def sequence_attention(case: Case) -> Broken | None:
    """Eager attention with sequence parallelism."""
    if case.context_parallel_size == 1 or case.attention != "eager":
        return None
    return Broken(
        "attention=eager cannot be combined with sequence parallelism "
        f"({case.context_parallel_size})",
        "use sdpa or flash_attention_2",
    )


@constraint(
    "sequence-packing",
    source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py drops masks, those of packs too",
)
def sequence_packing(case: Case) -> Broken | None:
    """Packed samples with sequence parallelism."""
    if case.context_parallel_size == 1 or not case.packing:
        return None
    return Broken(
        "packing=true cannot be combined with sequence parallelism "
        f"({case.context_parallel_size}): masks between packed samples are dropped",
        "set `packing: false`",
    )


@constraint(
    "sequence-reduce-scatter",
    source="dsforge: the two ways in which ZeRO stage 3 reduces gradients would scale them "
    "differently",
)
def sequence_reduces(case: Case) -> Broken | None:
    """ZeRO stage 3 without reduce-scatter with sequence parallelism."""
    if case.context_parallel_size == 1 or case.reduce_scatter or case.zero_stage != FULLY_SHARDED:
        return None
    return Broken(
        "`zero_optimization.reduce_scatter`=false cannot be combined with sequence parallelism "
        f"({case.context_parallel_size}) at ZeRO stage 3",
        "remove the key, or use ZeRO stage 2",
    )


SEQUENCE = (sequence_heads, sequence_kv_heads, sequence_kind, sequence_window)


def shares_sequence(shape: ModelShape, size: int) -> bool:
    """Whether so many ranks can share the tokens of a sample of a model."""
    case = Case(context_parallel_size=size, shape=shape)
    return all(constraint(case) is None for constraint in SEQUENCE)


def _must_divide(size: int, what: str, count: int) -> Broken:
    return Broken(
        f"sequence parallelism ({size}) must divide the {what} ({count})",
        f"use {listed(divisors(count))}",
    )
