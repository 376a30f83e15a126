"""FLOPs of one token, from the model's own matrix products.

The rule of thumb 6N (2N forward, 4N backward, N parameters) misses attention over the sequence and
counts embeddings that multiply nothing. Here every product is listed with its shape, because the
time model needs the shapes: a thin product runs far below the peak. Norms, activations and softmax
are left out; they are bound by memory bandwidth, not by FLOPs (below 1 % of the operations).
"""

from __future__ import annotations

from functools import lru_cache

from dsforge.estimate.params import moe_layers
from dsforge.estimate.product import Product
from dsforge.estimate.recurrence import recurrent_products, state_flops
from dsforge.estimate.vision import tower_flops
from dsforge.specs import MlaSpec, ModelSpec, Workload
from dsforge.traced import counted, named

MLP = "_mlp_"  # in names of products
BACKWARD = 2.0  # gradients of input and of weight: two products for each forward product


@lru_cache(maxsize=64)
def attention_products(model: ModelSpec) -> tuple[Product, ...]:
    """Projections of one attention layer: queries, keys, values, output (MLA: its low ranks)."""
    hidden, heads = model.hidden_size, model.attention_heads
    if model.mla is None:
        query = named(heads * model.head_size, "query_width", "elements")
        keys = named(model.kv_heads * model.head_size, "key_width", "elements")
        gate = query if model.attention_gate else 0
        joint = named(query + gate + 2 * keys, "query_key_value_width", "elements")
        return Product(hidden, joint, joint), Product(query, hidden, query)
    mla = model.mla
    query = named(heads * (mla.nope_head_size + mla.rope_head_size), "query_width", "elements")
    expanded = heads * (mla.nope_head_size + mla.v_head_size)
    expanded = named(expanded, "key_value_width", "elements")
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
        *_index_products(model, mla),
    )


def _index_products(model: ModelSpec, mla: MlaSpec) -> tuple[Product, ...]:
    """Projections of the lightning indexer: queries from their latent, a key, weights of heads."""
    if not mla.index_heads:
        return ()
    query, small = mla.index_heads * mla.index_head_size, mla.index_head_size + mla.index_heads
    return Product(mla.q_rank or 1, query, query), Product(model.hidden_size, small, small)


def _mlp(hidden: int, width: int, gated: bool) -> tuple[Product, ...]:
    up = Product(hidden, width * (2 if gated else 1), width)
    return up, Product(width, hidden, width)


@lru_cache(maxsize=64)
def mlp_products(model: ModelSpec, moe_layer: bool) -> tuple[Product, ...]:
    """Products one token passes in one MLP: dense, or its routed and shared experts."""
    hidden, gated, moe = model.hidden_size, model.gated_mlp, model.moe
    if moe is None or not moe_layer:
        return _mlp(hidden, model.ffn_hidden_size, gated)
    one = _mlp(hidden, moe.expert_ffn_hidden_size, gated)
    routed = (product._replace(times=moe.experts_per_token) for product in one)
    shared = _mlp(hidden, moe.shared_ffn_hidden_size, gated) if moe.shared_ffn_hidden_size else ()
    return (*routed, *shared, Product(hidden, moe.experts, moe.experts))


def layer_products(model: ModelSpec, *, moe_layer: bool) -> dict[str, Product]:
    """The products of one token in a layer, by name: `dense_attention_1`, `moe_mlp_2`."""
    kind = "moe" if moe_layer else "dense"
    mlps = 1.0 if moe_layer else model.dense_mlps
    parts = {
        "attention": _often(attention_products(model), model.attentions),
        "recurrent": _often(recurrent_products(model), model.recurrences),
        "mlp": _often(mlp_products(model, moe_layer), mlps),
    }
    return {
        f"{kind}_{part}_{number}": product
        for part, products in parts.items()
        for number, product in enumerate(products, start=1)
    }


