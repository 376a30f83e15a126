"""Activations that a layer saves for backward, and the logits, in bytes for one micro batch.

Counted tensor by tensor, per token. DeepSpeed trains Hugging Face modules: RMSNorm works on a
float32 copy, the activation and the product of a gated MLP are saved apart. Megatron fuses these.
Checked against the engine's own count: Llama-7B, 2 x 2048 tokens, no recomputation: 26 GiB peak.
Flash or memory-efficient attention everywhere: the s x s scores are never stored, so `selective`
recomputation saves only what it recomputes besides them. Dropout masks are left out: fine-tuning
and modern pre-training use none.
"""

from __future__ import annotations

from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Strategy

FLOAT_BYTES = 4


def element_bytes(workload: Workload) -> int:
    """Bytes of one element in the compute precision (fp8 keeps bf16 activations)."""
    return FLOAT_BYTES if workload.precision == "fp32" else 2


def _attention_width(model: ModelSpec) -> int:
    """Elements per token of queries, keys, values and the attention's output."""
    if model.mla is None:
        return 2 * (model.attention_heads + model.kv_heads) * model.head_size
    mla = model.mla
    per_head = 2 * (mla.nope_head_size + mla.rope_head_size) + 2 * mla.v_head_size
    return model.attention_heads * per_head + mla.kv_rank + (mla.q_rank or 0)


def _mlp_width(model: ModelSpec, *, moe_layer: bool, fused: bool) -> float:
    """Elements per token saved inside the MLP."""
    saved = (3 if fused else 4) if model.gated_mlp else 2
    moe = model.moe
    if moe is None or not moe_layer:
        return saved * model.ffn_hidden_size
    routed = moe.experts_per_token * (moe.expert_ffn_hidden_size * saved + 2 * model.hidden_size)
    return routed + saved * moe.shared_ffn_hidden_size + moe.experts


def layer_token_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, *, moe_layer: bool = False
) -> float:
    """Bytes saved per token of this rank's sequence share by one layer without recomputation.

    Matrices are cut by tensor parallelism; what lies between them only with sequence parallelism.
    """
    megatron = strategy.back_end == "megatron"
    size = element_bytes(workload)
    tp = strategy.layout.tensor_parallel_size
    inner = _attention_width(model) + _mlp_width(model, moe_layer=moe_layer, fused=megatron)
    float_copy = 2.0 if model.norm == "rmsnorm" and not megatron and size < FLOAT_BYTES else 1.0
    normed = 1.0 if megatron else 2.0  # eager modules save the normalised vector and its product
    norms = model.norms_per_layer * model.hidden_size * (float_copy + normed)
    if model.norm != "rmsnorm":
        norms = model.norms_per_layer * model.hidden_size * 2.0
    outer_cut = tp if strategy.sequence_parallel else 1
    return size * (inner / tp + norms / outer_cut)


def checkpoint_token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes kept per token and layer under full recomputation: the layer's input."""
    cut = strategy.layout.tensor_parallel_size if strategy.sequence_parallel else 1
    return element_bytes(workload) * model.hidden_size / cut


def logit_token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes per token of the logits at the peak of the loss.

    Hugging Face: compute-precision logits, float32 copy, log-softmax, its gradient (14 bytes in
    bf16). Megatron's vocabulary-parallel loss works in place: 2 + 4 + 4.
    """
    tp = strategy.layout.tensor_parallel_size
    size = element_bytes(workload)
    if strategy.back_end == "megatron":
        return model.vocab_size / tp * (size + 8)
    return model.vocab_size * (size + 12)
