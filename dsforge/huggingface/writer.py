"""Write a ModelSpec as a Hugging Face config, to train a catalog model from scratch."""

from __future__ import annotations

from typing import Any

from dsforge.errors import Problem, SpecError
from dsforge.huggingface.architecture import ARCHITECTURES, MLA_KEYS, Architecture
from dsforge.huggingface.forward import written_forward
from dsforge.huggingface.layer_keys import written_layers
from dsforge.huggingface.specials import SPECIALS
from dsforge.specs import ModelSpec


def config_from_model(model: ModelSpec) -> dict[str, Any]:
    """The config.json of a model, `model_type` included.

    Raises SpecError for a model that transformers has no architecture for.
    """
    table = ARCHITECTURES.get(model.model_type or "")
    if table is None:
        message = f"{model.name} (model_type={model.model_type}) has no transformers architecture"
        hint = "it can be planned, but not built: choose another model to train"
        raise SpecError((Problem("model-no-architecture", message, hint),))
    config: dict[str, Any] = {"model_type": model.model_type}
    for name, value in _values(model, table).items():
        keys = table.keys.get(name) or table.moe_keys.get(name) or MLA_KEYS.get(name)
        if keys:
            _put(config, keys[0], value)
    _put_dropouts(config, model, table)
    for switch in table.switches:
        config[switch.key] = all(getattr(model, name) == on for name, on in switch.on.items())
    if not model.is_two_halves:
        config["pad_token_id"] = (
            None  # the tokenizer's; class defaults lie outside small vocabularies
        )
    config |= written_forward(model, table)
    if table.window_switch:
        config["use_sliding_window"] = model.sliding_window is not None
    config |= written_layers(model, table)
    special = SPECIALS.get(model.model_type or "")
    if special is not None:
        special.write(model, config)
    return config


def _put_dropouts(config: dict[str, Any], model: ModelSpec, table: Architecture) -> None:
    """Set the probabilities of dropout that are not those of the config class."""
    for place, keys in table.dropout_keys.items():
        rate = getattr(model.dropout, place)
        if rate != table.dropout_defaults.get(place, 0.0):
            _put(config, keys[0], rate)


def _values(model: ModelSpec, table: Architecture) -> dict[str, Any]:
    """Every field of the model that may have a key, those of experts and latents included."""
    values = {name: getattr(model, name) for name in table.keys}
    values = {name: value for name, value in values.items() if name not in PARTS or value}
    if model.position != "rope":
        values = {name: value for name, value in values.items() if name not in _ROTARY}
    if model.moe is not None:
        values |= model.moe.model_dump(exclude={"router"})
        shared, each = model.moe.shared_ffn_hidden_size, model.moe.expert_ffn_hidden_size
        values["shared_experts"] = shared // each
    if model.mla is not None:
        values |= {k: v for k, v in model.mla.model_dump().items() if v or k == "q_rank"}
    return values


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a key; a dot leads into a nested mapping."""
    *path, last = key.split(".")
    for part in path:
        config = config.setdefault(part, {})
    config[last] = value


PARTS = ("attention_heads", "kv_heads", "head_size", "ffn_hidden_size")  # 0: there is none
_ROTARY = ("rope_theta", "partial_rotary_factor")
