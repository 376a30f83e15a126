"""Constraints of `dsforge train`: what it can do with a kind of model, under each parallelism.

The planner asks them of a model's numbers, the trainer of the model that it has loaded, so a plan
and a run agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsforge.constraints.case import Broken, Case, ModelShape, constraint
from dsforge.zero_stages import FULLY_SHARDED, GRADIENTS_SHARDED

if TYPE_CHECKING:
    from dsforge.layout import Layout
    from dsforge.specs import ModelSpec

# `model_type`s whose `forward` changes the logits after the output layer (scales, caps, copies).
WHOLE_LOGITS: tuple[str, ...] = (
    *("cohere", "cohere2", "falcon", "falcon_h1", "falcon_mamba", "gemma2", "gemma3_text"),
    *("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "mamba", "mamba2"),
    *("mt5", "nemotron_h", "opt", "t5", "vaultgemma"),
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
            "loss=chunked is not available with Megatron-LM, which computes full logits",
            "use --loss plain, or --for deepspeed",
        )
    split = case.tensor_parallel_size > 1 or case.pipeline_parallel_size > 1
    if case.model is None or not holds_whole_logits(case.model, split=split):
        return None
    why = "splits the output layer" if split else "changes the logits after the output layer"
    what = "tensor or pipeline parallelism" if split else case.model.name
    return Broken(
        f"loss=chunked is not available here: {what} {why}",
        "use --loss plain" + ", or neither tensor nor pipeline parallelism" * split,
    )


@constraint("fused-loss", source="dsforge: train/loss.py has whole logits and chunks")
def fused_loss(case: Case) -> Broken | None:
    """A loss in a fused kernel in the scripts of dsforge."""
    if case.fused_loss is None or (case.by_others and not case.on_megatron):
        return None
    what = "Megatron-LM" if case.on_megatron else "the scripts of dsforge"
    way = "plain" if case.on_megatron else "chunked"
    return Broken(
        f"loss={case.fused_loss} is not available with {what}",
        f"use --loss {way}, or `software: others` on DeepSpeed or FSDP",
    )


@constraint(
    "pipeline-model", source="dsforge: each kind of model is tested in stages against one rank"
)
def pipeline_kind(case: Case) -> Broken | None:
    """A kind of model that is not split into DeepSpeed's pipeline stages."""
    stages, kind = case.pipeline_parallel_size, case.shape and case.shape.model_type
    if not case.on_deepspeed or stages == 1 or kind is None or kind in ANATOMIES:
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
        f"`pipeline.partition` {list(case.partition)} has {sum(case.partition)} decoder "
        f"layers, the model has {layers}",
        'name all layers, or use "parameters"',
    )


@constraint(
    "tensor-model",
    source="DeepSpeed module_inject/tp_plan_converter.py, TPPlanConverter.convert refuses styles "
    "that it does not know",
    ours=True,
)
def tensor_kind(case: Case) -> Broken | None:
    """A kind of model that DeepSpeed's AutoTP does not shard."""
    size, shape = case.tensor_parallel_size, case.shape
    if not case.on_deepspeed or size == 1 or shape is None or _has_tensor_plan(shape):
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
    "vocabulary-split", source="dsforge: the loss of answers needs logits of the full vocabulary"
)
def vocabulary_split(case: Case) -> Broken | None:
    """AutoTP's own loss over a split vocabulary."""
    if case.tensor_parallel_size == 1 or not case.splits_vocabulary:
        return None
    return Broken(
        "`tensor_parallel.vocab_parallel_lm_head` is not supported by `dsforge train`: its loss "
        "needs the logits of the full vocabulary",
        "remove the key",
    )


@constraint(
    "compile-stage", source="DeepSpeed runtime/zero/parameter_offload.py: hooks gather in a layer"
)
def compiled_stage(case: Case) -> Broken | None:
    """Compiled layers with ZeRO stage 3, whose hooks gather weights inside a layer."""
    if not case.compiled or case.zero_stage != FULLY_SHARDED:
        return None
    return Broken(
        "compile=true cannot be combined with ZeRO stage 3, whose hooks gather weights inside a "
        "layer",
        "use ZeRO stage 0, 1 or 2, or `compile: false`",
    )


