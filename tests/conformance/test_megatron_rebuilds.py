"""Megatron's arguments rebuild the model of a config: compared field by field, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dsforge import catalog
from dsforge.constraints.megatron import forward_gaps
from dsforge.huggingface import config_from_model, model_from_config
from dsforge.render.megatron import megatron_arguments
from dsforge.specs import ModelSpec

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import plans
from megatron_settings import config_class, fields_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LLAMA_31_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
# What the hub's config.json states beside the sizes of the catalog row.
HUB: Mapping[str, dict[str, Any]] = {
    "llama-2-7b": {"rms_norm_eps": 1e-5},
    "llama-3.1-8b": {"rms_norm_eps": 1e-5, "rope_scaling": LLAMA_31_ROPE},
    "llama-3.2-1b": {"rms_norm_eps": 1e-5, "rope_scaling": LLAMA_31_ROPE | {"factor": 32.0}},
    "qwen3-8b": {"rms_norm_eps": 1e-6, "rope_scaling": None},
    "qwen3-30b-a3b": {"rms_norm_eps": 1e-6, "norm_topk_prob": True},
    "mixtral-8x7b": {"rms_norm_eps": 1e-5},
    "deepseek-v3": {
        "rms_norm_eps": 1e-6,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    },
}
GIVEN = ("rms_norm_eps", "rope_scaling", "n_group", "topk_group", "routed_scaling_factor")


def rebuilt(model: ModelSpec) -> tuple[dict[str, Any], Any]:
    """Arguments of a model by flag, and the TransformerConfig that they make."""
    plan = plans.plan("llama-2-7b").model_copy(update={"model": model})
    strategy = plans.megatron_strategy(plans.cluster())
    lines = [argument.line for argument in megatron_arguments(plan, strategy)]
    given = fields_of(lines)
    return dict(line.partition(" ")[::2] for line in lines), config_class(given)(**given)


@pytest.mark.parametrize("name", HUB)
def test_catalog_and_hub_agree(name: str) -> None:
    """The row has what the hub's config states."""
    row = catalog.model(name)
    config = {key: value for key, value in config_from_model(row).items() if key not in GIVEN}
    again = model_from_config(config | HUB[name], name)

    assert again.model_copy(update={"family": row.family, "hub_id": row.hub_id}) == row


@pytest.mark.parametrize("name", HUB)
def test_every_field_is_that_of_the_config(name: str) -> None:
    """Norms, heads, rotary embedding and routing, as megatron-core takes them."""
    model = catalog.model(name)
    flags, built = rebuilt(model)

    assert built.layernorm_epsilon == HUB[name]["rms_norm_eps"]
    assert built.normalization == "RMSNorm"
    assert (built.num_layers, built.hidden_size) == (model.layers, model.hidden_size)
    assert built.qk_layernorm == (model.qk_norm == "head" or model.mla is not None)
    assert built.gated_linear_unit
    assert built.add_qkv_bias == model.qkv_bias
    assert ("--untie-embeddings-and-output-weights" in flags) != model.tied_embeddings
    assert float(flags["--rotary-base"]) == model.rope_theta
    if model.mla is None:
        assert built.num_query_groups == model.kv_heads
        assert built.kv_channels == model.head_size


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b"])
def test_llama_3_is_stretched(name: str) -> None:
    """Its scaling is a switch and a factor."""
    flags, _ = rebuilt(catalog.model(name))

    assert "--use-rope-scaling" in flags
    assert float(flags["--rope-scaling-factor"]) == HUB[name]["rope_scaling"]["factor"]


def test_deepseek_v3_is_rebuilt() -> None:
    """Latents normalised, YaRN, sigmoid routing in groups, balanced by a bias."""
    _, built = rebuilt(catalog.model("deepseek-v3"))
    hub = HUB["deepseek-v3"]

    assert built.qk_layernorm
    assert built.rope_type == "yarn"
    assert built.rotary_scaling_factor == hub["rope_scaling"]["factor"]
    assert (built.mscale, built.mscale_all_dim) == (1.0, 1.0)
    assert (built.beta_fast, built.beta_slow) == (32, 1)
    assert built.original_max_position_embeddings == 4096
    assert built.moe_router_score_function == "sigmoid"
    assert built.moe_router_enable_expert_bias
    assert built.moe_router_load_balancing_type == "seq_aux_loss"
    assert built.moe_aux_loss_coeff == 0.0001
    assert built.moe_router_topk_scaling_factor == 2.5
    assert (built.moe_router_num_groups, built.moe_router_group_topk) == (8, 4)


@pytest.mark.parametrize(
    ("name", "before"),
    [("mixtral-8x7b", False), ("qwen3-30b-a3b", False), ("qwen1.5-moe-a2.7b", True)],
)
def test_weights_of_experts_add_up_where_they_should(name: str, before: bool) -> None:
    """A softmax before the choice leaves them as they are, one after it makes them add up to 1."""
    _, built = rebuilt(catalog.model(name))

    assert built.moe_router_pre_softmax == before


def test_latent_attention_without_scaling_says_so() -> None:
    """Megatron's own default would be YaRN with a factor of 40."""
    model = catalog.model("deepseek-v3").model_copy(update={"rope_scaling": None})

    assert rebuilt(model)[1].rope_type == "rope"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": LLAMA_31_ROPE | {"high_freq_factor": 1.0}}, "frequency factors"),
        ({"model_type": "granite"}, "multipliers"),
        ({"model_type": "olmo2"}, "norms after"),
        ({"model_type": "gpt_oss", "head_dim": 128}, "clamped"),
        ({"model_type": "gemma2"}, "scaled embeddings"),
        ({"final_logit_softcapping": 30.0}, "softcapping"),
    ],
)
def test_what_no_flag_states_is_refused(config: dict[str, Any], said: str) -> None:
    """Evenly for all families, with the field."""
    base = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }

    assert said in "; ".join(forward_gaps(model_from_config(base | config, "x")))


def test_smollm3_leaves_every_fourth_layer_without_positions() -> None:
    """Megatron counts them in the same rhythm."""
    model = catalog.model("smollm3-3b")
    _, built = rebuilt(model)

    assert model.no_rope_interval == 4
    assert built.no_rope_freq == [0, 0, 0, 1] * (model.layers // 4)
