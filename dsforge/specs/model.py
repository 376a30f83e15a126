"""The shape of a model: every size, and every part that changes its bytes or its FLOPs."""

from __future__ import annotations

from operator import index
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from dsforge.specs.frozen import FROZEN
from dsforge.specs.recurrent import Mixer, Mlp, RecurrentSpec

Kind = Literal["decoder", "encoder", "encoder-decoder"]
Norm = Literal["rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_no_weights"]
Position = Literal["learned", "rope", "alibi", "relative", "none"]


class RopeScaling(BaseModel):
    """How rotary frequencies are stretched for long sequences; Hugging Face names."""

    model_config = FROZEN

    kind: str = Field(description="`rope_type`: llama3, yarn, linear, dynamic, longrope, ...")
    factor: float = Field(default=1.0, gt=0, description="How many times longer sequences become.")
    original_max_position_embeddings: int = Field(
        default=8192, ge=1, description="Longest sequence before scaling, tokens."
    )
    low_freq_factor: float = Field(
        default=1.0,
        gt=0,
        description="llama3: wavelengths above original length / this are scaled in full.",
    )
    high_freq_factor: float = Field(
        default=4.0,
        gt=0,
        description="llama3: wavelengths below original length / this are not scaled.",
    )
    beta_fast: float = Field(
        default=32.0,
        gt=0,
        description="yarn: rotations per original length from which nothing is scaled.",
    )
    beta_slow: float = Field(
        default=1.0,
        gt=0,
        description="yarn: rotations per original length up to which all is scaled.",
    )
    mscale: float = Field(default=1.0, ge=0, description="yarn: factor of attention's temperature.")
    mscale_all_dim: float = Field(
        default=0.0, ge=0, description="yarn: factor of attention's temperature in every dimension."
    )


class RouterSpec(BaseModel):
    """How tokens find their experts; no size tells."""

    model_config = FROZEN

    score: Literal["softmax", "sigmoid"] = Field(
        default="softmax", description="How the router turns logits into weights of experts."
    )
    normalized: bool = Field(default=True, description="Weights of the chosen experts add up to 1.")
    balance_bias: bool = Field(default=False, description="Balanced by a bias, without a loss.")
    scaling_factor: float = Field(default=1.0, gt=0, description="Of the chosen weights.")
    groups: int = Field(default=1, ge=1, description="Groups that the experts are divided into.")
    groups_per_token: int = Field(default=1, ge=1, description="Groups that one token may use.")


class DropoutSpec(BaseModel):
    """Where a model drops values in training, each a probability; 0: nowhere."""

    model_config = FROZEN

    attention: float = Field(
        default=0.0, ge=0, le=1, description="Of attention's weights, behind their softmax."
    )
    attention_output: float = Field(
        default=0.0, ge=0, le=1, description="Of what attention adds to the residual stream."
    )
    mlp_inner: float = Field(
        default=0.0, ge=0, le=1, description="Of the vector inside the MLP (T5, ModernBERT)."
    )
    mlp_output: float = Field(
        default=0.0, ge=0, le=1, description="Of what the MLP adds to the residual stream."
    )
    embedding: float = Field(
        default=0.0, ge=0, le=1, description="Of the embedding, as it enters the layers."
    )


class MoeSpec(BaseModel):
    """The experts of a mixture-of-experts model."""

    model_config = FROZEN

    experts: int = Field(ge=1, description="Routed experts in each MoE layer.")
    experts_per_token: int = Field(ge=1, description="Routed experts that one token passes.")
    expert_ffn_hidden_size: int = Field(ge=1, description="Width of one routed expert.")
    shared_ffn_hidden_size: int = Field(default=0, ge=0, description="Width of the shared experts.")
    shared_gate: bool = Field(default=False, description="The shared expert has a gate vector.")
    first_dense_layers: int = Field(default=0, ge=0, description="Leading layers without experts.")
    layer_step: int = Field(default=1, ge=1, description="Every n-th layer is a MoE layer.")
    router_bias: bool = Field(default=False, description="The router has a bias per expert.")
    router: RouterSpec = Field(
        default=RouterSpec(), description="Scores, groups and balance of the router."
    )