@constraint("compile-mode", source="dsforge: compiled layers are tested with data parallelism")
def compiled_mode(case: Case) -> Broken | None:
    """Compiled layers where ranks share a replica."""
    if not case.compiled or case.model_ranks == 1:
        return None
    return Broken(
        "compile=true cannot be combined with tensor, pipeline or sequence parallelism "
        f"({case.model_ranks} ranks a replica)",
        "use data parallelism alone, or `compile: false`",
    )


@constraint("bf16-states", source="torch optim/adam.py: states are made `zeros_like` the weight")
def states_in_bf16(case: Case) -> Broken | None:
    """An optimizer without fp32 weights in another precision than theirs.

    Modules that compute in fp8 hold their weights in bf16 (Transformer Engine, torchao); DeepSpeed
    has no such switch beside its own for bf16.
    """
    stored = ("bf16",) if case.on_deepspeed else ("bf16", "fp8")
    if not case.bf16_states or case.precision is None or case.precision in stored:
        return None
    rule = " or ".join(stored)
    return Broken(f"bf16_states requires precision {rule} (got {case.precision})", "use bf16")


@constraint(
    "optimizer-in-backward",
    source="torchtune recipes/full_finetune_single_device.py: `optimizer_in_bwd` and gradient "
    "accumulation exclude each other",
)
def step_in_backward(case: Case) -> Broken | None:
    """Gradients that are gone before another micro batch needs them."""
    if not case.optimizer_in_backward:
        return None
    steps = case.gradient_accumulation_steps
    if steps in (None, 1):
        return None
    return Broken(
        f"optimizer_in_backward cannot be combined with {steps} micro steps of accumulation",
        "use a micro batch of the whole batch of a rank, or leave it out",
    )


@constraint("vision-tower", source="dsforge: the trainer loads causal language models of text")
def vision_tower(case: Case) -> Broken | None:
    """A model with a vision tower in the scripts of dsforge, or on Megatron-LM."""
    if case.model is None or case.model.tower is None:
        return None
    if case.on_megatron:
        return Broken(
            f"{case.model.name} has a vision tower, which `pretrain_gpt.py` of Megatron-LM has not",
            "use --for deepspeed",
        )
    if case.by_others:
        return None
    return Broken(
        f"{case.model.name} has a vision tower, which `dsforge train` does not load",
        "use --software others to price it, or its language model alone",
    )


@constraint(
    "loads-whole", source="dsforge: train/model/build.py loads file by file under ZeRO stage 3"
)
def loads_whole_model(case: Case) -> Broken | None:
    """A whole model on each device while weights are loaded, in the scripts of dsforge."""
    if not case.loads_whole or case.by_others:
        return None
    return Broken("loads_whole requires software others", "name it, or leave it out")


@constraint(
    "low-bit-optimizer",
    source="dsforge: bitsandbytes' AdamW takes the values of the config's AdamW; DeepSpeed "
    "runtime/engine.py, _configure_optimizer offloads its own CPU optimizers only",
)
def low_bit_optimizer(case: Case) -> Broken | None:
    """AdamW of bitsandbytes in place of another optimizer, or of one on the CPU."""
    states, kept = case.optimizer_states, "leave optimizer_states out"
    if states is None:
        return None
    if case.optimizer not in (None, "adam", "adamw"):
        named = case.optimizer[:60]
        return Broken(f"optimizer_states={states} requires AdamW (got {named})", kept)
    if not case.offloads_optimizer:
        return None
    return Broken(
        f"optimizer_states={states} cannot be combined with offload_optimizer",
        f"remove the block (paged moments leave the device by themselves), or {kept}",
    )


@constraint(
    "ddp-replicas",
    source="torch nn/parallel/distributed.py replicates; distributed/optim "
    "ZeroRedundancyOptimizer shards the optimizer's states alone",
    ours=False,
)
def replicas_of_ddp(case: Case) -> Broken | None:
    """Gradients or weights sharded, or moved to RAM, by an engine that replicates them."""
    if case.trainer != "ddp" or case.on_megatron:
        return None
    stage = case.zero_stage or 0
    if stage >= GRADIENTS_SHARDED:
        return Broken(
            f"trainer ddp replicates weights and gradients (got ZeRO stage {stage})",
            "use stage 0 or 1, or trainer deepspeed or fsdp",
        )
    if not case.offloads_optimizer:
        return None
    return Broken(
        "trainer ddp cannot be combined with offload_optimizer",
        "use trainer deepspeed, or leave the optimizer on the device",
    )
