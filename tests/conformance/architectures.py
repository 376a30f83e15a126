"""Random configs of every architecture of transformers, and what it builds of them."""

from __future__ import annotations

import copy
import os
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from dsforge.errors import SpecError
from dsforge.estimate.params import parameters
from dsforge.huggingface import read_config
from dsforge.huggingface.architecture import ARCHITECTURES, SAME_AS

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

Config = dict[str, Any]
BUILT_AS = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModel",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
# What the class needs beside its defaults, which do not build, or build slowly.
NEEDED: Mapping[str, Config] = {
    "dbrx": {
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 8, "rope_theta": 10000.0},
        "rope_parameters": ROPE,
    },
    "deepseek_v2": {"num_experts_per_tok": 6, "num_hidden_layers": 6},
    "deepseek_v3": {"num_hidden_layers": 6},
    "dots1": {
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 4,
    },
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {
        "head_dim": 128,
        "num_key_value_heads": 8,
        "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
    },
}
# Transformers ties the head of every T5 that it builds; released v1.1 checkpoints are untied.
FORCED = {BUILT_AS["encoder-decoder"]: ("tie_word_embeddings",)}
# Without an effect on sizes, or checked by other tests.
SKIPPED = ("dtype", "id2label", "label2id", "rope_parameters", "architectures", "is_decoder")


def causal_types() -> list[str]:
    """Every `model_type` that transformers has a causal language model for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def auto_class(model_type: str) -> str:
    """What builds a type: an encoder is counted without the head of a task."""
    table = ARCHITECTURES.get(SAME_AS.get(model_type, model_type))
    return BUILT_AS[table.facts.get("kind", "decoder") if table else "decoder"]


def modelled_types() -> list[str]:
    """Encoders and encoder-decoders that are modelled."""
    return [kind for kind in ARCHITECTURES if auto_class(kind) != BUILT_AS["decoder"]]


def base(model_type: str) -> Config:
    """The smallest config of a type that builds."""
    return {"model_type": model_type, **copy.deepcopy(dict(NEEDED.get(model_type, {})))}


def built(config: Config) -> tuple[Config, int] | None:
    """The whole config and the parameters that transformers builds of it; none where it fails."""
    import torch
    import transformers

    rest = copy.deepcopy(config)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            kind = rest.pop("model_type")
            theirs = transformers.AutoConfig.for_model(kind, **rest)
            model = getattr(transformers, auto_class(kind)).from_config(theirs)
    except Exception:
        return None
    return theirs.to_dict(), sum(parameter.numel() for parameter in model.parameters())


def counted(config: Config) -> int | None:
    """The parameters that we count; none where the config is refused, by SpecError alone."""
    try:
        model, _ = read_config(config, "drawn")
    except SpecError:
        return None
    return parameters(model)


def drawn(whole: Config, start: Config, draw: random.Random) -> Config:
    """A config with one to three keys changed."""
    changed = copy.deepcopy(start)
    own = FORCED.get(auto_class(start["model_type"]), ())
    places = [place for place in _places(whole) if _values(place[-1], _at(whole, place))]
    places = [place for place in places if place[-1] not in own]
    for place in draw.sample(places, min(len(places), draw.randint(1, 3))):
        inner = changed
        for key in place[:-1]:
            inner = inner.setdefault(key, {})
        inner[place[-1]] = draw.choice(_values(place[-1], _at(whole, place)))
    return changed


def _places(config: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        if key in SKIPPED or key.startswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from _places(value, (*path, key))
        else:
            yield (*path, key)


def _at(config: Config, place: tuple[str, ...]) -> Any:
    for key in place:
        config = config[key]
    return config


def _values(key: str, value: Any) -> list[Any]:
    """Other values of the same kind; none where there is nothing to try."""
    if key.endswith(("_id", "token_index", "dtype")):
        return []
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, max(1, value // 2), value + 1, 1]
    if value is None:
        return [True, 2, 64]
    whole = isinstance(value, list) and all(isinstance(item, int) for item in value)
    return [[0], [1], []] if whole else []
