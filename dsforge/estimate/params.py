"""Exact parameter counts, component by component.

Everything else rests on these: model states are multiples of them, traffic moves them, 6N counts
them. They are therefore not approximations: for every model of the catalog the total equals what
transformers builds, to the last parameter. A tied matrix is counted once; buffers are not counted.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.recurrence import adapted_sides, recurrent_parameters
from dsforge.estimate.vision import tower_parameters
from dsforge.specs import AdapterTarget, LoraSpec, Mixer, MlaSpec, ModelSpec, MoeSpec, Norm
from dsforge.traced import ceil_div, counted, named

NORM_VECTORS: dict[Norm, int] = {
    "rmsnorm": 1,
    "layernorm": 2,
    "layernorm_no_bias": 1,
    "layernorm_no_weights": 0,
}

# Learned numbers of an activation: xIELU's alpha_p and alpha_n (arXiv:2411.13010, section 4).
LEARNED_SCALARS = {"xielu": 2}
ATTENTION = "projections, biases, query and key norms, sinks of one attention"
MLP = "up, gate and down projections of one MLP, with their biases"
MANY_KINDS = 2  # of layers, whose mean is taken


class LayerParameters(NamedTuple):
    """Parameters of one transformer layer."""

    attention: int
    norms: int
    mlp: int  # dense MLP, or the shared experts of a MoE layer with their gate
    router: int = 0
    experts: int = 0  # all routed experts
    idle: int = 0  # routed experts that one token does not pass
    recurrent: int = 0  # state-space part, linear attention or short convolution

    @property
    def shared(self) -> int:
        """The layer without its routed experts."""
        return self.attention + self.recurrent + self.norms + self.mlp + self.router

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        whole = self.shared + self.experts
        return named(
            whole, "moe_layer_total" if self.experts else "dense_layer_parameters", "elements"
        )


class ParameterCounts(NamedTuple):
    """Unique parameters of a model by component."""

    embedding: int  # word embedding, segment types, projections of a narrower embedding
    position_embedding: int
    head: int  # 0 where the head is tied to the word embedding
    head_bias: int
    final_norm: int  # one per half of an encoder-decoder
    other: int  # embedding norm, BERT's pooler, T5's relative position tables, a vision tower
    layers: tuple[LayerParameters, ...]  # in order; the encoder's come before the decoder's

    @property
    def total(self) -> int:
        """Unique parameters of the whole model."""
        return self.non_embedding + self.embedding + self.position_embedding + self.head

    @property
    def non_embedding(self) -> int:
        """Without word and position embeddings and output head; the N of 6N."""
        body = _over_layers({layer: layer.total for layer in self.layers}, self.layers)
        return body + self.final_norm + self.other + self.head_bias

    @property
    def active(self) -> int:
        """Parameters that one token passes, embeddings included."""
        idle = _over_layers({layer: layer.idle for layer in self.layers}, self.layers)
        return self.total - idle

    @property
    def dense_layer(self) -> int:
        """One layer without experts, the mean where layers differ. 0 where none is."""
        return _mean(Counter(layer for layer in self.layers if not layer.experts))

    @property
    def moe_layer_shared(self) -> int:
        """One MoE layer without its routed experts, the mean; 0 where the model has none."""
        shared = _mean(Counter(layer for layer in self.layers if layer.experts))
        return named(shared, "moe_layer_parameters", "elements") if shared else 0

    @property
    def moe_layer_experts(self) -> int:
        """All routed experts of one MoE layer: the part that expert parallelism shares out."""
        return max((layer.experts for layer in self.layers), default=0)


def moe_layers(model: ModelSpec) -> int:
    """Layers of the model that have experts."""
    found = model.moe_layers
    return counted(found, "moe_layers", "layers", of=model.layers) if found else 0


def _mean(kinds: Counter[LayerParameters]) -> int:
    """The mean layer without routed experts, rounded up."""
    if len(kinds) < MANY_KINDS:
        return sum(layer.shared if layer.experts else layer.total for layer in kinds)
    whole = sum(_layer_count(layer, times) * layer.shared for layer, times in kinds.items())
    return ceil_div(whole, kinds.total())


def _over_layers(each: dict[LayerParameters, int], layers: tuple[LayerParameters, ...]) -> int:
    """The sum over all layers of what each kind of them has."""
    alike = Counter(layers)
    return sum(_layer_count(layer, alike[layer]) * value for layer, value in each.items())


def _layer_count(layer: LayerParameters, times: int) -> int:
    """Layers of that kind."""
    name = "moe_layers" if layer.experts else "dense_layers"
    return counted(times, name, "layers", of=layer.norms)


@lru_cache(maxsize=256)
def parameters(model: ModelSpec) -> int:
    """Unique parameters of the model; a tied matrix counts once."""
    return named(parameter_counts(model).total, "model_parameters", "elements")


@lru_cache(maxsize=64)
def parameter_counts(model: ModelSpec) -> ParameterCounts:
    """Parameters of the model by component and layer."""
    hidden, width, norm = model.hidden_size, model.embedding_size, _norm(model)
    words = named(model.vocab_size * width, "word_parameters", "elements", "the word embedding")
    beside = width if model.factored_embedding else hidden
    embedding = words + model.type_vocab_size * beside + _embedding_projections(model)
    positions = model.max_position_embeddings + model.position_offset
    halves = 2 if model.kind == "encoder-decoder" else 1
    tables = halves * (model.layers if model.relative_attention_per_layer else 1)
    other = NORM_VECTORS[model.norm] * beside * model.embedding_norm
    other += (hidden * hidden + hidden) * model.pooler
    other += tables * model.relative_attention_buckets * model.attention_heads
    other += tower_parameters(model)
    return ParameterCounts(
        embedding=named(embedding, "embedding_parameters", "elements"),
        position_embedding=positions * beside if model.position == "learned" else 0,
        head=0 if model.tied_embeddings else words,
        head_bias=model.vocab_size if model.lm_head_bias else 0,
        final_norm=halves * norm * model.final_norm,
        other=other,
        layers=_layers(model),
    )


def _embedding_projections(model: ModelSpec) -> int:
    """What leads from a narrower embedding to the layers, and back to the head (OPT)."""
    width, hidden = model.embedding_size, model.hidden_size
    if width == hidden:
        return 0
    return (width + 1) * hidden if model.factored_embedding else 2 * width * hidden


@lru_cache(maxsize=64)
def lora_parameters(model: ModelSpec, lora: LoraSpec) -> int:
    """Trainable parameters of the adapters: on every linear layer but the head, or on `targets`.

    An adapter of rank r on an (inputs, outputs) matrix has r x (inputs + outputs) parameters: A is
    (r, inputs), B is (outputs, r) (LoRA, arXiv 2106.09685, section 4.1). Query, key and value count
    as three matrices and gate and up as two; routed experts, stored as stacks, and the router carry
    none.
    """
    on = lora.targets
    if model.kind == "encoder-decoder":
        attention = 3 * _attention_sides(model, on)  # encoder, decoder, and across
        layers = model.layers * (attention + 2 * _mlp_sides(model, model.ffn_hidden_size, on))
        return named(lora.rank * layers, "lora_parameters", "elements")
    sparse = moe_layers(model)
    sides = _mixer_sides(model, lora)
    sides += _dense_mlps(model) * _mlp_sides(model, model.ffn_hidden_size, on)
    if model.moe is not None:
        sides += sparse * _mlp_sides(model, model.moe.shared_ffn_hidden_size, on)
    return named(lora.rank * sides, "lora_parameters", "elements")


@lru_cache(maxsize=64)
def adapter_sides(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> float:
    """Inputs plus outputs of all matrices of one decoder layer that carry adapters."""
    width = model.ffn_hidden_size
    if moe_layer:
        width = model.moe.shared_ffn_hidden_size if model.moe else 0
    mlps = 1.0 if moe_layer else model.dense_mlps
    sides: float = mlps * _mlp_sides(model, width, lora.targets)
    sides += _mixer_sides(model, lora) / model.layers
    return named(sides, f"{'moe' if moe_layer else 'dense'}_adapter_sides", "elements")


def _mixer_sides(model: ModelSpec, lora: LoraSpec) -> int:
    """Inputs plus outputs of the adapted matrices that mix tokens, of all layers of a decoder."""
    each = _attention_sides(model, lora.targets)
    if not model.layer_mixers:
        return model.layers * each
    recurrent = sum(map(sum, adapted_sides(model, lora)))
    attentions, recurrences = model.attention_layers, model.recurrent_layers
    return attentions * each + recurrences * recurrent


def _dense_mlps(model: ModelSpec) -> int:
    """Layers with a dense MLP."""
    if model.layer_mlps:
        return model.layer_mlps.count("dense")
    return model.layers - moe_layers(model)


@lru_cache(maxsize=64)
def saved_parameters(model: ModelSpec, lora: LoraSpec) -> int:
    """Parameters of `modules_to_save`: copies that train, while the frozen modules stay.

    peft's `ModulesToSaveWrapper` copies a module (`peft/utils/other.py`).
    """
    words = named(model.vocab_size * model.embedding_size, "word_parameters", "elements")
    head = words + (model.vocab_size if model.lm_head_bias else 0)
    found = words if "embedding" in lora.modules_to_save else 0
    found += head if "head" in lora.modules_to_save else 0
    return named(found, "saved_module_parameters", "elements")


def trained_parameters(model: ModelSpec, lora: LoraSpec) -> int:
    """Everything that trains beside frozen weights: adapters and whole modules."""
    return lora_parameters(model, lora) + saved_parameters(model, lora)


def _layers(model: ModelSpec) -> tuple[LayerParameters, ...]:
    """Parameters of each layer; a T5 decoder layer has a second attention and a third norm."""
    attention = named(_attention(model), "attention_parameters", "elements", ATTENTION)
    norm = _norm(model)
    norms = named(model.norms_per_layer * norm, "norm_parameters", "elements", "of one layer")
    mlp = named(_mlp(model, model.ffn_hidden_size), "mlp_parameters", "elements", MLP)
    dense = LayerParameters(attention, norms, mlp)
    if model.kind == "encoder-decoder":
        decoder = LayerParameters(2 * attention, norms + norm, mlp)
        return (dense,) * model.layers + (decoder,) * model.layers
    if model.moe is None and not model.layer_mixers:
        return (dense,) * model.layers
    sparse = _moe_layer(model, model.moe, attention, norms) if model.moe else dense
    each = {"dense": dense, "moe": sparse, "none": dense._replace(mlp=0)}
    recurrent = recurrent_parameters(model)
    made = {
        (mixer, mlp): _with_mixer(each[mlp], mixer, recurrent)
        for mixer, mlp in {(model.mixer(i), model.mlp(i)) for i in range(model.layers)}
    }
    return tuple(made[model.mixer(i), model.mlp(i)] for i in range(model.layers))


def _with_mixer(layer: LayerParameters, mixer: Mixer, recurrent: int) -> LayerParameters:
    """The layer with what mixes its tokens."""
    if mixer in ("recurrent", "both"):
        layer = layer._replace(recurrent=recurrent)
    return layer if mixer in ("attention", "both") else layer._replace(attention=0)


def _moe_layer(model: ModelSpec, moe: MoeSpec, attention: int, norms: int) -> LayerParameters:
    """Shared experts with their gate, the router, all routed experts."""
    expert = named(_mlp(model, moe.expert_ffn_hidden_size), "one_expert_parameters", "elements")
    shared = _mlp(model, moe.shared_ffn_hidden_size) if moe.shared_ffn_hidden_size else 0
    shared += model.hidden_size if moe.shared_gate else 0
    router = model.hidden_size * moe.experts + (moe.experts if moe.router_bias else 0)
    return LayerParameters(
        attention=attention,
        norms=norms,
        mlp=named(shared, "shared_expert_parameters", "elements"),
        router=named(router, "router_parameters", "elements"),
        experts=named(moe.experts * expert, "routed_expert_parameters", "elements"),
        idle=(moe.experts - moe.experts_per_token) * expert,
    )


def _norm(model: ModelSpec) -> int:
    """One norm: a weight and a bias vector of the hidden size, as its kind has them."""
    return NORM_VECTORS[model.norm] * model.hidden_size


def _mlp(model: ModelSpec, width: int) -> int:
    """Up (and gate) and down projection of one MLP of that width."""
    inputs = 2 if model.gated_mlp else 1
    biases = inputs * width + model.hidden_size if model.mlp_bias else 0
    learned = LEARNED_SCALARS.get(model.activation, 0)
    return (inputs + 1) * model.hidden_size * width + biases + learned


def _attention(model: ModelSpec) -> int:
    """Projections, biases, query/key norms and sinks of one attention."""
    if model.mla is not None:
        return _latent_attention(model)
    query, key = model.attention_heads * model.head_size, model.kv_heads * model.head_size
    query = named(query, "query_width", "elements")
    key = named(key, "key_width", "elements")
    gate = query if model.attention_gate else 0
    size = model.hidden_size * (2 * query + 2 * key + gate)
    size += query + 2 * key + gate if model.qkv_bias else 0
    size += model.hidden_size if model.attention_out_bias else 0
    size += model.attention_heads if model.attention_sinks else 0
    return size + {None: 0, "head": 2 * model.head_size, "full": query + key}[model.qk_norm]


def whole_layer_parameters(model: ModelSpec) -> int:
    """Of a dense layer what tensor ranks hold copies of under AutoTP.

    Norms, those of heads too, and biases that are added to a sum over ranks (DeepSpeed
    module_inject/layers.py, `LinearAllreduce`).
    """
    found = model.norms_per_layer * _norm(model)
    found += model.hidden_size * (model.attention_out_bias + model.mlp_bias)
    found += 2 * model.head_size if model.qk_norm == "head" else 0
    return named(found, "whole_layer_parameters", "elements", "copied on each tensor rank")


def _latent_attention(model: ModelSpec) -> int:
    """MLA (DeepSeek-V2, arXiv 2405.04434, appendix C) with the norms of both latents."""
    mla, hidden, heads = model.mla, model.hidden_size, model.attention_heads
    assert mla is not None  # noqa: S101 (the caller branched on it)
    query = heads * (mla.nope_head_size + mla.rope_head_size)
    queries = (hidden + 1 + query) * mla.q_rank if mla.q_rank else hidden * query
    down = hidden * (mla.kv_rank + mla.rope_head_size) + mla.kv_rank
    up = mla.kv_rank * heads * (mla.nope_head_size + mla.v_head_size)
    return (
        named(queries, "query_parameters", "elements")
        + named(down, "latent_parameters", "elements")
        + named(up, "key_value_parameters", "elements")
        + heads * mla.v_head_size * hidden
        + _indexer(model, mla)
    )


def _indexer(model: ModelSpec, mla: MlaSpec) -> int:
    """Queries, one key with its LayerNorm, and weights of heads (DeepSeek-V3.2's indexer)."""
    if not mla.index_heads:
        return 0
    queries = (mla.q_rank or 0) * mla.index_heads * mla.index_head_size
    keys = model.hidden_size * mla.index_head_size + 2 * mla.index_head_size
    found = queries + keys + model.hidden_size * mla.index_heads
    return named(found, "indexer_parameters", "elements", "lightning indexer of one layer")


def _attention_sides(model: ModelSpec, on: tuple[AdapterTarget, ...]) -> int:
    """Inputs plus outputs of the linear layers of one attention that carry adapters."""
    hidden, heads, mla = model.hidden_size, model.attention_heads, model.mla
    if mla is None:
        query, key = heads * model.head_size, model.kv_heads * model.head_size
        wide = sum(target in on for target in ("query", "output"))
        narrow = sum(target in on for target in ("key", "value"))
        found = (wide + narrow) * hidden + wide * query + narrow * key
        found += query if model.attention_gate and "query" in on else 0
        return named(found, "attention_sides", "elements")
    query = heads * (mla.nope_head_size + mla.rope_head_size)
    queries = hidden + 2 * mla.q_rank + query if mla.q_rank else hidden + query
    down = hidden + mla.kv_rank + mla.rope_head_size
    up = mla.kv_rank + heads * (mla.nope_head_size + mla.v_head_size)
    found = queries if "query" in on else 0
    found += down + up if "key" in on or "value" in on else 0
    found += heads * mla.v_head_size + hidden if "output" in on else 0
    return named(found, "attention_sides", "elements")


def _mlp_sides(model: ModelSpec, width: int, on: tuple[AdapterTarget, ...]) -> int:
    """Inputs plus outputs of the linear layers of one MLP that carry adapters."""
    inner: tuple[AdapterTarget, ...] = ("gate", "up", "down") if model.gated_mlp else ("up", "down")
    return sum(target in on for target in inner) * (model.hidden_size + width) if width else 0
