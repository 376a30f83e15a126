"""Activations that a layer saves for backward, in bytes for one micro batch.

Counted tensor by tensor, per token, as each kind of modules saves them:

- Plain modules (Hugging Face, torchtune, torchtitan): RMSNorm works on a float32 copy and keeps the
  normalised vector and its product; a gated MLP keeps gate, up, activation and product. Equal to
  what transformers' Llama, Qwen3 and GPT-2 save, within half a percent (`tests/engine`).
- Fused ones (Megatron with Transformer Engine, Liger, torch.compile): a norm keeps its input and
  what it hands on, the MLP gate, up and product.
- Plain modules with fused norms (nanotron): a plain MLP, keys and values a second time in one
  buffer for rotation.

Attention keeps queries, keys, values and output; `eager` also the scores of all pairs. Between
matrices of a tensor-parallel layer lie vectors that each rank holds whole, unless the sequence is
split over the same ranks.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.adapters import adapter_token_bytes
from dsforge.estimate.dropout import dropped, layer_mask_bytes
from dsforge.estimate.recurrence import saved_elements, working_elements
from dsforge.estimate.ulysses import saved_width
from dsforge.execution import Kernels
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Strategy
from dsforge.traced import Traced, ceil_div, counted, maximum, minimum, named

FLOAT_BYTES = 4
INDEX_BYTES = 4
# Scores of one head and pair of tokens: softmax in float32 and its copy in the compute type, which
# is the same tensor in float32; with dropout softmax, mask and dropped-out copy. Modules of some
# kinds leave the softmax in the compute type, unless autocast widens it (transformers
# models/*/modeling_*.py, `eager_attention_forward`); so does Megatron (rows mcore-gv).
SCORE_BYTES, NARROW_SCORE_BYTES, FLOAT_SCORE_BYTES = (6, 7), (2, 5), (4, 9)  # with dropout second
# Activations that Hugging Face composes of tensor operations, and how many more tensors are saved;
# a mask of 8 bits is half a tensor (transformers/activations.py; xIELU without its CUDA kernel).
COMPOSED = {"gelu_new": 3, "gelu_fast": 3, "xielu": 3.5}
PLAIN_NORM_GRADIENTS = 7  # hidden sizes: one in the compute type, three in float32
COPIES = "tensors that the modules save for backward, counted one by one"
STATISTICS = "float32 statistics of norms and softmax, scores of unfused attention, dropout masks"
TILES = "stretches of a sample that an MLP takes one after the other"
INNER = "part that tensor parallel ranks share: attention and the MLP"


class _Widths(NamedTuple):
    """How many copies a layer saves."""

    gated: float  # of the FFN width, gated MLP
    plain: float  # of the FFN width, plain MLP
    norm: float  # of the hidden size, each RMSNorm with the vector that it hands on
    layer_norm: float  # the same, LayerNorm
    keys: float  # of keys and values beyond one


KERNELS: dict[Kernels, _Widths] = {
    "eager": _Widths(4, 2, 4, 2, 0),
    "fused": _Widths(3, 2, 2, 2, 0),
    "compiled": _Widths(3, 2, 2, 2, 0),
    "fused_norms": _Widths(4, 2, 2, 2, 1),
}


class Saved(NamedTuple):
    """Elements per token: on every tensor-parallel rank, and shared out between them."""

    whole: float
    cut: float


class TokenBytes(NamedTuple):
    """What one token costs: a dense and a MoE layer, gradients at work, the widest layer."""

    dense_layer: float
    moe_layer: float
    gradients: float
    widest: float  # of layers that differ; else the layer itself


def element_bytes(workload: Workload) -> int:
    """Bytes of one element in the compute precision (fp8 keeps bf16 activations)."""
    size = FLOAT_BYTES if workload.precision == "fp32" else 2
    of = workload.sequence_length
    return counted(size, "element_bytes", "bytes", of=of) if isinstance(of, Traced) else size


def _attention_width(model: ModelSpec, copies: float) -> float:
    """Elements per token of queries, keys, values and the attention's output."""
    if model.mla is None:
        keys = 2 * model.kv_heads * model.head_size
        query = model.attention_heads * model.head_size
        gate = 2 * query if model.attention_gate else 0  # the gate, and what it multiplies
        width = 2 * query + gate + (1 + copies) * keys
        width += query + keys / 2 if model.fused_qkv and model.position == "rope" else 0
        return named(width, "attention_width", "elements")
    mla = model.mla
    per_head = 2 * (mla.nope_head_size + mla.rope_head_size) + 2 * mla.v_head_size
    width = model.attention_heads * per_head + mla.kv_rank + (mla.q_rank or 0)
    return named(width, "attention_width", "elements")


