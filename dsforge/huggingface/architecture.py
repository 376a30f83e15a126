"""What a `model_type` of Hugging Face fixes, spells in its own way, or leaves out.

Configs on the hub omit every field that equals the default of its config class, so a reader needs
those defaults; and norms, biases and gating are facts of the modelling code that no config states.
Both are data, one entry per architecture in the tables beside this module, read in transformers
5.23 (`models/*/configuration_*.py` and `modeling_*.py`), or in the hub's own code for chatglm,
baichuan, internlm2 and deepseek.
Field names are those of ModelSpec; keys are those of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Facts = Mapping[str, object]
Keys = Mapping[str, tuple[str, ...]]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Switch(NamedTuple):
    """A boolean config key, its default, and the fields that it sets when it is true."""

    key: str
    default: bool
    on: Facts


class Architecture(NamedTuple):
    """How the config of one model_type maps to a ModelSpec.

    Of several keys the first is written and any is read; a dot leads into a nested mapping. A field
    without a key comes from `facts` (fixed) or, as all do where the key is absent, `defaults`.
    """

    keys: Keys
    defaults: Facts
    facts: Facts = NOTHING
    switches: tuple[Switch, ...] = ()
    ffn_factor: int | None = None  # width of the MLP in hidden sizes, where the config has none
    moe: Keys = NOTHING
    moe_defaults: Facts = NOTHING
    moe_facts: Facts = NOTHING
    mla_defaults: Facts = NOTHING
    window_switch: bool = False  # the window counts only where `use_sliding_window` is true
    fixed: Facts = NOTHING  # keys that may change the size, with the one value that is modelled


def keys_with(**changed: str | tuple[str, ...] | None) -> Keys:
    """Llama's keys with some changed; none: the architecture has no such key."""
    same: dict[str, tuple[str, ...]] = {name: (key,) for name, key in _LLAMA_KEYS.items()}
    for name, key in changed.items():
        same[name] = () if key is None else (key,) if isinstance(key, str) else key
    return same


def sizes(
    hidden: int,
    layers: int,
    heads: int,
    *,
    ffn: int | None,
    vocab: int,
    positions: int,
    **others: object,
) -> Facts:
    """Default sizes of a config class."""
    return {
        "hidden_size": hidden,
        "layers": layers,
        "attention_heads": heads,
        "ffn_hidden_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tied_embeddings": False,
        "activation": "silu",
        **others,
    }


_LLAMA_KEYS = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "attention_heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
    "activation": "hidden_act",
    "rope_theta": "rope_theta",
    "partial_rotary_factor": "partial_rotary_factor",
}
MHA: dict[str, None] = {"kv_heads": None, "head_size": None}
NO_ROPE: dict[str, None] = {"rope_theta": None, "partial_rotary_factor": None}
WINDOWED = keys_with(sliding_window="sliding_window")
GATED = {"gated_mlp": True, "norm": "rmsnorm", "position": "rope"}
PLAIN = {"gated_mlp": False, "norm": "layernorm", "position": "rope"}
ALL_BIASES = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}

ATTENTION_BIASES = {"qkv_bias": True, "attention_out_bias": True}
ATTENTION_BIAS = Switch("attention_bias", default=False, on=ATTENTION_BIASES)
MLP_BIAS = Switch("mlp_bias", default=False, on={"mlp_bias": True})

MLA_KEYS: Keys = {
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_head_size": ("qk_nope_head_dim",),
    "rope_head_size": ("qk_rope_head_dim",),
    "v_head_size": ("v_head_dim",),
}
LLAMA = Architecture(
    keys=keys_with(),
    defaults=sizes(4096, 32, 32, ffn=11008, vocab=32000, positions=2048),
    facts=GATED,
    switches=(ATTENTION_BIAS, MLP_BIAS),
)
