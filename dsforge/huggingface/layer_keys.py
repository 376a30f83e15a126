"""Config keys of layers that differ: what `layer_kinds.py` reads, written back."""

from __future__ import annotations

from typing import Any

from dsforge.huggingface.architecture import Architecture
from dsforge.huggingface.layer_kinds import EXPAND
from dsforge.specs import Mixer, ModelSpec

Config = dict[str, Any]
CONV = "conv"
LISTED = (*("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lfm2", "lfm2_moe"),)
NAMES: dict[Mixer, str] = {"attention": "full_attention", "recurrent": "linear_attention"}


def written_layers(model: ModelSpec, table: Architecture) -> Config:
    """Keys of the recurrent parts of a model and of the order of its layers."""
    config: Config = {}
    spec = model.recurrent
    for name, keys in table.recurrent_keys.items() if spec is not None else ():
        config[keys[0]] = _value(model, name)
    kind = model.model_type
    if kind in LISTED:
        convolves = kind in ("lfm2", "lfm2_moe")
        config["layer_types"] = _listed(model, CONV if convolves else NAMES["recurrent"])
    if kind == "lfm2":
        config["block_auto_adjust_ff_dim"] = False
    if kind == "granitemoehybrid":
        config |= _granite(model)
    if kind == "bamba":
        mixers = enumerate(model.layer_mixers or ("attention",) * model.layers)
        config["attn_layer_indices"] = [at for at, mixer in mixers if mixer == "attention"]
    if kind == "jamba":
        config |= _jamba(model)
    if kind == "nemotron_h":
        config["layers_block_type"] = [_nemotron(model, layer) for layer in range(model.layers)]
    return config


def _value(model: ModelSpec, name: str) -> Any:
    spec = model.recurrent
    assert spec is not None  # noqa: S101 (the caller asked)
    if name == EXPAND:
        return max(1, spec.width // model.hidden_size)
    return getattr(spec, name)


def _listed(model: ModelSpec, recurrent: str) -> list[str]:
    """A name for each layer."""
    names = {**NAMES, "recurrent": recurrent}
    return [names[model.mixer(layer)] for layer in range(model.layers)]


def _granite(model: ModelSpec) -> Config:
    """Layers, positions, and the MLP that every layer has."""
    config: Config = {"layer_types": _listed(model, NAMES["recurrent"])}
    config["position_embedding_type"] = "rope" if model.position == "rope" else "nope"
    if model.moe is None:
        config |= {"num_local_experts": 0, "shared_intermediate_size": model.ffn_hidden_size}
    return config


def _jamba(model: ModelSpec) -> Config:
    """Periods with offsets; one expert is a dense MLP."""
    attends = [model.mixer(layer) == "attention" for layer in range(model.layers)]
    sparse = [model.is_moe_layer(layer) for layer in range(model.layers)]
    config = {**_period("attn_layer", attends), **_period("expert_layer", sparse)}
    return config if model.moe else config | {"num_experts": 1}


def _period(name: str, found: list[bool]) -> Config:
    """The period and offset of the layers that are true."""
    places = [at for at, is_one in enumerate(found) if is_one]
    period = places[1] - places[0] if len(places) > 1 else len(found)
    return {f"{name}_period": period, f"{name}_offset": places[0] if places else 0}


def _nemotron(model: ModelSpec, layer: int) -> str:
    """A layer of Nemotron-H is an attention, a recurrence or an MLP."""
    mixer, mlp = model.mixer(layer), model.mlp(layer)
    if mixer != "none":
        return NAMES[mixer]
    return "moe" if mlp == "moe" else "mlp"