def _copied_width(model: ModelSpec, strategy: Strategy) -> float:
    """Elements per token of queries and keys before their own norm, of keys repeated for scores.

    Of latent attention in plain modules: what the norms of both latents keep, the keys before
    rotation, which stay in one tensor with the values, and attention's output in another order of
    heads and tokens (`DeepseekV3Attention`).
    """
    run, width = strategy.runs_as, 0.0
    if model.mla is not None and run.kernels == "eager":
        width += model.attention_heads * (model.mla.nope_head_size + model.mla.v_head_size)
        width += (KERNELS["eager"].norm - 1) * (model.mla.kv_rank + (model.mla.q_rank or 0))
    if model.qk_norm is not None and model.mla is None:
        each = KERNELS[run.kernels].norm - 1  # what leaves the norm is counted as queries, keys
        width += each * (model.attention_heads + model.kv_heads) * model.head_size
    if run.attention == "eager" and strategy.engine.repeats_keys:
        width += 2 * (model.attention_heads - model.kv_heads) * model.head_size
    return width


def _mlp_width(
    model: ModelSpec, workload: Workload, strategy: Strategy, *, moe_layer: bool
) -> float:
    """Elements per token saved inside the MLP.

    The last product needs its input only where it or its adapter trains.
    """
    kernels = strategy.runs_as.kernels
    widths, inner = KERNELS[kernels], dropped(model, strategy.runs_as).mlp_inner
    saved = widths.gated if model.gated_mlp else widths.plain
    if kernels == "eager":
        saved += COMPOSED.get(model.activation, 0)
    saved -= "down" not in workload.adapts
    if model.activation == "relu" and not model.gated_mlp and not inner:
        saved -= 1  # its result tells the slope
    moe = model.moe
    saved = counted(saved, "mlp_copies", "", of=model.hidden_size, why=COPIES)
    if moe is None or not moe_layer:
        width = saved * model.ffn_hidden_size * model.dense_mlps
        width = width / mlp_tiles(model, workload, strategy)
        return named(width, "mlp_width", "elements")
    routed = moe.experts_per_token * (moe.expert_ffn_hidden_size * saved + 2 * model.hidden_size)
    whole = routed + saved * moe.shared_ffn_hidden_size + moe.experts
    return named(whole, "moe_mlp_width", "elements")


def mlp_tiles(model: ModelSpec, workload: Workload, strategy: Strategy) -> int:
    """Stretches of a sample that an MLP takes one after the other, as many tokens as hidden size.

    DeepSpeed runtime/sequence_parallel/ulysses_sp.py, `TiledMLP`; transformers' MLPs in axolotl.
    """
    if not strategy.runs_as.tiled_mlp:
        return 1
    tokens = workload.sequence_length // strategy.layout.context_parallel_size
    return named(ceil_div(tokens, model.hidden_size), "mlp_tiles", "", TILES)


def _all_saved(model: ModelSpec, workload: Workload, strategy: Strategy, moe_layer: bool) -> Saved:
    """What a layer saves without recomputation."""
    run, widths = strategy.runs_as, KERNELS[strategy.runs_as.kernels]
    inner = _attention_width(model, widths.keys) + _copied_width(model, strategy)
    inner = model.attentions * (inner + saved_width(model, strategy)) + saved_elements(model)
    inner += _mlp_width(model, workload, strategy, moe_layer=moe_layer)
    each = widths.norm if model.norm == "rmsnorm" else widths.layer_norm
    if each > KERNELS["fused"].norm and element_bytes(workload) == FLOAT_BYTES:
        each -= 1  # the float32 copy is the input itself
    each = counted(each, "norm_copies", "", of=model.hidden_size, why=COPIES)
    inner = named(inner, "moe_inner_width" if moe_layer else "inner_width", "elements", INNER)
    hidden = model.norms * model.hidden_size
    idle = _idle_norms(model, workload) * model.hidden_size
    inner -= idle if strategy.sequence_parallel else 0
    if not strategy.sequence_parallel:
        return Saved(hidden * each - idle, inner)
    if run.gathered_inputs == "saved" and strategy.layout.tensor_parallel_size > 1:
        return Saved(hidden, inner + hidden * (each - 1))
    return Saved(0.0, inner + hidden * each)


