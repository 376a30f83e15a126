"""What a config says of the forward pass beside its sizes: norms, rotary scaling, routing, scales.

No parameter count depends on it, but another engine that leaves it out trains another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsforge.huggingface.values import ConfigValues
from dsforge.specs import ModelSpec

EPSILON_KEYS: Final = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "layernorm_epsilon",
)
# Defaults of the config classes, where they are not 1e-5.
EPSILON: Mapping[str, float] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), 1e-6),
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3_text", "vaultgemma", "granite", "granitemoe"), 1e-6
    ),
    **dict.fromkeys(("deepseek", "deepseek_v2", "deepseek_v3", "smollm3", "dots1"), 1e-6),
    **dict.fromkeys(("granitemoeshared", "minimax_m2", "ministral", "seed_oss", "baichuan"), 1e-6),
    **dict.fromkeys(("flex_olmo", "internlm2", "t5"), 1e-6),
    **dict.fromkeys(("glm", "glm4"), 1.5625e-7),
    "helium": 1e-8,
    "bert": 1e-12,
}
# Where the key of the config class is another one, and where there is none.
EPSILON_KEY: Mapping[str, str] = {
    **dict.fromkeys(
        ("gpt2", "gptj", "gpt_bigcode", "gpt_neo", "bloom", "falcon", "mpt", "t5"),
        "layer_norm_epsilon",
    ),
    **dict.fromkeys(
        ("gpt_neox", "phi", "stablelm", "cohere", "cohere2", "bert", "jais2"), "layer_norm_eps"
    ),
    "starcoder2": "norm_epsilon",
    "nemotron": "norm_eps",
    "chatglm": "layernorm_epsilon",
}
NO_EPSILON: Final = ("opt", "dbrx", "olmo")
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
_GROUPED = ("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group")
ROUTER_KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe", "dots1"), _GROUPED),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo"), ("norm_topk_prob",)),
    "deepseek": ("norm_topk_prob", "routed_scaling_factor"),
}
INTERLEAVED: Final = ("glm", "glm4", "chatglm", "cohere", "cohere2", "ernie4_5", "helium", "gptj")
INTERLEAVED_MOE: Final = ("ernie4_5_moe",)
SIGMOID: Final = ("deepseek_v3", "glm4_moe", "dots1", "minimax_m2")
NOT_NORMALIZED: Final = ("qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo", "deepseek", "deepseek_v2")
# What the code of an architecture does and no key says.
CODE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("olmo2", "olmo3", "exaone4", "flex_olmo"), ("norms after attention and MLP",)),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "vaultgemma"), ("scaled embeddings",)),
    **dict.fromkeys(
        ("granite", "granitemoe", "granitemoeshared"),
        ("embedding, residual and logit multipliers",),
    ),
    "baichuan": ("a normalised output head",),
    "gpt_neo": ("attention without scaling",),
    "gpt_oss": ("a clamped SwiGLU with an offset",),
    "hunyuan_v1_dense": ("query and key norms after the rotary embedding",),
    "llama4_text": ("chunked attention with scaled queries", "experts scaled at their input"),
    "ministral3": ("scaled queries",),
    "nemotron": ("norm weights around one",),
    "phimoe": ("sparse-mixer routing",),
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
SCALED_BY_CLASS: Mapping[str, tuple[str, ...]] = {
    "cohere": ("logit_scale",),
    "cohere2": ("logit_scale",),
}
NO_ROPE_CLASSES: Mapping[str, int] = {"smollm3": 4, "llama4_text": 4}


def forward_fields(
    values: ConfigValues, model_type: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of ModelSpec that no size tells; wrong values are problems of `values`."""
    default = EPSILON.get(model_type, 1e-5)
    return {
        "norm_epsilon": values.positive(EPSILON_KEYS, default),
        "rope_scaling": _rope_scaling(values),
        "rotary_interleaved": model_type in (*INTERLEAVED, *INTERLEAVED_MOE),
        "no_rope_interval": _no_rope(values, model_type, fields),
        "forward_extras": (*CODE.get(model_type, ()), *_scales(values, model_type, fields)),
    }


def router_fields(values: ConfigValues, model_type: str) -> dict[str, Any]:
    """Fields of RouterSpec."""
    sigmoid = model_type in SIGMOID
    groups = values.whole("n_group", 8 if model_type == "deepseek_v3" else 1)
    chosen = values.whole("topk_group", 4 if model_type == "deepseek_v3" else 1)
    scale = 2.5 if model_type == "deepseek_v3" else 1.0
    normalized = model_type not in NOT_NORMALIZED
    return {
        "score": "sigmoid" if sigmoid else "softmax",
        "normalized": sigmoid or values.boolean("norm_topk_prob", default=normalized),
        "balance_bias": sigmoid or model_type == "ernie4_5_moe",
        "scaling_factor": values.positive(("routed_scaling_factor",), scale),
        "groups": groups,
        "groups_per_token": min(groups, chosen),
    }


def written_forward(model: ModelSpec) -> dict[str, Any]:
    """The keys of a config that state what no size tells."""
    kind = model.model_type or ""
    key = EPSILON_KEY.get(kind, EPSILON_KEYS[0])
    config: dict[str, Any] = {} if kind in NO_EPSILON else {key: model.norm_epsilon}
    if model.rope_scaling is not None and model.rope_scaling.kind in ROPE_KEYS:
        stretched = model.rope_scaling.model_dump()
        own = ROPE_KEYS[model.rope_scaling.kind]
        config["rope_scaling"] = {name: stretched[name] for name in own}
        config["rope_scaling"]["rope_type"] = model.rope_scaling.kind
    if model.moe is not None and kind in ROUTER_KEYS:
        router = model.moe.router
        stated = {
            "norm_topk_prob": router.normalized,
            "routed_scaling_factor": router.scaling_factor,
            "n_group": router.groups,
            "topk_group": router.groups_per_token,
        }
        config |= {name: stated[name] for name in ROUTER_KEYS[kind]}
    return config


def _rope_scaling(values: ConfigValues) -> dict[str, Any] | None:
    """Fields of RopeScaling; none where frequencies are as the base says."""
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


def _no_rope(values: ConfigValues, model_type: str, fields: Mapping[str, Any]) -> int | None:
    """Every n-th layer without rotary embedding; a list that is no such rhythm is a problem."""
    if model_type not in NO_ROPE_CLASSES:
        return None
    interval = values.whole("no_rope_layer_interval", NO_ROPE_CLASSES[model_type])
    listed = values.raw(("no_rope_layers",), None)
    if not listed:
        return interval
    if isinstance(listed, list) and all(kind == 1 for kind in listed):
        return None
    layers = range(1, fields.get("layers", 0) + 1)
    if listed != [int(layer % interval != 0) for layer in layers]:
        values.problem("no_rope_layers", "no_rope_layers must leave out every n-th layer")
    return interval


def _scales(values: ConfigValues, model_type: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """Scales and clips that are not without an effect."""
    for key, none in SCALES.items():
        stated = values.raw((key,), none)
        if stated not in (none, None):
            yield f"{key} (={str(stated)[:20]})"
        elif key in SCALED_BY_CLASS.get(model_type, ()) and values.raw((key,), none) is none:
            yield key
    scalar = values.raw(("query_pre_attn_scalar", "attention_multiplier"), None)
    head = fields.get("head_size")
    usual = (None, head, head and head**-0.5)
    if scalar not in usual:
        yield f"attention scaled by {str(scalar)[:20]}"
