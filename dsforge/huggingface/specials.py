"""What data cannot express: keys of one architecture that determine more than one field.

Each entry has both directions side by side: `read` changes the fields that the tables gave,
`write` adds keys to the config. Sources: transformers 5.23, `models/<model_type>/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dsforge.huggingface.values import ConfigValues
from dsforge.specs import ModelSpec

Fields = dict[str, Any]

BAICHUAN_13B_WIDTH = 5120
GPTJ_ROTARY = 64
TWO_NORMS = 2
MINICPM3_VALUES = 64


class Special(NamedTuple):
    """Reader and writer of one architecture, and the additional keys that it reads."""

    read: Callable[[ConfigValues, Fields], None]
    write: Callable[[ModelSpec, dict[str, Any]], None]
    keys: tuple[str, ...] = ()


BAILING_KEYS = (
    *("num_experts", "num_experts_per_tok", "num_shared_experts", "moe_intermediate_size"),
    *("num_key_value_heads", "first_k_dense_replace", "use_bias", "use_qkv_bias"),
)
ROBERTAS = ("camembert", "roberta", "xlm-roberta")
BAILINGS = ("bailing_moe", "bailing_moe_v2")
GATED_GELU = "gated-gelu"  # T5Config makes gelu_new of it


def _read_falcon(values: ConfigValues, fields: Fields) -> None:
    """Key/value heads and norms depend on three flags (`FalconAttention`, `FalconDecoderLayer`)."""
    new = values.boolean("new_decoder_architecture", default=False)
    parallel = values.boolean("parallel_attn", default=True) or new
    one_head = values.boolean("multi_query", default=True) and not new
    norms = values.whole("num_ln_in_parallel_attn", 2 if new else 1)
    one_norm = norms != TWO_NORMS and values.boolean("parallel_attn", default=True)
    fields["parallel_residual"] = parallel
    if parallel:
        fields["dropout"].pop("attention_output")  # both are added and dropped as one
    if fields.get("position") != "alibi":
        fields["dropout"].pop("attention")  # its rotary attention drops nothing
    fields["norms_per_layer"] = 1 if one_norm else 2
    if one_head:
        fields["kv_heads"] = 1


def _write_falcon(model: ModelSpec, config: dict[str, Any]) -> None:
    grouped = 1 < model.kv_heads < model.attention_heads
    new = model.parallel_residual and (model.norms_per_layer > 1 or grouped)
    config |= {
        "new_decoder_architecture": new,
        "parallel_attn": model.parallel_residual,
        "multi_query": not new and model.kv_heads == 1,
    }
    if new:
        config["num_ln_in_parallel_attn"] = model.norms_per_layer


def _read_t5(values: ConfigValues, fields: Fields, usual: str = "relu") -> None:
    """`feed_forward_proj` holds gating and activation: `relu`, `gated-gelu`, which is gelu_new."""
    halves = values.raw(("num_decoder_layers",), None)
    if halves not in (None, fields["layers"]):
        rule = f"num_decoder_layers (={str(halves)[:40]}) must be num_layers (={fields['layers']})"
        values.problem("num_decoder_layers", rule + ": others are not modelled")
    projection = values.raw(("feed_forward_proj",), usual)
    if not isinstance(projection, str):
        values.problem("feed_forward_proj", "feed_forward_proj must be text such as gated-gelu")
        return
    fields["gated_mlp"] = projection.startswith("gated-")
    stated = values.raw(("is_gated_act",), None)
    if isinstance(stated, bool) and stated != fields["gated_mlp"]:
        rule = f"is_gated_act (={stated}) must be what feed_forward_proj (={projection[:40]}) says"
        values.problem("is_gated_act", rule)
    composed = projection == GATED_GELU
    fields["activation"] = "gelu_new" if composed else projection.removeprefix("gated-")


def _write_t5(model: ModelSpec, config: dict[str, Any]) -> None:
    gate = "gated-" if model.gated_mlp else ""
    composed = model.gated_mlp and model.activation == "gelu_new"
    config["feed_forward_proj"] = GATED_GELU if composed else gate + model.activation
    config["num_decoder_layers"] = model.layers


def _read_mt5(values: ConfigValues, fields: Fields) -> None:
    """The same with another default."""
    _read_t5(values, fields, usual=GATED_GELU)


def _read_roberta(values: ConfigValues, fields: Fields) -> None:
    """Positions begin behind the padding token, whose rows of the table no token reads."""
    offset = 1 + values.count("pad_token_id", 1)
    if offset >= fields["max_position_embeddings"]:
        rule = f"max_position_embeddings (={fields['max_position_embeddings']}) must exceed "
        values.problem("max_position_embeddings", rule + f"pad_token_id + 1 (={offset})")
        return
    fields["position_offset"] = offset
    fields["max_position_embeddings"] -= offset


def _write_roberta(model: ModelSpec, config: dict[str, Any]) -> None:
    config["max_position_embeddings"] = model.max_position_embeddings + model.position_offset
    config["pad_token_id"] = model.position_offset - 1


def _write_mlp_kinds(model: ModelSpec, config: dict[str, Any]) -> None:
    """`mlp_layer_types`: the class of transformers reads no number of dense layers."""
    config["mlp_layer_types"] = [
        "sparse" if model.is_moe_layer(layer) else "dense" for layer in range(model.layers)
    ]


def _read_modernbert(values: ConfigValues, fields: Fields) -> None:
    """`local_attention` is the whole window, half of it to each side; layer 0 attends globally."""
    if fields.get("sliding_window") is None:
        return
    fields["sliding_window"] = max(1, fields["sliding_window"] // 2)
    if values.raw(("layer_types",), None) is None:
        every = values.whole("global_attn_every_n_layers", 3)
        fields["sliding_window_pattern"] = every


def _write_modernbert(model: ModelSpec, config: dict[str, Any]) -> None:
    window, every = model.sliding_window, model.sliding_window_pattern or model.layers
    config["local_attention"] = 2 * (window or 1)
    config["layer_types"] = [
        "sliding_attention" if window and layer % every else "full_attention"
        for layer in range(model.layers)
    ]


def _read_bailing(values: ConfigValues, _: Fields) -> None:
    """Two versions of the hub's code share the name with other defaults: sizes must be stated."""
    for key in BAILING_KEYS:
        if values.raw((key,), None) is None:
            values.problem(key, f"{key} is missing")


