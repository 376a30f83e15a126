"""Settings of the forward pass that are no sizes: norm epsilon, rotary scaling, routing, scales.

No parameter count depends on it, but another engine that leaves it out trains another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsforge.huggingface.architecture import Architecture
from dsforge.huggingface.values import ConfigValues
from dsforge.specs import ModelSpec

EPSILON_KEYS: Final = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "layernorm_epsilon",
)
# longrope has a factor for each frequency, which a ModelSpec does not hold: it is not written.
ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": (
        *("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    ),
    "yarn": (
        *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale"),
        "mscale_all_dim",
    ),
}
# Keys that scale or clip a value, and what each is without an effect.
SCALES: Mapping[str, object] = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"), None),
    "logit_scale": None,
    "scale_emb": 1,
    "scale_depth": 1,
    "apply_residual_connection_post_layernorm": False,
    "scale_attn_by_inverse_layer_idx": False,
    "attn_config.clip_qkv": None,
}


def forward_fields(
    values: ConfigValues, table: Architecture, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """ModelSpec fields that tensor shapes do not determine; problems go to `values`."""
    return {
        "norm_epsilon": values.positive(EPSILON_KEYS, table.norm_epsilon),
        "rope_scaling": _rope_scaling(values),
        "rotary_interleaved": table.rotary_interleaved,
        "no_rope_interval": _no_rope(values, table, fields),
        "forward_extras": (*table.code, *_scales(values, table, fields)),
    }


def router_fields(values: ConfigValues, table: Architecture) -> dict[str, Any]:
    """Fields of RouterSpec."""
    usual = table.router
    groups = values.whole("n_group", usual.groups)
    chosen = values.whole("topk_group", usual.groups_per_token)
    sigmoid = usual.score == "sigmoid"
    return {
        "score": usual.score,
        "normalized": sigmoid or values.boolean("norm_topk_prob", default=usual.normalized),
        "balance_bias": usual.balance_bias,
        "scaling_factor": values.positive(("routed_scaling_factor",), usual.scaling_factor),
        "groups": groups,
        "groups_per_token": min(groups, chosen),
    }


def written_forward(model: ModelSpec, table: Architecture) -> dict[str, Any]:
    """Config keys of the settings that tensor shapes do not determine."""
    key = table.norm_epsilon_key
    config: dict[str, Any] = {} if key is None else {key: model.norm_epsilon}
    if model.rope_scaling is not None and model.rope_scaling.kind in ROPE_KEYS:
        stretched = model.rope_scaling.model_dump()
        own = ROPE_KEYS[model.rope_scaling.kind]
        config["rope_scaling"] = {name: stretched[name] for name in own}
        config["rope_scaling"]["rope_type"] = model.rope_scaling.kind
    if model.moe is not None and table.router_keys:
        router = model.moe.router
        stated = {
            "norm_topk_prob": router.normalized,
            "routed_scaling_factor": router.scaling_factor,
            "n_group": router.groups,
            "topk_group": router.groups_per_token,
        }
        config |= {name: stated[name] for name in table.router_keys}
    return config


def _rope_scaling(values: ConfigValues) -> dict[str, Any] | None:
    """Fields of RopeScaling; None if frequencies are not scaled."""
    found = values.raw(("rope_scaling",), None) or values.raw(("rope_parameters",), None)
    if not isinstance(found, Mapping):
        return None
    found = found.get("full_attention", found)
    kind = (
        found.get("rope_type", found.get("type", "default")) if isinstance(found, Mapping) else None
    )
    if not isinstance(kind, str) or kind in ("default", "su_default"):
        return None
    inner = ConfigValues(found)
    read = {
        "kind": kind[:40],
        "factor": inner.positive(("factor",), 1.0),
        "original_max_position_embeddings": inner.whole("original_max_position_embeddings", 8192),
        "low_freq_factor": inner.positive(("low_freq_factor",), 1.0),
        "high_freq_factor": inner.positive(("high_freq_factor",), 4.0),
        "beta_fast": inner.positive(("beta_fast",), 32.0),
        "beta_slow": inner.positive(("beta_slow",), 1.0),
        "mscale": inner.positive(("mscale",), 1.0),
        "mscale_all_dim": inner.positive(("mscale_all_dim",), 0.0),
    }
    values.problems += inner.problems
    return read


def _no_rope(values: ConfigValues, table: Architecture, fields: Mapping[str, Any]) -> int | None:
    """Every n-th layer without rotary embedding; any other pattern is a problem."""
    if table.no_rope_interval is None:
        return None
    interval = values.whole("no_rope_layer_interval", table.no_rope_interval)
    listed = values.raw(("no_rope_layers",), None)
    if not listed:
        return interval
    if isinstance(listed, list) and all(kind == 1 for kind in listed):
        return None
    layers = range(1, fields.get("layers", 0) + 1)
    if listed != [int(layer % interval != 0) for layer in layers]:
        values.problem("no_rope_layers", "no_rope_layers must leave out every n-th layer")
    return interval


def _scales(values: ConfigValues, table: Architecture, fields: Mapping[str, Any]) -> Iterator[str]:
    """Scales and clips that have an effect."""
    for key, none in SCALES.items():
        stated = values.raw((key,), none)
        if stated not in (none, None):
            yield f"{key} (={str(stated)[:20]})"
        elif key in table.scales and values.raw((key,), none) is none:
            yield key
    scalar = values.raw(("query_pre_attn_scalar", "attention_multiplier"), None)
    head = fields.get("head_size")
    usual = (None, head, head and head**-0.5)
    if scalar not in usual:
        yield f"attention scaled by {str(scalar)[:20]}"
