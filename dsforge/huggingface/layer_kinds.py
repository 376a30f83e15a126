"""Layers of more than one kind: which of them attend, which are recurrent, and of what sizes.

Each architecture states the order in its own way: a list, a period with an offset, or a pattern of
letters. Sources: transformers 5.23, `models/<model_type>/configuration_*.py`, whose defaults are in
`architectures.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

from dsforge.huggingface.architecture import Architecture
from dsforge.huggingface.values import LARGEST, ConfigValues
from dsforge.plan import Reason
from dsforge.specs import Mixer, Mlp

Fields = dict[str, Any]
Layers = list[str]

FLAGS = ("conv_bias", "in_bias", "out_bias")
EXPAND = "expand"
AUTO = "auto"
STEP_SHARE = 16  # hidden size of one element of the time step's rank
# Packages with the kernels that transformers computes them with.
KERNELS: Final = {
    **dict.fromkeys(("mamba", "mamba2"), "mamba-ssm and causal-conv1d"),
    "gated_delta": "flash-linear-attention and causal-conv1d",
    "short_conv": "",
}
# What configs call layers, and what mixes their tokens.
ATTENDS, RECURS = ("full_attention", "attention"), ("linear_attention", "mamba", "conv")
MIXERS: Final[Mapping[str, Mixer]] = {
    **dict.fromkeys(ATTENDS, "attention"),
    **dict.fromkeys(RECURS, "recurrent"),
    "hybrid": "both",
    "mlp": "none",
    "moe": "none",
}
LETTERS: Final = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}  # Nemotron-H
NO_MLP = ("mamba", "mamba2", "falcon_mamba")
SHORT_EXPERTS = 2  # fewer than these are a dense MLP (Jamba)


class Order(NamedTuple):
    """How the config of an architecture lists its layers, and the keys that do."""

    listed: Callable[[ConfigValues, Fields], Layers | None]
    keys: tuple[str, ...] = ()


def read_layers(kind: str, values: ConfigValues, table: Architecture, fields: Fields) -> None:
    """Set the fields of layers that differ; problems go to `values`."""
    order = ORDERS[kind].listed(values, fields)
    if kind in WIDTHS:
        WIDTHS[kind](values, fields)
    if order is None or values.problems:
        return
    unknown = sorted({name for name in order if name not in MIXERS})
    if unknown or len(order) != fields["layers"] or len(order) > LARGEST["layers"]:
        most = min(fields["layers"], LARGEST["layers"])
        message = f"layer_types must name each of {most:,} layers (got {len(order):,})"
        if unknown:
            message = f"layers of type {unknown[0][:40]} are not modelled"
        values.problem("layer_types", message)
        return
    mixers = tuple(MIXERS[name] for name in order)
    recurs = {"recurrent", "both"} & set(mixers)
    fields["layer_mixers"] = mixers
    fields["layer_mlps"] = _mlps(kind, order, values, fields)
    if recurs:
        fields["recurrent"] = _recurrent(values, table, fields)
    elif set(mixers) == {"attention"}:
        fields["layer_mixers"] = ()
    if "attention" not in mixers and "both" not in mixers:
        fields |= dict.fromkeys(("attention_heads", "kv_heads", "head_size"), 0)
    if kind in NO_MLP:
        fields["ffn_hidden_size"] = 0


def _mlps(kind: str, order: Layers, values: ConfigValues, fields: Fields) -> tuple[Mlp, ...]:
    """The MLP of each layer where `moe` alone does not say it."""
    if kind in NO_MLP:
        none: tuple[Mlp, ...] = ("none",)
        return none * len(order)
    if kind == "nemotron_h":
        known: dict[str, Mlp] = {"mlp": "dense", "moe": "moe"}
        found = tuple(known.get(name, "none") for name in order)
        if "moe" not in found:
            fields["moe"] = None
        return found
    if kind == "jamba":
        sparse = _every(values, "expert_layer", len(order), (2, 1))
        if (fields["moe"] or {}).get("experts", 0) < SHORT_EXPERTS:
            fields["moe"] = None
        if sparse is None or fields["moe"] is None:
            return ()
        which: tuple[Mlp, Mlp] = ("dense", "moe")
        return tuple(which[is_sparse] for is_sparse in sparse)
    return ()


def _recurrent(values: ConfigValues, table: Architecture, fields: Fields) -> Fields:
    """Fields of RecurrentSpec."""
    found: Fields = dict(table.recurrent_facts)
    for name, keys in table.recurrent_keys.items():
        default = table.recurrent_defaults.get(name)
        if name in FLAGS:
            found[name] = any(
                values.boolean(key, default=bool(default) and key == keys[0]) for key in keys
            )
        elif values.raw(keys, default) != AUTO:
            stated = values.checked(name, keys, default)
            found[name] = default if stated is None else stated  # null means the default
    found = {name: value for name, value in found.items() if value is not None}
    hidden = fields["hidden_size"]
    inner = found.pop("width", None) or found.pop(EXPAND, 0) * hidden
    found.pop(EXPAND, None)
    _derive_heads(found, table, fields)
    if "time_step_rank" in table.recurrent_keys:
        found.setdefault("time_step_rank", ceil(hidden / STEP_SHARE))
    heads = found.setdefault("heads", 1)
    if inner:
        each = found.setdefault("head_size", inner // heads)
        if each * heads != inner:
            rule = f"{heads} heads of {each} must be the {inner} values of the recurrent part"
            values.problem(table.recurrent_keys["heads"][0], rule)
    if heads % found.get("groups", 1):
        rule = f"{found['groups']} groups must divide the {heads} heads of the recurrent part"
        values.problem(table.recurrent_keys["groups"][0], rule)
    return found


def _derive_heads(found: Fields, table: Architecture, fields: Fields) -> None:
    """Heads of linear attention where neither config nor class states them (OLMo Hybrid)."""
    if table.recurrent_facts["kind"] != "gated_delta":
        return
    groups = found.setdefault("groups", fields["attention_heads"])
    found.setdefault("heads", fields["attention_heads"])
    keys = found.setdefault("state_size", max(1, int(0.75 * fields["hidden_size"] / groups)))
    found.setdefault("head_size", 2 * keys)


def _every(
    values: ConfigValues, name: str, layers: int, usual: tuple[int, int]
) -> list[bool] | None:
    """Which layers are those of a period with an offset (Jamba); none where they do not fit."""
    period = values.whole(f"{name}_period", usual[0])
    key = f"{name}_offset"
    offset = values.raw((key,), usual[1])
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < period:
        values.problem(key, f"{key} (={str(offset)[:40]}) must be below {name}_period (={period})")
        return None
    return [layer % period == offset for layer in range(layers)]


def _jamba(values: ConfigValues, fields: Fields) -> Layers | None:
    """`attn_layer_period` and `attn_layer_offset`."""
    attends = _every(values, "attn_layer", fields["layers"], (8, 4))
    return None if attends is None else ["attention" if a else "mamba" for a in attends]


def _names(values: ConfigValues, keys: tuple[str, ...]) -> Layers | None:
    """A list of names under one of the keys; none where there is no list."""
    found = values.raw(keys, None)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        values.problem(keys[0], f"{keys[0]} must be a list of names of layers")
        return None
    return found


def _interval(values: ConfigValues, fields: Fields) -> Layers | None:
    """`layer_types`, or attention in every n-th layer (Qwen3-Next, OLMo Hybrid)."""
    listed = _names(values, ("layer_types",))
    if listed is not None or values.problems:
        return listed
    every = values.whole("full_attention_interval", 4)
    return [RECURS[0] if (i + 1) % every else ATTENDS[0] for i in range(fields["layers"])]


def _listed(values: ConfigValues, fields: Fields) -> Layers | None:
    """`layer_types`, or recurrent layers alone (Granite 4)."""
    listed = _names(values, ("layer_types", "layers_block_type"))
    if listed is not None or values.problems:
        return listed
    return [RECURS[0]] * fields["layers"]


def _listed_alone(values: ConfigValues, _: Fields) -> Layers | None:
    """`layer_types`, which has no default (LFM2 with experts)."""
    listed = _names(values, ("layer_types",))
    if listed is None and not values.problems:
        values.problem("layer_types", "layer_types is missing")
    return listed


def _indices(values: ConfigValues, fields: Fields) -> Layers | None:
    """`attn_layer_indices` (Bamba)."""
    return _at_indices(values, fields, "attn_layer_indices", usual=[])


def _lfm2(values: ConfigValues, fields: Fields) -> Layers | None:
    """`layer_types`, or `full_attn_idxs`; without any every layer attends (LFM2)."""
    listed = _names(values, ("layer_types",))
    if listed is not None or values.problems:
        return listed
    return _at_indices(values, fields, "full_attn_idxs", usual=list(range(fields["layers"])))


def _at_indices(values: ConfigValues, fields: Fields, key: str, usual: list[int]) -> Layers | None:
    """Attention in the listed layers, recurrence in the others."""
    found = values.raw((key,), None)
    found = usual if found is None else found
    if not isinstance(found, list) or not all(isinstance(index, int) for index in found):
        values.problem(key, f"{key} must be a list of numbers of layers")
        return None
    return [ATTENDS[0] if i in found else RECURS[0] for i in range(fields["layers"])]


def _nemotron_h(values: ConfigValues, fields: Fields) -> Layers | None:
    """`layers_block_type`, or letters; their number is that of the layers (Nemotron-H)."""
    listed = _names(values, ("layers_block_type", "layer_types"))
    pattern = values.raw(("hybrid_override_pattern",), None)
    if listed is None and isinstance(pattern, str) and not values.problems:
        listed = [LETTERS.get(letter, letter) for letter in pattern]
    if listed is None and not values.problems:
        listed = ["linear_attention", "moe", "full_attention", "mlp"]  # the class's default
    fields["layers"] = max(1, len(listed or ()))
    return listed


def _lfm2_width(values: ConfigValues, fields: Fields) -> None:
    """Two thirds of the stated width, scaled and rounded up (`Lfm2MLP`)."""
    if not values.boolean("block_auto_adjust_ff_dim", default=True):
        return
    width = int(2 * fields["ffn_hidden_size"] / 3)
    if values.raw(("block_ffn_dim_multiplier",), 1.0) is not None:
        width = int(values.positive(("block_ffn_dim_multiplier",), 1.0) * width)
        multiple = values.whole("block_multiple_of", 256)
        width = -(-width // multiple) * multiple
    fields["ffn_hidden_size"] = max(1, width)


def _granite(values: ConfigValues, fields: Fields) -> None:
    """Without experts the shared MLP is the only one; positions are rotary where it says so."""
    if fields["moe"] is None:
        fields["ffn_hidden_size"] = values.whole("shared_intermediate_size", 1024)
    if values.raw(("position_embedding_type",), None) == "rope":
        fields["position"] = "rope"


def _only(name: str) -> Callable[[ConfigValues, Fields], Layers | None]:
    """Every layer is of one kind."""
    return lambda _, fields: [name] * fields["layers"]


OF_MAMBA: Final = ("intermediate_size", "layer_types", "time_step_rank", "rms_norm")
ORDERS: Final[Mapping[str, Order]] = {
    "bamba": Order(_indices, ("attn_layer_indices", "layers_block_type")),
    "falcon_h1": Order(_only("hybrid"), ("layers_block_type",)),
    "falcon_mamba": Order(_only("mamba"), OF_MAMBA),
    "granitemoehybrid": Order(_listed, ("layer_types", "layers_block_type")),
    "jamba": Order(
        _jamba,
        (
            *("attn_layer_period", "attn_layer_offset", "expert_layer_period"),
            *("expert_layer_offset", "layers_block_type", "layers_num_experts"),
        ),
    ),
    "lfm2": Order(
        _lfm2,
        (
            *("full_attn_idxs", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier"),
            *("block_multiple_of", "block_dim", "conv_dim", "conv_dim_out", "block_use_swiglu"),
            *("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init"),
            *("conv_use_xavier_init", "use_pos_enc"),
        ),
    ),
    "lfm2_moe": Order(_listed_alone, ("use_expert_bias",)),
    "mamba": Order(_only("mamba"), OF_MAMBA),
    "mamba2": Order(_only("mamba"), OF_MAMBA),
    "nemotron_h": Order(
        _nemotron_h,
        (
            *("layers_block_type", "hybrid_override_pattern", "mtp_layers_block_type"),
            *("n_shared_experts", "expand", "mamba_expand", "mtp_hybrid_override_pattern"),
        ),
    ),
    "olmo_hybrid": Order(_interval, ("full_attention_interval",)),
    "qwen3_next": Order(_interval, ("full_attention_interval",)),
    "qwen3_5_text": Order(_interval, ("full_attention_interval",)),
    "qwen3_5_moe_text": Order(_interval, ("full_attention_interval",)),
}
WIDTHS: Final[Mapping[str, Callable[[ConfigValues, Fields], None]]] = {
    "granitemoehybrid": _granite,
    "lfm2": _lfm2_width,
}
# Keys that the config classes compute, or that change no size.
IDLE: Final = (
    *("num_logits_to_keep", "use_mamba_kernels", "use_mambapy"),
    *("mamba_norm_before_gate", "ssm_multipliers", "mamba_ssm_cache_dtype", "time_step_limit"),
    *("moe_shared_expert_overlap", "mamba_hidden_act", "ssm_in_multiplier", "ssm_out_multiplier"),
)


def recurrent_reason(fields: Fields) -> list[Reason]:
    """What the prices of recurrent layers assume; empty where there are none."""
    if "recurrent" not in fields:
        return []
    kind = fields["recurrent"]["kind"]
    mixers = fields["layer_mixers"]
    found = sum(mixer in ("recurrent", "both") for mixer in mixers)
    message = f"{found} of {len(mixers)} layers are recurrent ({kind}): priced by formula, not by "
    message += "measurement"
    if KERNELS[kind]:
        message += (
            f", with the kernels of {KERNELS[kind]}; without them they need several times as "
        )
        message += "much"
    return [Reason(rule="model-recurrent", message=message)]


def keys_of_layers(kind: str) -> tuple[str, ...]:
    """Keys that an architecture with layers of several kinds reads, or that change nothing."""
    return (*ORDERS[kind].keys, *IDLE) if kind in ORDERS else ()