def _read_minicpm3(values: ConfigValues, fields: Fields) -> None:
    """Without `v_head_dim` the class takes hidden size / heads."""
    each = fields["hidden_size"] // fields["attention_heads"]
    if values.raw(("v_head_dim",), None) is None and each != MINICPM3_VALUES:
        rule = f"v_head_dim is missing; its default is for heads of {MINICPM3_VALUES} (got {each})"
        values.problem("v_head_dim", rule)


def _read_hunyuan_moe(values: ConfigValues, fields: Fields) -> None:
    """One MLP width for the dense layers, the shared expert and the routed ones."""
    widths = values.raw(("moe_intermediate_size",), None)
    width = fields["ffn_hidden_size"]
    for key, value, rule in (
        ("moe_intermediate_size", widths, width),
        ("num_shared_expert", values.raw(("num_shared_expert",), None), 1),
    ):
        each = value if isinstance(value, list) else [value]
        if value is not None and any(one != rule for one in each):
            values.problem(key, f"{key} (={str(value)[:40]}) must be {rule} in every layer")


def _read_gptj(values: ConfigValues, fields: Fields) -> None:
    rotated = values.whole("rotary_dim", min(GPTJ_ROTARY, fields["head_size"]))
    if rotated > fields["head_size"]:
        rule = f"rotary_dim (={rotated}) must not exceed the head size (={fields['head_size']})"
        values.problem("rotary_dim", rule)
    fields["partial_rotary_factor"] = min(1.0, rotated / fields["head_size"])


def _write_gptj(model: ModelSpec, config: dict[str, Any]) -> None:
    config["rotary_dim"] = round(model.head_size * model.partial_rotary_factor)


def _read_gpt_neo(values: ConfigValues, fields: Fields) -> None:
    """`attention_types`: a list of (kinds, repeats); the catalog's models alternate."""
    groups = values.raw(("attention_types",), None) or []
    if not isinstance(groups, list) or not all(isinstance(g, list) and g for g in groups):
        values.problem("attention_types", "attention_types must be a list of [kinds, repeats]")
    elif groups and "local" not in str(groups):
        fields |= {"sliding_window": None, "sliding_window_pattern": None}


