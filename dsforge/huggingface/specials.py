"""What a table cannot state: keys of one architecture that mean more than one field.

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
DEEPSEEK_V3_EXPERTS = 256
GPTJ_ROTARY = 64


class Special(NamedTuple):
    """Both directions of one architecture."""

    read: Callable[[ConfigValues, Fields], None]
    write: Callable[[ModelSpec, dict[str, Any]], None]


def _read_falcon(values: ConfigValues, fields: Fields) -> None:
    """Key/value heads and norms depend on three flags (`FalconAttention`, `FalconDecoderLayer`)."""
    new = values.boolean("new_decoder_architecture", default=False)
    parallel = values.boolean("parallel_attn", default=True) or new
    one_head = values.boolean("multi_query", default=True) and not new
    one_norm = values.whole("num_ln_in_parallel_attn", 2) == 1 if new else parallel
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
    """`feed_forward_proj` holds gating and activation: `relu`, `gated-gelu`."""
    projection = values.raw(("feed_forward_proj",), "relu")
    if not isinstance(projection, str):
        values.problem("feed_forward_proj", "feed_forward_proj must be text such as gated-gelu")
        return
    fields["gated_mlp"] = projection.startswith("gated-")
    fields["activation"] = projection.removeprefix("gated-")


def _write_t5(model: ModelSpec, config: dict[str, Any]) -> None:
    gate = "gated-" if model.gated_mlp else ""
    config["feed_forward_proj"] = gate + model.activation
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


def _read_mpt(values: ConfigValues, fields: Fields) -> None:
    fields["ffn_hidden_size"] = values.whole("expansion_ratio", 4) * fields["hidden_size"]


def _write_mpt(model: ModelSpec, config: dict[str, Any]) -> None:
    config["expansion_ratio"] = model.ffn_hidden_size // model.hidden_size


def _read_chatglm(values: ConfigValues, fields: Fields) -> None:
    if values.boolean("multi_query_attention", default=False):
        fields["kv_heads"] = values.whole("multi_query_group_num", 1)


def _write_chatglm(model: ModelSpec, config: dict[str, Any]) -> None:
    config["multi_query_attention"] = model.kv_heads < model.attention_heads
    config["multi_query_group_num"] = model.kv_heads


def _read_baichuan(_: ConfigValues, fields: Fields) -> None:
    """The 13B models use ALiBi, the 7B ones rotary embedding; only the width tells them apart."""
    if fields["hidden_size"] >= BAICHUAN_13B_WIDTH:
        fields["position"] = "alibi"


def _write_deepseek_v3(model: ModelSpec, config: dict[str, Any]) -> None:
    """Expert groups: 4 of 8 for DeepSeek-V3, none elsewhere (Kimi K2, small models)."""
    if model.moe is not None:
        grouped = model.moe.experts == DEEPSEEK_V3_EXPERTS
        config |= {"n_group": 8, "topk_group": 4} if grouped else {"n_group": 1, "topk_group": 1}


def _write_dbrx(_: ModelSpec, config: dict[str, Any]) -> None:
    """DBRX clips queries, keys and values at 8; its code fails without a value."""
    config["attn_config"]["clip_qkv"] = 8.0


def _nothing(_: Any, __: Any) -> None:
    """The tables say it all in this direction."""


SPECIALS: Mapping[str, Special] = {
    "dbrx": Special(_nothing, _write_dbrx),
    "falcon": Special(_read_falcon, _write_falcon),
    "t5": Special(_read_t5, _write_t5),
    "gptj": Special(_read_gptj, _write_gptj),
    "gpt_neo": Special(_read_gpt_neo, _write_gpt_neo),
    "mpt": Special(_read_mpt, _write_mpt),
    "chatglm": Special(_read_chatglm, _write_chatglm),
    "baichuan": Special(_read_baichuan, _nothing),
    "deepseek_v3": Special(_nothing, _write_deepseek_v3),
}
