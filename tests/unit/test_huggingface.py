"""Configs of Hugging Face and ModelSpec: there and back, defaults, hostile values."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.estimate.flops import attention_context, score_flops
from dsforge.estimate.params import parameter_counts, parameters
from dsforge.huggingface import config_from_model, model_from_config, read_config, tiny

BUILDABLE = [name for name in catalog.model_names() if catalog.model(name).model_type]
ONE_OF_EACH = sorted({catalog.model(name).model_type: name for name in BUILDABLE}.values())

NO_INDEX = {"index_heads": 0, "index_head_size": 0, "index_top_k": 0}
LLAMA_2 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def test_model_to_config_and_back_is_the_identity() -> None:
    """Every catalog row survives the way through its own config, in every field."""
    changed = []
    for name in BUILDABLE:
        model = catalog.model(name)
        again = model_from_config(config_from_model(model), name)
        own: dict[str, Any] = {"family": model.family, "hub_id": model.hub_id}
        if model.rope_scaling is not None and model.rope_scaling.kind == "longrope":
            own["rope_scaling"] = model.rope_scaling  # is not written
        own["tower"] = model.tower  # nor is what stands beside the language model
        if again.model_copy(update=own) != model:
            changed.append(name)

    assert changed == []


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_tiny_models_are_tiny_and_of_the_same_kind(name: str) -> None:
    """Far below two million parameters, with experts, latents and windows where they were."""
    model = catalog.model(name)
    small = tiny(model)

    assert 100_000 < parameters(small) < 2_000_000
    assert parameters(model_from_config(config_from_model(small), "tiny")) == parameters(small)
    assert (small.moe is None, small.mla is None) == (model.moe is None, model.mla is None)
    assert small.moe is None or small.moe_layers >= 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gpt2"}, 124_439_808),
        ({"model_type": "opt"}, 125_239_296),
        (LLAMA_2, 6_738_415_616),
        (LLAMA_2 | {"num_key_value_heads": None}, 6_738_415_616),
        # Yi and others of Llama's kind state nothing else of their own
        (LLAMA_2 | {"model_type": "Yi"}, 6_738_415_616),
    ],
    ids=["gpt2", "opt", "llama", "null-kv-heads", "same-as"],
)
def test_what_a_config_leaves_out_has_the_default_of_its_class(
    config: dict[str, Any], expected: int
) -> None:
    """Omitted keys and nulls mean what they mean to transformers."""
    assert parameters(model_from_config(config, "x")) == expected


def test_sliding_window_default_of_mistral_holds_unless_null() -> None:
    """MistralConfig has a window of 4096; `null` switches it off."""
    config = LLAMA_2 | {"model_type": "mistral"}

    assert model_from_config(config, "x").sliding_window == 4096
    assert model_from_config(config | {"sliding_window": None}, "x").sliding_window is None


def test_qwen_window_counts_only_when_it_is_switched_on() -> None:
    """Qwen configs state a window beside `use_sliding_window: false`."""
    config = LLAMA_2 | {"model_type": "qwen2", "sliding_window": 32768}

    assert model_from_config(config, "x").sliding_window is None
    on = model_from_config(config | {"use_sliding_window": True}, "x")
    assert on.sliding_window == 32768


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"rope_parameters": {"full_attention": {"rope_theta": 500000.0}}},
    ],
    ids=["flat", "nested", "per-layer-type"],
)
def test_rope_theta_is_found_where_versions_put_it(rope: dict[str, Any]) -> None:
    """Transformers 4 writes it flat, 5 nests it."""
    assert model_from_config(LLAMA_2 | rope, "x").rope_theta == 500000.0


def test_text_part_of_a_multimodal_config_is_read_and_said() -> None:
    """Of Llama 4 transformers trains the language model alone, tied or not by its own key."""
    inner = {"hidden_size": 2560, "num_hidden_layers": 34, "num_attention_heads": 40}
    config = {"model_type": "llama4", "text_config": inner, "vision_config": {}}
    model, reasons = read_config(config | {"tie_word_embeddings": True}, "x")

    assert model.model_type == "llama4_text"
    assert (model.hidden_size, model.tied_embeddings) == (2560, False)
    assert [reason.rule for reason in reasons] == ["model-text-config"]


@pytest.mark.parametrize("outer", ["gemma3n", "mllama", "molmo", "brandnew_vl"])
def test_towers_are_not_modelled(outer: str) -> None:
    """A language model with more beside it is refused: its text part alone would be too small."""
    config = {"model_type": outer, "text_config": LLAMA_2, "vision_config": {"hidden_size": 64}}
    with pytest.raises(SpecError, match="is not modelled"):
        read_config(config, "x")


def test_unknown_model_type_is_read_as_llama_like_and_said() -> None:
    """With the usual keys an unknown architecture can be planned, with a reason."""
    model, reasons = read_config(LLAMA_2 | {"model_type": "brandnew"}, "x")

    assert parameters(model) == 6_738_415_616
    assert model.model_type == "brandnew"
    assert reasons[0].rule == "warning-model-type"
    assert "brandnew" in reasons[0].message


@pytest.mark.parametrize(
    "more",
    [
        {"num_experts": 8},
        {"n_routed_experts": 64, "moe_intermediate_size": 1408},
        {"mamba_d_state": 16},
        {"linear_num_key_heads": 16},
        {"layer_types": ["linear_attention", "full_attention"]},
        {"hybrid_override_pattern": "M-M*"},
        {"vision_config": {"hidden_size": 1024}},
        {"num_nextn_predict_layers": 1},
        {"hidden_act": "relu2"},
        {"kv_lora_rank": 512},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("model_type", ["brandnew", None])
def test_an_unknown_model_type_with_more_than_a_llama_is_refused(
    model_type: str | None, more: dict[str, Any]
) -> None:
    """Experts, state spaces, latents and towers that nothing reads would be left out."""
    with pytest.raises(SpecError, match=r"problem|usable"):
        read_config({**LLAMA_2, "model_type": model_type, **more}, "x")


@pytest.mark.parametrize(
    ("model_type", "more", "key"),
    [
        ("llama", {"num_local_experts": 8}, "num_local_experts"),
        ("llama", {"num_layers": 40}, "num_layers"),
        ("glm4", {"multi_query_group_num": 4}, "multi_query_group_num"),
        ("qwen3", {"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, "mlp_only_layers"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias"),
        ("mistral", {"vision_config": {"hidden_size": 64}}, "vision_config"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("mpt", {"expansion_ratio": 8}, "expansion_ratio"),
        ("minimax_m2", {"attn_type_list": [0, 1]}, "attn_type_list"),
    ],
)
def test_a_known_model_type_with_parts_that_are_not_read_is_refused(
    model_type: str, more: dict[str, Any], key: str
) -> None:
    """The key that would change the size unseen is named."""
    with pytest.raises(SpecError) as error:
        read_config({**LLAMA_2, "model_type": model_type, **more}, "x")

    assert key in {problem.place for problem in error.value.problems}


def test_a_key_of_another_architecture_may_repeat_a_size() -> None:
    """`num_layers` beside an equal `num_hidden_layers` changes nothing."""
    assert model_from_config(LLAMA_2 | {"num_layers": 32}, "x").layers == 32


def test_heads_for_several_tokens_are_said_to_be_left_out() -> None:
    """Transformers does not build DeepSeek-V3's extra layer, so it is not planned either."""
    _, reasons = read_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}, "x")

    assert [reason.rule for reason in reasons] == ["model-left-out"]


