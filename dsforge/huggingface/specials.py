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


class Special(NamedTuple):
    """Reader and writer of one architecture, and the additional keys that it reads."""

    read: Callable[[ConfigValues, Fields], None]
    write: Callable[[ModelSpec, dict[str, Any]], None]
    keys: tuple[str, ...] = ()


GATED_GELU = "gated-gelu"  # T5Config makes gelu_new of it


def _read_falcon(values: ConfigValues, fields: Fields) -> None:
    """Key/value heads and norms depend on three flags (`FalconAttention`, `FalconDecoderLayer`)."""
    new = values.boolean("new_decoder_architecture", default=False)
    parallel = values.boolean("parallel_attn", default=True) or new
    one_head = values.boolean("multi_query", default=True) and not new
    norms = values.whole("num_ln_in_parallel_attn", 2 if new else 1)
    one_norm = norms != TWO_NORMS and values.boolean("parallel_attn", default=True)
    fields["parallel_residual"] = parallel
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


def _read_t5(values: ConfigValues, fields: Fields) -> None:
    """`feed_forward_proj` holds gating and activation: `relu`, `gated-gelu`, which is gelu_new."""
    projection = values.raw(("feed_forward_proj",), "relu")
    if not isinstance(projection, str):
        values.problem("feed_forward_proj", "feed_forward_proj must be text such as gated-gelu")
        return
    fields["gated_mlp"] = projection.startswith("gated-")
    composed = projection == GATED_GELU
    fields["activation"] = "gelu_new" if composed else projection.removeprefix("gated-")


def _write_t5(model: ModelSpec, config: dict[str, Any]) -> None:
    gate = "gated-" if model.gated_mlp else ""
    composed = model.gated_mlp and model.activation == "gelu_new"
    config["feed_forward_proj"] = GATED_GELU if composed else gate + model.activation
    config["num_decoder_layers"] = model.layers


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
    "helium": Special(_read_helium, _nothing),
    "falcon": Special(_read_falcon, _write_falcon),
    "llama4_text": Special(_read_llama4, _nothing, ("moe_layers",)),
    "minimax_m2": Special(_read_minimax_m2, _nothing, ("attn_type_list",)),
    "t5": Special(_read_t5, _write_t5, ("num_decoder_layers",)),
    "gptj": Special(_read_gptj, _write_gptj),
    "gpt_neo": Special(_read_gpt_neo, _write_gpt_neo),
    "chatglm": Special(
        _read_chatglm, _write_chatglm, ("multi_query_attention", "multi_query_group_num")
    ),
    "baichuan": Special(_read_baichuan, _nothing),
}
