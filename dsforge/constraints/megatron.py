"""What Megatron-LM's pretrain_gpt.py cannot build.

It knows one shape of decoder with many switches (megatron/training/arguments.py, megatron-core 0.16
`TransformerConfig`). A model that it would silently build in another shape is refused, never
approximated.
"""

from __future__ import annotations

from dsforge.constraints.case import Case, Rule
from dsforge.errors import Problem
from dsforge.rope import RopeScaling
from dsforge.specs import ModelSpec

POSITIONS = ("rope", "learned")
NORMS = ("rmsnorm", "layernorm")
GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
OPTIMIZERS = ("adamw", "sgd", "lion", "muon")
NORMS_PER_LAYER = 2
LLAMA3_CONSTANTS = (1.0, 4.0, 8192)
YARN_CONSTANTS = (32.0, 1.0, 4096)
NAMED = 4  # gaps that one message names


def pretrain_gpt(case: Case) -> Problem | None:
    """Pretrain gpt: arguments.py has no flag for these parts of the model or the run."""
    if not case.on_megatron:
        return None
    model = case.model
    gaps = [*_shape_gaps(model), *_layer_gaps(model), *forward_gaps(model), *_run_gaps(case)]
    if not gaps:
        return None
    return Problem(
        "megatron-model",
        f"pretrain_gpt.py cannot build {case.model.name}: {'; '.join(gaps[:NAMED])}",
        "use --for deepspeed",
    )


def _shape_gaps(model: ModelSpec) -> list[str]:
    """What is unusual outside the layers."""
    gaps = {
        f"`kind` (={model.kind}) must be decoder": model.kind != "decoder",
        f"`position` (={model.position}) must be rope or learned": model.position not in POSITIONS,
        "`embedding_norm`": model.embedding_norm,
        "`embedding_size` unlike `hidden_size`": model.embedding_size != model.hidden_size,
        "`lm_head_bias`": model.lm_head_bias,
    }
    return [text for text, present in gaps.items() if present]


def _layer_gaps(model: ModelSpec) -> list[str]:
    """What is unusual in a layer."""
    biases = (model.qkv_bias, model.attention_out_bias, model.mlp_bias)
    some = biases not in ((False, False, False), (True, False, False), (True, True, True))
    known = ("silu",) if model.gated_mlp else GELU
    gaps = {
        "attention and MLP side by side": model.parallel_residual,
        f"`norms_per_layer` (={model.norms_per_layer}) must be 2": (
            model.norms_per_layer != NORMS_PER_LAYER
        ),
        f"`norm` (={model.norm}) must be rmsnorm or layernorm": model.norm not in NORMS,
        "`qk_norm` (=full) must be head": model.qk_norm == "full",
        "biases on some linear layers": some,
        f"`activation` (={model.activation})": model.activation not in known,
    }
    return [text for text, present in gaps.items() if present]


def forward_gaps(model: ModelSpec) -> list[str]:
    """What is unusual in the forward pass: arguments.py has no flag that states it."""
    scaling, router = model.rope_scaling, model.moe and model.moe.router
    gaps = list(model.forward_extras)
    if scaling is not None:
        if model.mla is not None and not _is_yarn(scaling):
            gaps.append(f"`rope_scaling` (={scaling.kind}) must be yarn with betas 32 and 1")
        elif model.mla is None and not _is_llama3(scaling):
            gaps.append(f"`rope_scaling` (={scaling.kind}) must be that of Llama 3")
    if router and router.score == "softmax" and router.balance_bias:
        gaps.append("a balance bias with softmax routing")
    if model.no_rope_interval and model.layers % model.no_rope_interval:
        gaps.append(f"layers (={model.layers}) that `no_rope_interval` does not divide")
    return gaps


def _is_llama3(scaling: RopeScaling) -> bool:
    """Whether it has the constants of megatron-core (`RotaryEmbedding._apply_scaling`)."""
    constants = (
        scaling.low_freq_factor,
        scaling.high_freq_factor,
        scaling.original_max_position_embeddings,
    )
    return scaling.kind == "llama3" and constants == LLAMA3_CONSTANTS


def _is_yarn(scaling: RopeScaling) -> bool:
    """Whether it has what latent attention assumes (`MLATransformerConfig`): no flag sets it."""
    constants = (scaling.beta_fast, scaling.beta_slow, scaling.original_max_position_embeddings)
    return scaling.kind == "yarn" and constants == YARN_CONSTANTS


def _run_gaps(case: Case) -> list[str]:
    """What is unusual about the run."""
    optimizer = case.workload.optimizer
    gaps = {
        f"`optimizer` (={optimizer}) must be adamw, sgd, lion or muon": optimizer not in OPTIMIZERS,
        "`method` (=lora) must be full": case.workload.method == "lora",
        "CPU ranks": case.cluster.gpu.is_cpu,
        "ranks on Gaudi": case.cluster.gpu.is_gaudi,
    }
    return [text for text, present in gaps.items() if present]


RULES: tuple[Rule, ...] = (pretrain_gpt,)
