"""Constraints of Megatron-LM: its layouts, its schedule, and what pretrain_gpt.py cannot build.

pretrain_gpt.py knows one shape of decoder with many switches (megatron/training/arguments.py,
megatron-core 0.16 `TransformerConfig`). A model that it would silently build in another shape is
refused, never approximated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsforge.constraints.case import Broken, Case, constraint, divisors, listed
from dsforge.errors import Problem

if TYPE_CHECKING:
    from dsforge.specs import ModelSpec, RopeScaling

_Assumed = tuple[str, tuple[str, ...], tuple[float, ...]]  # name, fields, their values
ARGUMENTS = "Megatron-LM megatron/training/arguments.py"
POSITIONS = ("rope", "learned")
NORMS = ("rmsnorm", "layernorm")
GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
# Files only: LoRA on Megatron's layers is priced as Megatron-Bridge and NeMo run it.
NO_ADAPTERS = Problem(
    "lora-megatron",
    "pretrain_gpt.py of Megatron-LM has no LoRA (Megatron-Bridge and NeMo do)",
    "use --for deepspeed; `dsforge estimate` prices it",
)
NORMS_PER_LAYER = 2
# What megatron-core assumes of a rope scaling, by fields: `RotaryEmbedding._apply_scaling`, and
# for latent attention `MLATransformerConfig`.
_LENGTH = "an original length of"
LLAMA3_SCALING: tuple[_Assumed, ...] = (
    ("frequency factors", ("low_freq_factor", "high_freq_factor"), (1.0, 4.0)),
    (_LENGTH, ("original_max_position_embeddings",), (8192,)),
)
YARN_SCALING: tuple[_Assumed, ...] = (
    ("betas", ("beta_fast", "beta_slow"), (32.0, 1.0)),
    (_LENGTH, ("original_max_position_embeddings",), (4096,)),
)
NAMED = 4  # gaps that one message names


@constraint(
    "megatron-zero", source="Megatron-LM has no ZeRO; 1 is --use-distributed-optimizer", ours=True
)
def zero_of_megatron(case: Case) -> Broken | None:
    """A ZeRO stage that Megatron-LM does not have."""
    if not case.on_megatron or (case.zero_stage or 0) <= 1:
        return None
    return Broken(
        f"ZeRO stage {case.zero_stage} is not available with Megatron-LM",
        "use 1, its distributed optimizer, or 0",
    )


@constraint(
    "megatron-offload",
    source="dsforge: Megatron-LM has no parameter offload, and its optimizer offload is not "
    "generated",
)
def offload_of_megatron(case: Case) -> Broken | None:
    """Offload with Megatron-LM."""
    if not case.on_megatron or not (case.offloads_parameters or case.offloads_optimizer):
        return None
    return Broken(
        f"offload (optimizer to {case.offload_optimizer}, parameters to {case.offload_parameters}) "
        "is not available with Megatron-LM",
        "use --for deepspeed",
    )


@constraint(
    "pipeline-layers",
    source=ARGUMENTS + ", validate_args, and megatron-core TransformerConfig.__post_init__: equal "
    "stages, embedding and head as a layer each, or another number at both ends; equal chunks",
)
def pipeline_divides_layers(case: Case) -> Broken | None:
    """Layers that Megatron-LM cannot share out over the pipeline stages."""
    stages, virtual = case.pipeline_parallel_size, case.virtual_stages
    layers = case.shape and case.shape.layers
    if not case.on_megatron or not layers or _interleaves(layers, stages, virtual):
        return None
    legal = tuple(n for n in range(1, layers + 1) if _interleaves(layers, n, virtual))
    chunks = f" of {virtual} virtual stages" * (virtual > 1)
    return Broken(
        f"pipeline parallelism ({stages} stages{chunks}) cannot share out {layers} layers",
        f"use {listed(legal)} stages" if legal else "use virtual_stages 1",
    )


def _interleaves(layers: int, stages: int, virtual: int) -> bool:
    from dsforge.layout import layer_split

    split = layer_split(layers, stages)
    return split is not None and split.interleaves(virtual)


@constraint(
    "virtual-stages",
    source=ARGUMENTS + ", validate_args: interleaving needs a pipeline and micro batches in "
    "multiples of it; DeepSpeed has none",
)
def virtual_stages(case: Case) -> Broken | None:
    """Interleaving where the schedule does not allow it."""
    stages, micro_batches = case.pipeline_parallel_size, case.gradient_accumulation_steps or 0
    needs = {
        "Megatron-LM": case.on_megatron,
        f"pipeline parallelism (got {stages} stage)": stages > 1,
        f"micro batches (got {micro_batches}) in multiples of the {stages} stages": (
            micro_batches % stages == 0
        ),
    }
    missing = [need for need, has in needs.items() if not has]
    if case.virtual_stages == 1 or not missing:
        return None
    return Broken(
        f"virtual_stages={case.virtual_stages} requires {' and '.join(missing)}",
        "use virtual_stages 1",
    )


@constraint(
    "context-sequence",
    source=ARGUMENTS
    + ", validate_args, and megatron/core/utils.py, get_batch_on_this_cp_rank: two "
    "chunks a rank balance causal attention",
)
def context_splits_sequence(case: Case) -> Broken | None:
    """A sequence that Megatron-LM's context ranks cannot share out."""
    length, chunks = case.sequence_length, 2 * case.context_parallel_size
    if not case.on_megatron or case.context_parallel_size == 1 or not length:
        return None
    if length % chunks == 0:
        return None
    return Broken(
        f"sequence length {length} must be a multiple of 2 x context parallelism ({chunks})",
        f"use {length // chunks * chunks or chunks}",
    )