def mlp_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one token in the MLPs of all layers of a dense model."""
    products = layer_products(model, moe_layer=False)
    each = sum(p.times * p.weight(name) for name, p in products.items() if MLP in name)
    return named(2.0 * model.depth * each, "mlp_token_flops", "FLOP")


def _often(products: tuple[Product, ...], times: float) -> tuple[Product, ...]:
    """The products of a part that a layer has so often, on average."""
    if times == 1:
        return products
    found = (product._replace(times=times * product.times) for product in products)
    return tuple(found) if times else ()


def product_elements(model: ModelSpec, *, moe_layer: bool) -> float:
    """Weight elements of a layer that one token is multiplied with."""
    products = layer_products(model, moe_layer=moe_layer)
    elements = sum(product.times * product.weight(name) for name, product in products.items())
    kind = "moe" if moe_layer else "dense"
    return named(elements, f"{kind}_product_elements", "elements")


@lru_cache(maxsize=256)
def attention_context(model: ModelSpec, sequence_length: int) -> float:
    """Mean number of tokens that one token attends to, mean over layers (causal or full).

    In an encoder-decoder an encoder's layer looks at all tokens, a decoder's at half of its own and
    at all that were encoded.
    """
    seen = {"decoder": 0.5, "encoder": 1.0, "encoder-decoder": (1.0 + 0.5 + 1.0) / 2}
    share = model.attentions if model.layer_mixers else 1.0  # others have no scores
    full = seen[model.kind] * sequence_length * share
    window = model.sliding_window
    if model.mla is not None and model.mla.index_heads:
        window = model.mla.index_top_k  # of the tokens before it, as many as a window has
    if window is None or window >= sequence_length:
        return named(full, "context", "tokens")
    sides = 2 if model.kind == "encoder" else 1
    narrow = sides * share * window * (1 - window / (2 * sequence_length))
    narrow = named(narrow, "window_context", "tokens")
    pattern = model.sliding_window_pattern
    share_global = 0.0 if pattern is None else 1 / pattern
    return named(share_global * full + (1 - share_global) * narrow, "context", "tokens")


def score_flops(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of one token in QK^T and attention times V, one layer."""
    if model.mla is None:
        width = 2 * model.attention_heads * model.head_size
    else:
        mla = model.mla
        per_head = mla.nope_head_size + mla.rope_head_size + mla.v_head_size
        width = model.attention_heads * per_head
    width = named(width, "score_width", "elements")
    context = attention_context(model, sequence_length)
    flops = 2.0 * width * context + _index_flops(model, sequence_length)
    return named(flops, "score_token_flops", "FLOP")


def _index_flops(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of one token in the indexer's scores of all tokens before it, one layer.

    A product of each head's query and the one key, and the sum over heads (DeepSeek-V3.2, equation
    1); without it only top-k tokens count.
    """
    mla = model.mla
    if mla is None or not mla.index_heads:
        return 0.0
    pairs = 0.5 * sequence_length
    found = 2.0 * mla.index_heads * (mla.index_head_size + 1) * pairs
    return named(found, "index_token_flops", "FLOP", "scores of the lightning indexer")


def head_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one token in the output head."""
    return named(2.0 * model.hidden_size * model.vocab_size, "head_token_flops", "FLOP")


@lru_cache(maxsize=256)
def forward_flops(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of one token through the whole model, head included."""
    sparse = moe_layers(model)
    elements = (model.depth - sparse) * product_elements(model, moe_layer=False)
    if sparse:
        elements += sparse * product_elements(model, moe_layer=True)
    scores = model.depth * (score_flops(model, sequence_length) + state_flops(model))
    layers = named(2.0 * elements + scores, "layers_token_flops", "FLOP")
    return named(layers + head_flops(model), "forward_token_flops", "FLOP")


def backward_factor(workload: Workload) -> float:
    """Backward FLOPs per forward FLOP: 2, or 1 where the weights are frozen (LoRA)."""
    passes = 1.0 if workload.method == "lora" else BACKWARD
    return counted(passes, "backward_passes", "", of=workload.sequence_length)


def reference_passes(workload: Workload) -> float:
    """Forward passes of the frozen reference in a micro step.

    DPO compares log probabilities of both models for both sequences (Rafailov et al. 2023,
    equation 7; TRL `DPOTrainer.compute_ref_log_probs`).
    """
    if not workload.has_reference_pass:
        return 0.0
    return counted(1.0, "reference_passes", "", of=workload.sequence_length)


def step_flops(model: ModelSpec, workload: Workload) -> float:
    """Useful FLOPs of one optimizer step on all GPUs; recomputation is not useful."""
    per_token = forward_flops(model, workload.attended_length)
    if not workload.has_head:
        per_token = per_token - head_flops(model)
    useful = per_token * (1 + backward_factor(workload) + reference_passes(workload))
    if workload.method == "lora" and workload.trains_head:
        useful += head_flops(model)
    useful += tower_flops(model, workload)
    useful *= workload.tokens_per_step
    return named(useful, "useful_step_flops", "FLOP")