class MlaSpec(BaseModel):
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values through low ranks."""

    model_config = FROZEN

    q_rank: int | None = Field(default=None, ge=1, description="Query rank; none: no compression.")
    kv_rank: int = Field(ge=1, description="Rank of the joint key and value latent.")
    nope_head_size: int = Field(ge=1, description="Part of a query/key head without rotation.")
    rope_head_size: int = Field(ge=1, description="Part of a query/key head with rotation.")
    v_head_size: int = Field(ge=1, description="Width of a value head.")
    index_heads: int = Field(
        default=0,
        ge=0,
        description="Heads of the lightning indexer, which chooses the tokens that a token attends "
        "to (DeepSeek-V3.2); 0: every token attends to all before it.",
    )
    index_head_size: int = Field(default=0, ge=0, description="Width of a head of the indexer.")
    index_top_k: int = Field(default=0, ge=0, description="Tokens that the indexer chooses.")


class TowerSpec(BaseModel):
    """A vision tower beside a language model, with what leads from it to the tokens."""

    model_config = FROZEN

    kind: str = Field(description="`model_type` of the vision-language model.")
    layers: int = Field(ge=1, description="Transformer layers of the tower.")
    hidden_size: int = Field(ge=1, description="Width of the tower.")
    parameters: int = Field(ge=1, description="Parameters of the tower.")
    projector_parameters: int = Field(
        ge=0, description="Parameters of the projector between tower and language model."
    )
    patches_per_token: int = Field(ge=1, description="Patches that become one token.")


class ModelSpec(BaseModel):
    """The shape of a transformer; sizes are counts."""

    model_config = FROZEN

    name: str = Field(description="Catalog name, or the name of the file it was read from.")
    family: str = Field(default="", description="Family in the catalog, for people.")
    hub_id: str | None = Field(default=None, description="Hugging Face hub id.")
    path: str | None = Field(
        default=None, description="Folder or config.json that it was read from, absolute."
    )
    model_type: str | None = Field(description="`model_type` of its Hugging Face config.")
    kind: Kind = Field(
        default="decoder", description="Architecture: decoder, encoder or encoder-decoder."
    )
    layers: int = Field(ge=1, description="Transformer layers (each half of an encoder-decoder).")
    hidden_size: int = Field(ge=1, description="Width of the residual stream.")
    ffn_hidden_size: int = Field(
        ge=0, description="Width of the MLP of a dense layer; 0: there is none (Mamba)."
    )
    attention_heads: int = Field(
        ge=0, description="Query heads of one attention layer; 0: there is none (Mamba)."
    )
    kv_heads: int = Field(ge=0, description="Key/value heads; fewer than heads means GQA or MQA.")
    head_size: int = Field(ge=0, description="Width of one attention head.")
    vocab_size: int = Field(ge=1, description="Rows of the word embedding.")
    max_position_embeddings: int = Field(
        ge=1, description="Longest sequence that it takes, tokens."
    )
    tied_embeddings: bool = Field(description="Output head and word embedding are one matrix.")
    activation: str = Field(default="silu", description="`hidden_act` of its config.")
    gated_mlp: bool = Field(description="Three matrices (gate, up, down) instead of two.")
    norm: Norm = Field(
        default="rmsnorm",
        description="Kind of the normalization layers, with the parameters they have.",
    )
    norms_per_layer: int = Field(
        default=2,
        ge=0,
        le=8,
        description="Normalization layers in one transformer layer, without `qk_norm`.",
    )
    norm_epsilon: float = Field(
        default=1e-5, gt=0, lt=1, description="Epsilon of the normalization layers."
    )
    embedding_norm: bool = Field(
        default=False, description="A normalization layer follows the embedding."
    )
    final_norm: bool = Field(
        default=True, description="A normalization layer precedes the output head."
    )
    qk_norm: Literal["head", "full"] | None = Field(
        default=None,
        description="Queries and keys are normalized, by head or in full; none: not.",
    )
    qkv_bias: bool = Field(
        default=False, description="The query, key and value projections have biases."
    )
    fused_qkv: bool = Field(
        default=False,
        description="One matrix gives queries, keys and values, which stay one tensor: rotated "
        "queries and keys come on top (ModernBERT).",
    )
    attention_out_bias: bool = Field(
        default=False, description="The output projection of attention has a bias."
    )
    mlp_bias: bool = Field(default=False, description="The projections of the MLP have biases.")
    lm_head_bias: bool = Field(default=False, description="The output head has a bias.")
    attention_gate: bool = Field(
        default=False,
        description="The query projection also gives a gate for attention's output (Qwen3-Next).",
    )
    attention_sinks: bool = Field(
        default=False,
        description="Each head has a learned logit that takes attention away (GPT-OSS).",
    )
    parallel_residual: bool = Field(
        default=False, description="Attention and MLP read the same input and are added together."
    )
    position: Position = Field(default="rope", description="How positions enter the model.")
    position_offset: int = Field(default=0, ge=0, description="Extra rows of learned positions.")
    rope_theta: float = Field(default=10000.0, gt=0, description="Base of the rotary frequencies.")
    partial_rotary_factor: float = Field(
        default=1.0, gt=0, le=1, description="Share of a head that is rotated."
    )
    rope_scaling: RopeScaling | None = Field(
        default=None, description="How rotary frequencies are stretched; none: not."
    )
    rotary_interleaved: bool = Field(default=False, description="Pairs of neighbours are rotated.")
    no_rope_interval: int | None = Field(
        default=None, ge=1, description="Every n-th layer is without rotary embedding."
    )
    forward_extras: tuple[str, ...] = Field(
        default=(), description="Properties of the forward pass that sizes do not determine."
    )
    embedding_size: int = Field(ge=1, description="Width of the word embedding.")
    factored_embedding: bool = Field(
        default=False,
        description="Positions, segments and the norm of the embedding have its width, too, and "
        "one projection with a bias leads from it to the layers (ELECTRA).",
    )
    sliding_window: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that windowed attention looks back, and an encoder ahead; none: all.",
    )
    sliding_window_pattern: int | None = Field(
        default=None, ge=1, description="Every n-th layer attends globally; none: all windowed."
    )
    type_vocab_size: int = Field(default=0, ge=0, description="Rows of BERT's segment embedding.")
    pooler: bool = Field(default=False, description="A dense layer pools the first token (BERT).")
    relative_attention_buckets: int = Field(
        default=0, ge=0, description="Buckets of T5's relative positions."
    )
    relative_attention_per_layer: bool = Field(
        default=False,
        description="Each layer has a table of relative positions; else the first one has (UMT5).",
    )
    dropout: DropoutSpec = Field(
        default=DropoutSpec(), description="What its config drops in training, by place."
    )
    narrow_softmax: bool = Field(
        default=False,
        description="Attention that keeps its scores leaves their softmax in the compute type in "
        "transformers' modules; else it is computed, and kept, in float32.",
    )
    moe: MoeSpec | None = Field(default=None, description="Experts; none: every layer is dense.")
    mla: MlaSpec | None = Field(default=None, description="Latent attention; none: ordinary heads.")
    tower: TowerSpec | None = Field(
        default=None, description="Vision tower and its projector; none: text alone."
    )
    recurrent: RecurrentSpec | None = Field(
        default=None, description="Recurrent part of layers; none: every layer is attention."
    )
    layer_mixers: tuple[Mixer, ...] = Field(
        default=(),
        description="What mixes the tokens in each layer: attention, recurrent, both (in parallel) "
        "or none; empty: attention in every layer.",
    )
    layer_mlps: tuple[Mlp, ...] = Field(
        default=(),
        description="MLP of each layer: dense, moe or none; empty: as `moe` says.",
    )

    @model_validator(mode="after")
    def _check_layers(self) -> ModelSpec:
        """Lists of layers name every layer, and nothing that the model does not have."""
        for name, listed in (("layer_mixers", self.layer_mixers), ("layer_mlps", self.layer_mlps)):
            if listed and len(listed) != self.layers:
                message = f"`{name}` must name each of the {self.layers} layers (got {len(listed)})"
                raise ValueError(message)
        recurrent = {"recurrent", "both"} & set(self.layer_mixers)
        if bool(recurrent) != (self.recurrent is not None):
            message = "`recurrent` and layers of that kind in `layer_mixers` require each other"
            raise ValueError(message)
        if "moe" in self.layer_mlps and self.moe is None:
            raise ValueError("`layer_mlps` with moe requires `moe`")
        return self

    def mixer(self, layer: int) -> Mixer:
        """What mixes the tokens in a layer, counted from 0."""
        return self.layer_mixers[layer] if self.layer_mixers else "attention"

    def mlp(self, layer: int) -> Mlp:
        """The MLP of a layer, counted from 0."""
        if self.layer_mlps:
            return self.layer_mlps[layer]
        return "moe" if self.is_moe_layer(layer) else "dense"

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the layer, counted from 0, has experts."""
        if self.layer_mlps:
            return self.layer_mlps[layer] == "moe"
        if self.moe is None or layer < self.moe.first_dense_layers:
            return False
        return (layer + 1) % self.moe.layer_step == 0

    @property
    def is_two_halves(self) -> bool:
        """Whether it is an encoder with a decoder behind it."""
        return self.kind == "encoder-decoder"

    @property
    def end_elements(self) -> int:
        """Elements of word embedding and output head; one matrix where they are tied."""
        matrices = 1 if self.tied_embeddings else 2
        return matrices * self.vocab_size * self.embedding_size

    @property
    def depth(self) -> int:
        """Layers that a sample passes: those of both halves."""
        return 2 * self.layers if self.is_two_halves else self.layers

    @property
    def attentions(self) -> float:
        """Attentions of a layer, mean of `depth`: a decoder's layer may also attend to encoded."""
        if self.layer_mixers:
            return self.attention_layers / self.layers
        return 1.5 if self.is_two_halves else 1

    @property
    def recurrences(self) -> float:
        """Recurrent parts of a layer, mean of all layers."""
        return self.recurrent_layers / self.layers

    @property
    def attention_layers(self) -> int:
        """Layers with attention."""
        if not self.layer_mixers:
            return self.layers
        return sum(kind in ("attention", "both") for kind in self.layer_mixers)

    @property
    def recurrent_layers(self) -> int:
        """Layers with a recurrent part."""
        return sum(kind in ("recurrent", "both") for kind in self.layer_mixers)

    @property
    def dense_mlps(self) -> float:
        """Dense MLPs of a layer without experts, mean of such layers."""
        if not self.layer_mlps:
            return 1.0
        others = self.layers - self.moe_layers
        return self.layer_mlps.count("dense") / others if others else 1.0

    @property
    def norms(self) -> float:
        """Normalization layers of a layer, mean of `depth`: each attention has its own."""
        across = self.attentions - 1 if self.is_two_halves else 0
        return self.norms_per_layer + across

    @property
    def moe_layers(self) -> int:
        """Layers with experts: of those after the first dense ones, each `layer_step`-th."""
        if self.layer_mlps:
            return self.layer_mlps.count("moe")
        if self.moe is None:
            return 0
        first, step = index(self.moe.first_dense_layers), index(self.moe.layer_step)
        return max(0, index(self.layers) // step - first // step)