def test_unknown_model_type_without_the_usual_keys_names_them_all() -> None:
    """What is missing is told at once."""
    with pytest.raises(SpecError) as error:
        model_from_config({"model_type": "brandnew", "hidden_size": 64}, "x")

    missing = {problem.place for problem in error.value.problems}
    assert {"num_hidden_layers", "num_attention_heads", "vocab_size"} <= missing
    assert "hidden_size" not in missing


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": 4096.5}, "hidden_size"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"hidden_size": [4096]}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "hidden_size"),
        ({"vocab_size": {}}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"attention_bias": 3}, "attention_bias"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "x"}, "rope_theta"),
        ({"hidden_act": 7}, "hidden_act"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": "x"}, "kv_lora_rank"),
        ({"model_type": "falcon", "num_kv_heads": "x", "multi_query": False}, "num_kv_heads"),
        ({"model_type": "gptj", "n_head": 0}, "n_head"),
        ({"model_type": "gptj", "rotary_dim": "x"}, "rotary_dim"),
        ({"model_type": "gpt_neo", "attention_types": 7}, "attention_types"),
        ({"model_type": "gpt_neo", "attention_types": [7]}, "attention_types"),
        ({"model_type": "mpt", "expansion_ratio": "x"}, "expansion_ratio"),
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": []},
         "multi_query_group_num"),
    ],
)  # fmt: skip
def test_hostile_values_are_refused_with_their_key(change: dict[str, Any], place: str) -> None:
    """A wrong type or an absurd size is a problem at its key, never a traceback."""
    with pytest.raises(SpecError) as error:
        model_from_config(LLAMA_2 | change, "x")

    assert place in {problem.place for problem in error.value.problems}


