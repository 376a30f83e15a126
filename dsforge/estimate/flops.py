"""FLOPs of one token, from the model's own matrix products.

The rule of thumb 6N (2N forward, 4N backward, N parameters) misses attention over the sequence and
counts embeddings that multiply nothing. Here every product is listed with its shape, because the
time model needs the shapes: a thin product runs far below the peak. Norms, activations and softmax
are left out; they are bound by memory bandwidth, not by FLOPs (below 1 % of the operations).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.specs import ModelSpec, Workload

BACKWARD = 2.0  # gradients of input and of weight: two products for each forward product


class Product(NamedTuple):
    """A matrix product: one token's vector of `inputs` elements times an (inputs, outputs) weight.

    `narrow` is the side that tensor parallelism cuts, whole (before the cut).
    """

    inputs: int
    outputs: int
    narrow: int

    @property
    def elements(self) -> int:
        """Elements of the weight."""
        return self.inputs * self.outputs


@lru_cache(maxsize=64)
def attention_products(model: ModelSpec) -> tuple[Product, ...]:
    """Projections of one attention layer: queries, keys, values, output (MLA: its low ranks)."""
    hidden, heads = model.hidden_size, model.attention_heads
    if model.mla is None:
        query, keys = heads * model.head_size, model.kv_heads * model.head_size
        joint = query + 2 * keys
        return Product(hidden, joint, joint), Product(query, hidden, query)
    mla = model.mla
    query = heads * (mla.nope_head_size + mla.rope_head_size)
    expanded = heads * (mla.nope_head_size + mla.v_head_size)
    queries = (
        (Product(hidden, query, query),)
        if mla.q_rank is None
        else (Product(hidden, mla.q_rank, mla.q_rank), Product(mla.q_rank, query, query))
    )
    return (
        *queries,
        Product(hidden, mla.kv_rank + mla.rope_head_size, mla.kv_rank),
        Product(mla.kv_rank, expanded, expanded),
        Product(heads * mla.v_head_size, hidden, heads * mla.v_head_size),
    )


def _mlp(hidden: int, width: int, gated: bool) -> tuple[Product, ...]:
    up = Product(hidden, width * (2 if gated else 1), width)
    return up, Product(width, hidden, width)


@lru_cache(maxsize=64)
def mlp_products(model: ModelSpec, moe_layer: bool) -> tuple[Product, ...]:
    """Products one token passes in one MLP: dense, or its routed and shared experts."""
    hidden, gated, moe = model.hidden_size, model.gated_mlp, model.moe
    if moe is None or not moe_layer:
        return _mlp(hidden, model.ffn_hidden_size, gated)
    routed = _mlp(hidden, moe.expert_ffn_hidden_size, gated) * moe.experts_per_token
    shared = _mlp(hidden, moe.shared_ffn_hidden_size, gated) if moe.shared_ffn_hidden_size else ()
    return (*routed, *shared, Product(hidden, moe.experts, moe.experts))


@lru_cache(maxsize=256)
def attention_context(model: ModelSpec, sequence_length: int) -> float:
    """Mean number of tokens that one token attends to, mean over layers (causal or full)."""
    full = sequence_length / 2 if model.kind == "decoder" else float(sequence_length)
    window = model.sliding_window
    if window is None or window >= sequence_length:
        return full
    narrow = window * (1 - window / (2 * sequence_length))
    pattern = model.sliding_window_pattern
    share_global = 0.0 if pattern is None else 1 / pattern
    return share_global * full + (1 - share_global) * narrow


def score_flops(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of one token in QK^T and attention times V, one layer."""
    if model.mla is None:
        width = 2 * model.attention_heads * model.head_size
    else:
        mla = model.mla
        per_head = mla.nope_head_size + mla.rope_head_size + mla.v_head_size
        width = model.attention_heads * per_head
    return 2.0 * width * attention_context(model, sequence_length)


def head_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one token in the output head."""
    return 2.0 * model.hidden_size * model.vocab_size


@lru_cache(maxsize=256)
def forward_flops(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of one token through the whole model, head included."""
    attention = sum(product.elements for product in attention_products(model))
    dense = sum(product.elements for product in mlp_products(model, moe_layer=False))
    expert = sum(product.elements for product in mlp_products(model, moe_layer=True))
    sparse_layers = model.moe_layers
    elements = model.layers * attention + (model.layers - sparse_layers) * dense
    elements += sparse_layers * expert
    scores = model.layers * score_flops(model, sequence_length)
    return 2.0 * elements + scores + head_flops(model)


def backward_factor(workload: Workload) -> float:
    """Backward FLOPs per forward FLOP: 2, or 1 where the weights are frozen (LoRA)."""
    return 1.0 if workload.method == "lora" else BACKWARD


def step_flops(model: ModelSpec, workload: Workload) -> float:
    """Useful FLOPs of one optimizer step on all GPUs; recomputation is not useful."""
    per_token = forward_flops(model, workload.sequence_length)
    return per_token * (1 + backward_factor(workload)) * workload.tokens_per_step
