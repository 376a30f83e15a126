"""Constraints of `dsforge train`: what it can do with a kind of model, under each parallelism.

The planner asks them of a model's numbers, the trainer of the model that it has loaded, so a plan
and a run agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsforge.constraints.case import Broken, Case, ModelShape, constraint, divisors, listed
from dsforge.zero_stages import FULLY_SHARDED

if TYPE_CHECKING:
    from dsforge.layout import Layout
    from dsforge.specs import ModelSpec

# `model_type`s whose `forward` changes the logits after the output layer (scales, caps, copies).
WHOLE_LOGITS: tuple[str, ...] = (
    *("cohere", "cohere2", "falcon", "gemma2", "gemma3_text", "granite", "granitemoe"),
    *("granitemoeshared", "nemotron_h", "opt", "vaultgemma"),
)

# `model_type`s that give the same on two ranks as on one (tests/engine/test_sequence_kinds.py).
SEQUENCE_KINDS: tuple[str, ...] = (
    *("arcee", "cohere", "cohere2", "cwm", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4"),
    *("flex_olmo", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "granite", "granitemoe"),
    *("granitemoeshared", "helium", "hunyuan_v1_dense", "internlm3", "iquestcoder", "jais2"),
    *("llama", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo"),
    *("olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3"),
    *("qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"),
)

# Styles of transformers' tensor-parallel plans that DeepSpeed 0.19 reads (`tp_plan_converter.py`),
# and the `model_type`s whose plan in transformers 5 has no others.
TENSOR_STYLES = frozenset(
    ("colwise", "colwise_gather_output", "rowwise", "replicated_with_grad_allreduce")
)
TENSOR_KINDS = (
    *("cohere", "gemma", "gemma2", "gpt_neox", "granite", "llama", "mistral", "nemotron"),
    *("olmo", "phi", "qwen2", "qwen3", "smollm3", "starcoder2"),
)


class Anatomy(NamedTuple):
    """Names of the parts of a base model; `entry` acts once, between embedding and layers."""

    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    entry: tuple[str, ...] = ()


# `model_type`s that are split into pipeline stages. Each has a test against one rank: a model whose
# forward does more between those parts (a scaled embedding) would train something else silently.
ANATOMIES = {
    "llama": Anatomy(),
    "mistral": Anatomy(),
    "qwen2": Anatomy(),
    "qwen3": Anatomy(),
    "gpt_neox": Anatomy("embed_in", "layers", "final_layer_norm", ("emb_dropout",)),
    "gpt2": Anatomy("wte", "h", "ln_f", ("wpe", "drop")),
}


def is_split(layout: Layout) -> bool:
    """Whether the output layer is one of AutoTP or of the pipeline engine."""
    return layout.tensor_parallel_size > 1 or layout.pipeline_parallel_size > 1


def holds_whole_logits(model: ModelSpec, *, split: bool) -> bool:
    """Whether `dsforge train` holds the logits of a whole micro batch.

    Where it cannot ask the output layer for the loss (`train/loss.py`).
    """
    return split or model.model_type in WHOLE_LOGITS


@constraint("chunked-loss", source="dsforge: train/loss.py; Megatron-LM has no chunked loss")
def chunked_loss(case: Case) -> Broken | None:
    """A chunked loss where whole logits are held."""
    if not case.chunked_loss:
        return None
    if case.on_megatron:
        return Broken(
            "loss=chunked is not available with Megatron-LM, which holds whole logits",
            "use --loss plain, or --for deepspeed",
        )
    split = case.tensor_parallel_size > 1 or case.pipeline_parallel_size > 1
    if case.model is None or not holds_whole_logits(case.model, split=split):
        return None
    why = "splits the output layer" if split else "changes the logits after the output layer"
    what = "tensor or pipeline parallelism" if split else case.model.name
    return Broken(
        f"loss=chunked is not available here: {what} {why}",
        "use --loss plain, or neither tensor nor pipeline parallelism",
    )


@constraint(
    "pipeline-model", source="dsforge: each kind of model is tested in stages against one rank"
)
def pipeline_kind(case: Case) -> Broken | None:
    """A kind of model that is not split into DeepSpeed's pipeline stages."""
    stages, kind = case.pipeline_parallel_size, case.shape and case.shape.model_type
    if case.on_megatron or stages == 1 or kind is None or kind in ANATOMIES:
        return None
    return Broken(
        f"models of type {kind} cannot be split into pipeline stages ({stages}) with DeepSpeed",
        f"use ZeRO or Megatron-LM; supported are {', '.join(sorted(ANATOMIES))}",
    )