def test_all_problems_come_at_once() -> None:
    """Three wrong values, three problems."""
    wrong = {"hidden_size": "x", "vocab_size": -5, "num_hidden_layers": None}
    with pytest.raises(SpecError) as error:
        model_from_config(LLAMA_2 | wrong, "x")

    assert {problem.place for problem in error.value.problems} == set(wrong)


def test_a_model_without_an_architecture_says_so() -> None:
    """GLM-130B can be planned but transformers cannot build it."""
    with pytest.raises(SpecError, match="problem"):
        config_from_model(catalog.model("glm-130b"))


LING_MINI = {
    "model_type": "bailing_moe",
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
}


def test_ling_mini_has_the_sizes_that_its_card_states() -> None:
    """16B in all, 1.4B for a token and 789M of them without embeddings (ant-yy/Ling-V2 README)."""
    counts = parameter_counts(model_from_config(LING_MINI, "ling-mini-2.0"))

    assert round(counts.total / 1e9, 1) == 16.3
    assert round(counts.active / 1e9, 1) == 1.4
    assert round((counts.active - counts.embedding - counts.head) / 1e6) == 789


@pytest.mark.parametrize(
    "missing", ["num_experts", "num_key_value_heads", "use_bias", "first_k_dense_replace"]
)
def test_a_size_whose_default_depends_on_the_version_must_be_stated(missing: str) -> None:
    """Two versions of the hub's code share a name."""
    with pytest.raises(SpecError, match="not a usable model config") as error:
        model_from_config({k: v for k, v in LING_MINI.items() if k != missing}, "x")

    assert missing in [problem.place for problem in error.value.problems]


STRANGE: tuple[Any, ...] = (
    [],
    [[]],
    [["dense"]],
    "dense",
    ["sparse", "dense"],
    {},
    3,
    ["dense", 1],
)


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize(
    ("kind", "key"),
    [("glm4_moe_lite", "mlp_layer_types"), ("glm_moe_dsa", "indexer_types")],
)
def test_strange_lists_of_layers_are_refused(kind: str, key: str, value: Any) -> None:
    """By name, without a traceback."""
    with pytest.raises(SpecError) as error:
        model_from_config({"model_type": kind, key: value}, "x")

    assert key in [problem.place for problem in error.value.problems]


@pytest.mark.parametrize("value", [[], [0, 14], [14, 14, 14], "14", {}, [True, 2], -1])
def test_strange_sizes_of_an_image_are_refused(value: Any) -> None:
    """A patch has a height and a width."""
    with pytest.raises(SpecError) as error:
        read_config({"model_type": "internvl", "vision_config": {"patch_size": value}}, "x")

    assert "patch_size" in [problem.place for problem in error.value.problems]


def test_halves_of_different_depth_are_refused() -> None:
    """mT5 with a shallow decoder has fewer parameters than two equal halves."""
    with pytest.raises(SpecError, match="not a usable"):
        model_from_config({"model_type": "mt5", "num_layers": 8, "num_decoder_layers": 2}, "x")


def test_roberta_has_fewer_positions_than_rows() -> None:
    """Rows up to the padding token's are never read (`create_position_ids_from_input_ids`)."""
    model = model_from_config({"model_type": "roberta", "max_position_embeddings": 514}, "x")

    assert (model.max_position_embeddings, model.position_offset) == (512, 2)
    assert config_from_model(model)["max_position_embeddings"] == 514


def test_a_token_of_a_sparse_attention_costs_its_top_k() -> None:
    """Scores stop to grow with the sequence, those of the indexer alone do not."""
    sparse = model_from_config({"model_type": "deepseek_v32"}, "sparse")
    dense = sparse.model_copy(update={"mla": sparse.mla and sparse.mla.model_copy(update=NO_INDEX)})
    pairs = 32768 / 2
    index = 2 * 64 * (128 + 1) * pairs

    assert attention_context(sparse, 2048) == attention_context(dense, 2048) == 1024
    assert attention_context(sparse, 32768) == 2048 * (1 - 2048 / 65536)
    assert attention_context(dense, 32768) == pairs
    assert score_flops(sparse, 32768) == pytest.approx(
        2 * 128 * (128 + 64 + 128) * attention_context(sparse, 32768) + index
    )


def test_an_encoder_sees_its_window_on_both_sides() -> None:
    """ModernBERT: 64 tokens to each side in two of three layers, all in the others."""
    model = model_from_config({"model_type": "modernbert"}, "modernbert")
    length = 4096
    seen = [min(t, 64) + min(length - t, 64) for t in range(length)]
    local = sum(seen) / length

    assert attention_context(model, length) == pytest.approx(length / 3 + local * 2 / 3, rel=1e-3)
