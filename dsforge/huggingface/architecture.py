"""What a `model_type` of Hugging Face fixes, spells in its own way, or leaves out: data.

Configs on the hub omit every field that equals the default of its config class, so a reader needs
those defaults; and norms, biases and gating are facts of the modelling code that no config states.
`architectures.json` beside this holds both, one entry for each architecture, and the names of those
that are not modelled: read as Llama-like ones they would get a wrong size. Defaults are taken from
the config classes of transformers by `scripts/architectures.py`, or, for chatglm, baichuan,
internlm2, deepseek and bailing_moe, from the hub's own code. A test compares both, and what is
built of them.

Field names are those of ModelSpec; keys are those of config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field

from dsforge.specs import FROZEN, RouterSpec

Keys = Mapping[str, tuple[str, ...]]
Facts = dict[str, Any]

LLAMA_KEYS: Keys = {
    "layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size",),
    "attention_heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings",),
    "tied_embeddings": ("tie_word_embeddings",),
    "activation": ("hidden_act",),
    "rope_theta": ("rope_theta",),
    "partial_rotary_factor": ("partial_rotary_factor",),
}
MLA_KEYS: Keys = {
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_head_size": ("qk_nope_head_dim",),
    "rope_head_size": ("qk_rope_head_dim",),
    "v_head_size": ("v_head_dim",),
    "index_heads": ("index_n_heads",),
    "index_head_size": ("index_head_dim",),
    "index_top_k": ("index_topk",),
}


def _with_llamas(changed: Any) -> Any:
    """Llama's keys with those that an architecture spells otherwise."""
    return {**LLAMA_KEYS, **changed} if isinstance(changed, Mapping) else changed


# DropoutSpec fields of most architectures; the class's default is 0 unless an entry says otherwise.
DROPOUT_KEYS: Keys = {"attention": ("attention_dropout",)}


class Switch(BaseModel):
    """A boolean config key that changes the shape."""

    model_config = FROZEN

    key: str = Field(description="Key of config.json.")
    default: bool = Field(description="Value where a config leaves the key out.")
    on: Facts = Field(description="Fields of ModelSpec that it sets when it is true.")


class Architecture(BaseModel):
    """How the config of one model_type maps to a ModelSpec.

    Of several keys the first is written and any is read; a dot leads into a nested mapping. A field
    without a key comes from `facts`, or, as all do where the key is absent, from `defaults`.
    """

    model_config = FROZEN

    keys: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_with_llamas)] = Field(
        default=dict(LLAMA_KEYS),
        description="Config keys of each field; the file lists those that differ from Llama.",
    )
    defaults: Facts = Field(description="Fields where a config leaves their keys out.")
    facts: Facts = Field(default={}, description="Fields that the modelling code fixes.")
    switches: tuple[Switch, ...] = Field(default=(), description="Boolean keys, in order.")
    ffn_factor: int | None = Field(
        default=None, description="Width of the MLP in hidden sizes, where no key states it."
    )
    window_switch: bool = Field(
        default=False, description="The window counts only where `use_sliding_window` is true."
    )
    moe_keys: dict[str, tuple[str, ...]] = Field(default={}, description="Keys of MoeSpec fields.")
    moe_defaults: Facts = Field(default={}, description="Defaults of MoeSpec fields.")
    moe_facts: Facts = Field(default={}, description="MoeSpec fields that the code fixes.")
    dropout_keys: dict[str, tuple[str, ...]] = Field(
        default=dict(DROPOUT_KEYS), description="Keys of DropoutSpec fields: places that drop."
    )
    dropout_defaults: dict[str, float] = Field(
        default={}, description="Defaults of DropoutSpec fields that are not 0."
    )
    router: RouterSpec = Field(
        default=RouterSpec(),
        description="Default routing of tokens to experts, unless a key sets it.",
    )
    router_keys: tuple[str, ...] = Field(default=(), description="Keys of the router to write.")
    mla_defaults: Facts = Field(default={}, description="Defaults of MlaSpec fields; empty: none.")
    recurrent_keys: dict[str, tuple[str, ...]] = Field(
        default={}, description="Keys of RecurrentSpec fields."
    )
    recurrent_defaults: Facts = Field(default={}, description="Defaults of RecurrentSpec fields.")
    recurrent_facts: Facts = Field(
        default={}, description="RecurrentSpec fields that the code fixes."
    )
    fixed: Facts = Field(
        default={}, description="Keys that may change the size, with the value that is modelled."
    )
    norm_epsilon: float = Field(default=1e-5, description="Epsilon where no key states it.")
    norm_epsilon_key: str | None = Field(
        default="rms_norm_eps", description="Key of the epsilon; none: the class has none."
    )
    rotary_interleaved: bool = Field(
        default=False, description="Rotary embedding rotates pairs of neighbours."
    )
    no_rope_interval: int | None = Field(
        default=None, description="Default: every n-th layer has no rotary embedding."
    )
    scales: tuple[str, ...] = Field(
        default=(), description="Keys that scale a value even where a config leaves them out."
    )
    code: tuple[str, ...] = Field(
        default=(), description="Properties of the forward pass that the config does not contain."
    )


_DATA: Final[dict[str, Any]] = json.loads(
    files("dsforge.huggingface").joinpath("architectures.json").read_text(encoding="utf-8")
)
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    name: Architecture.model_validate(row) for name, row in _DATA["architectures"].items()
}
# Other model_types with the same modelling code as far as shapes go.
SAME_AS: Final[Mapping[str, str]] = _DATA["same_as"]
# Multimodal configs of which transformers trains the language model alone as a causal one: the
# type of their `text_config` where it does not name it.
TEXT_TYPES: Final[Mapping[str, str]] = _DATA["text_types"]
# Architectures that are not modelled, and why.
UNMODELLED: Final[Mapping[str, str]] = {
    name: why for why, names in _DATA["refused"].items() for name in names
}
LLAMA_LIKE: Final = ARCHITECTURES["llama"].model_copy(
    update={"defaults": {"tied_embeddings": False, "activation": "silu"}, "norm_epsilon": 1e-5}
)