def _idle_norms(model: ModelSpec, workload: Workload) -> int:
    """Norms whose results backward does not need: no matrix that reads them carries an adapter."""
    attention = any(target in workload.adapts for target in ("query", "key", "value"))
    mlp = any(target in workload.adapts for target in ("gate", "up"))
    if model.norms_per_layer == 1:
        return 0 if attention or mlp else 1
    return (not attention) + (not mlp)


def _selected(model: ModelSpec, strategy: Strategy) -> Saved:
    """What torchtitan's selective checkpointing keeps: input, attention, every other product."""
    query, keys = model.attention_heads * model.head_size, model.kv_heads * model.head_size
    inner = 2 * query + keys + model.ffn_hidden_size
    whole = 2 * model.hidden_size if not strategy.sequence_parallel else model.hidden_size
    return Saved(whole, inner + (model.hidden_size if strategy.sequence_parallel else 0))


def _bytes(saved: Saved, workload: Workload, strategy: Strategy) -> float:
    tp = strategy.layout.tensor_parallel_size
    return _residual_bytes(workload) * saved.whole + element_bytes(workload) * saved.cut / tp


def _residual_bytes(workload: Workload) -> int:
    """Bytes of an element between the layers: float32 where embedding and norms are."""
    upcast = workload.lora is not None and workload.lora.upcast
    return FLOAT_BYTES if upcast else element_bytes(workload)


def _score_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Scores of one token with all others, all heads of this rank: what eager attention keeps."""
    run, wide = strategy.runs_as, element_bytes(workload) == FLOAT_BYTES
    autocast = strategy.engine.states == "fp32_replicas" and run.master_weights
    narrow = model.narrow_softmax and not autocast
    narrow = narrow or (run.dropout and strategy.engine.narrow_softmax)
    sizes = FLOAT_SCORE_BYTES if wide else NARROW_SCORE_BYTES if narrow else SCORE_BYTES
    each = sizes[dropped(model, run).attention]
    heads = model.attentions * model.attention_heads / strategy.layout.tensor_parallel_size
    return each * heads * workload.sequence_length


def _extra_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, *, moe_layer: bool
) -> float:
    """Bytes of one token beside its vectors: scores, statistics, masks of dropout.

    A float32 number of each norm, and of each head's softmax under flash attention.
    """
    run, tp = strategy.runs_as, strategy.layout.tensor_parallel_size
    heads = model.attention_heads + model.kv_heads if model.qk_norm == "head" else 0
    heads += tp * (1 + (model.mla.q_rank is not None)) if model.mla is not None else 0  # latents
    if run.attention != "eager":
        heads += model.attention_heads
    found = FLOAT_BYTES * (model.attentions * heads / tp + model.norms)
    if model.mla is not None and model.mla.index_heads:  # numbers of the chosen tokens, 4 bytes
        found += INDEX_BYTES * minimum(model.mla.index_top_k, workload.sequence_length)
    found += layer_mask_bytes(model, strategy, moe_layer=moe_layer)
    return found if run.attention != "eager" else found + _score_bytes(model, workload, strategy)


def layer_token_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, *, moe_layer: bool = False
) -> float:
    """Bytes saved per token of this rank's sequence share by one layer without recomputation.

    Matrices are cut by tensor parallelism; what lies between them only with sequence parallelism.
    """
    saved = _bytes(_all_saved(model, workload, strategy, moe_layer), workload, strategy)
    beside = _extra_bytes(model, workload, strategy, moe_layer=moe_layer)
    beside = named(beside, "statistic_bytes", "bytes", STATISTICS)
    size = element_bytes(workload)
    adapters = adapter_token_bytes(model, workload, size, moe_layer=moe_layer)
    beside += adapters / strategy.layout.tensor_parallel_size
    return named(saved + beside, "moe_layer_bytes" if moe_layer else "dense_layer_bytes", "bytes")


def kept_token_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, whole: float
) -> float:
    """Bytes kept per token and layer from forward to backward, of the `whole` that it saves.

    `selective`: Megatron computes the scores again, torchtitan all but what `_selected` names;
    other modules with flash attention have nothing to select.
    """
    if strategy.recompute == "none":
        return whole
    if strategy.recompute == "full":
        return checkpoint_token_bytes(model, workload, strategy)
    if strategy.engine.selective == "every_other_product":
        return _bytes(_selected(model, strategy), workload, strategy)
    if strategy.runs_as.attention == "eager":
        return whole - _score_bytes(model, workload, strategy)
    return whole


def checkpoint_token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes kept per token and layer under full recomputation: the layer's input."""
    cut = strategy.layout.tensor_parallel_size if strategy.sequence_parallel else 1
    return named(_residual_bytes(workload) * model.hidden_size / cut, "checkpoint_bytes", "bytes")