def _write_gpt_neo(model: ModelSpec, config: dict[str, Any]) -> None:
    alternating = model.layers % 2 == 0 and model.sliding_window is not None
    groups = [["global", "local"], model.layers // 2] if alternating else [["global"], model.layers]
    config["attention_types"] = [groups]


def _read_chatglm(values: ConfigValues, fields: Fields) -> None:
    if values.boolean("multi_query_attention", default=False):
        fields["kv_heads"] = values.whole("multi_query_group_num", 1)


def _write_chatglm(model: ModelSpec, config: dict[str, Any]) -> None:
    config["multi_query_attention"] = model.kv_heads < model.attention_heads
    config["multi_query_group_num"] = model.kv_heads


def _read_helium(values: ConfigValues, fields: Fields) -> None:
    """Its output projection is square (`HeliumAttention`)."""
    heads, size = fields["attention_heads"], fields["head_size"]
    if heads * size != fields["hidden_size"]:
        rule = f"head_dim (={size}) times num_attention_heads (={heads}) must be the hidden size"
        values.problem("head_dim", rule)


def _read_ernie_moe(values: ConfigValues, fields: Fields) -> None:
    """Layers with experts end where the model does, or are not modelled."""
    last = values.raw(("moe_layer_end_index",), None)
    if last not in (None, -1, fields["layers"] - 1):
        rule = f"moe_layer_end_index (={str(last)[:40]}) must be the last layer: the rest is "
        values.problem("moe_layer_end_index", rule + "not modelled")


def _read_llama4(values: ConfigValues, fields: Fields) -> None:
    """`moe_layers` lists the layers with experts; only every n-th is modelled."""
    step = values.whole("interleave_moe_layer_step", 1)
    listed = values.raw(("moe_layers",), None)
    if listed is not None and listed != list(range(step - 1, fields["layers"], step)):
        rule = f"moe_layers must be every layer that interleave_moe_layer_step (={step}) says"
        values.problem("moe_layers", rule + ": others are not modelled")


def _read_indexed(values: ConfigValues, fields: Fields) -> None:
    """`indexer_types`: layers that share the choice of an earlier one have no indexer (GLM-5)."""
    kinds = values.raw(("indexer_types",), None)
    if kinds is not None and kinds != ["full"] * fields["layers"]:
        rule = "indexer_types must be full in every layer: shared choices are not modelled"
        values.problem("indexer_types", rule)


def _write_bailing(model: ModelSpec, config: dict[str, Any]) -> None:
    """Every size is stated, zeros too."""
    moe = model.moe
    config |= {"num_experts": 0, "num_shared_experts": 0} | config
    config["first_k_dense_replace"] = moe.first_dense_layers if moe else 0


def _read_minimax_m2(values: ConfigValues, _: Fields) -> None:
    """`attn_type_list`: 1 is softmax attention, 0 the linear one of an earlier model."""
    kinds = values.raw(("attn_type_list",), None) or [1]
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        values.problem(
            "attn_type_list", "attn_type_list must hold 1 only: linear attention is not modelled"
        )


def _read_baichuan(_: ConfigValues, fields: Fields) -> None:
    """The 13B models use ALiBi, the 7B ones rotary embedding; only the width tells them apart."""
    if fields["hidden_size"] >= BAICHUAN_13B_WIDTH:
        fields["position"] = "alibi"


def _write_dbrx(_: ModelSpec, config: dict[str, Any]) -> None:
    """DBRX clips queries, keys and values at 8; its code fails without a value."""
    config["attn_config"]["clip_qkv"] = 8.0


def _nothing(_: Any, __: Any) -> None:
    """Nothing to do: the entry in `architectures.json` covers this direction."""


SPECIALS: Mapping[str, Special] = {
    "dbrx": Special(_nothing, _write_dbrx),
    "ernie4_5_moe": Special(_read_ernie_moe, _nothing, ("moe_layer_end_index",)),
    **dict.fromkeys(BAILINGS, Special(_read_bailing, _write_bailing)),
    "deepseek_v32": Special(_nothing, _write_mlp_kinds),
    "glm_moe_dsa": Special(_read_indexed, _write_mlp_kinds),
    "helium": Special(_read_helium, _nothing),
    "falcon": Special(_read_falcon, _write_falcon),
    "llama4_text": Special(_read_llama4, _nothing, ("moe_layers",)),
    "minimax_m2": Special(_read_minimax_m2, _nothing, ("attn_type_list",)),
    **dict.fromkeys(ROBERTAS, Special(_read_roberta, _write_roberta)),
    "modernbert": Special(_read_modernbert, _write_modernbert, ("global_attn_every_n_layers",)),
    "glm4_moe_lite": Special(_nothing, _write_mlp_kinds),
    "minicpm3": Special(_read_minicpm3, _nothing),
    "hunyuan_v1_moe": Special(
        _read_hunyuan_moe, _nothing, ("moe_intermediate_size", "num_shared_expert")
    ),
    "t5": Special(_read_t5, _write_t5, ("num_decoder_layers",)),
    "mt5": Special(_read_mt5, _write_t5, ("num_decoder_layers",)),
    "umt5": Special(_read_mt5, _write_t5, ("num_decoder_layers",)),
    "gptj": Special(_read_gptj, _write_gptj),
    "gpt_neo": Special(_read_gpt_neo, _write_gpt_neo),
    "chatglm": Special(
        _read_chatglm, _write_chatglm, ("multi_query_attention", "multi_query_group_num")
    ),
    "baichuan": Special(_read_baichuan, _nothing),
}