@constraint(
    "pipeline-partition",
    source="DeepSpeed runtime/pipe/module.py, PipelineModule._partition_layers",
)
def partition_holds_layers(case: Case) -> Broken | None:
    """A list of layers for each pipeline stage that is not the layers of the model."""
    layers = case.shape and case.shape.layers
    if case.partition is None or layers is None or sum(case.partition) == layers:
        return None
    return Broken(
        f"`pipeline.partition` {list(case.partition)} holds {sum(case.partition)} decoder layers, "
        f"the model has {layers}",
        'name all layers, or use "parameters"',
    )


@constraint(
    "tensor-model",
    source="DeepSpeed module_inject/tp_plan_converter.py, TPPlanConverter.convert refuses styles "
    "that it does not know",
)
def tensor_kind(case: Case) -> Broken | None:
    """A kind of model that DeepSpeed's AutoTP does not shard."""
    size, shape = case.tensor_parallel_size, case.shape
    if case.on_megatron or size == 1 or shape is None or _has_tensor_plan(shape):
        return None
    return Broken(
        f"models of type {shape.model_type} have no tensor-parallel plan ({size}) that DeepSpeed "
        "supports",
        "use ZeRO, or Megatron-LM",
    )


def _has_tensor_plan(shape: ModelShape) -> bool:
    """By the styles of a loaded model's plan, else by its kind; a size alone is a Llama."""
    if shape.tensor_styles is not None:
        return bool(shape.tensor_styles) and shape.tensor_styles <= TENSOR_STYLES
    return shape.model_type in (None, *TENSOR_KINDS)


@constraint(
    "vocabulary-split", source="dsforge: the loss of answers needs logits of the whole vocabulary"
)
def vocabulary_split(case: Case) -> Broken | None:
    """AutoTP's own loss over a split vocabulary."""
    if case.tensor_parallel_size == 1 or not case.splits_vocabulary:
        return None
    return Broken(
        "`tensor_parallel.vocab_parallel_lm_head` is not supported by `dsforge train`: its loss "
        "needs the logits of the whole vocabulary",
        "remove the key",
    )


def _shared(case: Case) -> ModelShape | None:
    """The model whose sequences Ulysses shares out; none where it does not, or is not known."""
    active = not case.on_megatron and case.context_parallel_size > 1
    return case.shape if active else None


@constraint("sequence-heads", source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py")
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


@constraint(
    "compile-stage", source="DeepSpeed runtime/zero/parameter_offload.py: hooks gather in a layer"
)
def compiled_stage(case: Case) -> Broken | None:
    """Compiled layers with ZeRO stage 3, whose hooks gather weights inside a layer."""
    if not case.compiled or case.zero_stage != FULLY_SHARDED:
        return None
    return Broken(
        "compile=true cannot be combined with ZeRO stage 3, whose hooks gather weights in a layer",
        "use ZeRO stage 0, 1 or 2, or `compile: false`",
    )


@constraint("compile-mode", source="dsforge: compiled layers are tested with data parallelism")
def compiled_mode(case: Case) -> Broken | None:
    """Compiled layers where ranks share a replica."""
    if not case.compiled or case.model_ranks == 1:
        return None
    return Broken(
        f"compile=true cannot be combined with {case.model_ranks} ranks that share a replica",
        "use data parallelism alone, or `compile: false`",
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