def gradient_token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes per token of the widest gradients alive at once in the backward of one layer.

    Inside the MLP those of its inner vectors; at its rim one vector of the hidden size, three where
    a split sequence has to be gathered: the input again, its gradient whole, and the rank's part.
    """
    width = model.ffn_hidden_size
    if model.moe is not None:
        width = model.moe.experts_per_token * model.moe.expert_ffn_hidden_size
    inner = (2 if model.gated_mlp else 1) * width / strategy.layout.tensor_parallel_size
    tiles = mlp_tiles(model, workload, strategy)
    if tiles > 1:
        others = maximum(_attention_gradients(model, strategy), _norm_gradients(model, strategy))
        inner = maximum(inner / tiles, others)
    if model.recurrent is not None:
        inner = maximum(inner, working_elements(model))
    split = strategy.sequence_parallel and strategy.layout.tensor_parallel_size > 1
    found = element_bytes(workload) * (inner + (3 if split else 1) * model.hidden_size)
    return named(found, "gradients_at_work_bytes", "bytes")


def _attention_gradients(model: ModelSpec, strategy: Strategy) -> float:
    """Elements of one token in the gradients of queries, keys, values and attention's output.

    Under Ulysses as of what it saves: one lies there twice while it is exchanged, those of keys and
    values of fewer heads than ranks are of repeated ones.
    """
    width = _attention_width(model, 0.0) + saved_width(model, strategy)
    width = width / strategy.layout.tensor_parallel_size
    return named(width, "attention_gradients", "elements")


def _norm_gradients(model: ModelSpec, strategy: Strategy) -> float:
    """Elements of one token in the backward of a norm: what comes in and what goes out.

    An RMSNorm of plain modules works in float32: there the incoming gradient again, its product
    with the root and one that is summed (transformers `LlamaRMSNorm`).
    """
    plain_norm = strategy.runs_as.kernels == "eager" and model.norm == "rmsnorm"
    copies = PLAIN_NORM_GRADIENTS if plain_norm else 2
    return named(copies * model.hidden_size, "norm_gradients", "elements")


def token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> TokenBytes:
    """Bytes of one token, whatever the micro batch and the recomputation."""
    dense = layer_token_bytes(model, workload, strategy)
    sparse = dense
    if model.moe is not None:
        sparse = layer_token_bytes(model, workload, strategy, moe_layer=True)
    gradients = gradient_token_bytes(model, workload, strategy)
    return TokenBytes(dense, sparse, gradients, _widest(model, workload, strategy))


def _widest(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes saved per token by the layer that saves most: one at a time is computed again."""
    if not model.layer_mixers:
        sparse = model.moe is not None
        return layer_token_bytes(model, workload, strategy, moe_layer=sparse)
    found = 0.0
    for mixer, mlp in sorted({(model.mixer(i), model.mlp(i)) for i in range(model.layers)}):
        alone = {"layers": 1, "layer_mixers": (mixer,), "layer_mlps": (mlp,)}
        one, sparse = model.model_copy(update=alone), mlp == "moe"
        found = maximum(found, layer_token_bytes(one, workload, strategy, moe_layer=sparse))
    return found