@constraint("sequence-parallel", source="megatron-core ModelParallelConfig.__post_init__")
def sequence_parallel(case: Case) -> Broken | None:
    """Megatron's sequence parallelism where nothing can be split."""
    size, length = case.tensor_parallel_size, case.sequence_length or 0
    ranks = size * case.context_parallel_size
    has = case.on_megatron or case.program is not None  # only planned for those that have it
    legal = has and size > 1 and length % ranks == 0
    if not case.sequence_parallel or legal:
        return None
    return Broken(
        f"sequence parallelism requires Megatron-LM, tensor parallelism (got {size}) and a "
        f"sequence length ({length}) divisible by tensor x context ({ranks})",
        "turn it off, or change the sequence length",
    )


@constraint(
    "expert-parallel",
    source="megatron-core MoELayer.__init__ (experts) and "
    "parallel_state.initialize_model_parallel (ranks)",
)
def expert_parallel(case: Case) -> Broken | None:
    """Experts or ranks that expert parallelism does not divide."""
    size, experts = case.expert_parallel_size, case.shape and case.shape.experts
    ranks = case.data_parallel_size and case.data_parallel_size * case.context_parallel_size
    fits = (experts or size) % size == 0 and (ranks or size) % size == 0
    if size == 1 or fits:
        return None
    sizes = {"experts": experts, "data x context parallel ranks": ranks}
    known = " and the ".join(f"{what} ({count})" for what, count in sizes.items() if count)
    legal = tuple(n for n in divisors(experts or ranks or 1) if (ranks or n) % n == 0)
    return Broken(f"expert parallelism ({size}) must divide the {known}", f"use {listed(legal)}")


@constraint("megatron-model", source=ARGUMENTS + " has no flag for what is named", ours=True)
def pretrain_gpt(case: Case) -> Broken | None:
    """Parts of a model or a run that pretrain_gpt.py has no flag for."""
    model = case.model
    if not case.on_megatron or model is None:
        return None
    gaps = [*_shape_gaps(model), *_layer_gaps(model), *forward_gaps(model), *_run_gaps(case)]
    if not gaps:
        return None
    return Broken(
        f"pretrain_gpt.py cannot build {model.name}: {'; '.join(gaps[:NAMED])}",
        "use --for deepspeed",
    )


def _shape_gaps(model: ModelSpec) -> list[str]:
    """What is unusual outside the layers."""
    gaps = {
        f"an {model.kind} instead of a decoder": model.kind != "decoder",
        f"position {model.position} instead of rope or learned": model.position not in POSITIONS,
        "a norm of the embedding": model.embedding_norm,
        "an embedding size other than the hidden size": model.embedding_size != model.hidden_size,
        "a bias in the output layer": model.lm_head_bias,
    }
    return [text for text, present in gaps.items() if present]


def _layer_gaps(model: ModelSpec) -> list[str]:
    """What is unusual in a layer."""
    biases = (model.qkv_bias, model.attention_out_bias, model.mlp_bias)
    some = biases not in ((False, False, False), (True, False, False), (True, True, True))
    known = ("silu",) if model.gated_mlp else GELU
    gaps = {
        "attention and MLP in parallel": model.parallel_residual,
        "recurrent layers (they need pretrain_mamba.py)": model.recurrent is not None,
        "a gate of attention's output": model.attention_gate,
        f"{model.norms_per_layer} norms per layer instead of 2": (
            model.norms_per_layer != NORMS_PER_LAYER
        ),
        f"norm {model.norm} instead of rmsnorm or layernorm": model.norm not in NORMS,
        "qk_norm over the full width instead of each head": model.qk_norm == "full",
        "biases in some of the linear layers": some,
        f"activation {model.activation}": model.activation not in known,
    }
    return [text for text, present in gaps.items() if present]


def forward_gaps(model: ModelSpec) -> list[str]:
    """What is unusual in the forward pass: arguments.py has no flag that states it."""
    scaling, router = model.rope_scaling, model.moe and model.moe.router
    gaps = list(model.forward_extras)
    if scaling is not None:
        latent = model.mla is not None
        gaps += (
            _rope_gaps(scaling, "yarn", YARN_SCALING)
            if latent
            else _rope_gaps(scaling, "llama3", LLAMA3_SCALING)
        )
    if router and router.score == "softmax" and router.balance_bias:
        gaps.append("a balance bias with softmax routing")
    if model.no_rope_interval and model.layers % model.no_rope_interval:
        gaps.append(f"{model.layers} layers that `no_rope_interval` does not divide")
    return gaps


def _rope_gaps(scaling: RopeScaling, kind: str, assumed: tuple[_Assumed, ...]) -> list[str]:
    """What differs from the one scaling of a kind that megatron-core has: no flag sets it."""
    if scaling.kind != kind:
        return [f"rope scaling {scaling.kind} instead of {kind}"]
    return [
        f"rope scaling with {name} {_joined(found)} instead of {_joined(wanted)}"
        for name, fields, wanted in assumed
        if (found := tuple(getattr(scaling, field) for field in fields)) != wanted
    ]


def _joined(numbers: tuple[float, ...]) -> str:
    """`32 and 1`."""
    return " and ".join(f"{number:.12g}" for number in numbers)


def _run_gaps(case: Case) -> list[str]:
    """What is unusual about the run."""
    gpu = None if case.cluster is None else case.cluster.gpu
    gaps = {
        "CPU ranks": gpu is not None and gpu.is_cpu,
        "ranks on Gaudi": gpu is not None and gpu.is_gaudi,
    }
    return [text for text, present in gaps.items() if present]
