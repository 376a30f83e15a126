"""Vision towers: read from a config, named, priced by what trains, refused where none can run."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from formulas import is_redone
from hypothesis import given
from hypothesis import strategies as st
from planning import cluster, strategy, workload

import dsforge
from dsforge.errors import SpecError
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.flops import step_flops
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.params import parameters
from dsforge.estimate.time import estimate_time
from dsforge.estimate.vision import tower_parameters, trained_beside_adapters
from dsforge.explain.explanation import explanation
from dsforge.huggingface import read_config
from dsforge.plan import Plan
from dsforge.planner.pricing import price
from dsforge.specs import LoraSpec, Workload

NODE = {"gpu": "a100-80gb", "gpus_per_node": 8}
# Qwen2.5-VL-7B-Instruct as its config.json on the hub says, which states the language model flat.
QWEN: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_token_id": 151654,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
MODEL = read_config(QWEN, "qwen2.5-vl-7b")[0]
TEXT = MODEL.model_copy(update={"tower": None})
STAGES = st.sampled_from((0, 1, 2, 3))


def test_the_published_model_has_its_published_parameters() -> None:
    """8,292,166,656 tensors' elements in the safetensors of Qwen/Qwen2.5-VL-7B-Instruct."""
    assert parameters(MODEL) == 8_292_166_656
    assert tower_parameters(MODEL) == parameters(MODEL) - parameters(TEXT) == 676_550_144


@given(stage=STAGES)
def test_a_tower_is_frozen(stage: int) -> None:
    """Its weights are held; it has neither gradients nor states of the optimizer."""
    how = strategy(8, zero_stage=stage)
    seeing, reading = (
        family_costs(model, cluster(), workload(), how).fullest.kept for model in (MODEL, TEXT)
    )
    shares = 8 if stage == 3 else 1

    assert seeing.gradients == reading.gradients
    assert seeing.optimizer == reading.optimizer
    more = seeing.weights - reading.weights
    assert more == pytest.approx(2 * tower_parameters(MODEL) / shares, rel=1e-6)


@given(tokens=st.integers(0, 2048), more=st.integers(0, 2048), stage=STAGES)
def test_more_of_an_image_is_never_faster_and_needs_no_more_memory(
    tokens: int, more: int, stage: int
) -> None:
    """A forward pass of the tower over four patches for each token."""
    how = strategy(8, zero_stage=stage)
    few, many = (workload(4096, image_tokens=n) for n in (tokens, tokens + more))
    steps = [estimate_time(MODEL, cluster(), w, how).terms.compute_s for w in (few, many)]

    assert steps[0] <= steps[1]
    assert (steps[0] < steps[1]) == (more > 0)
    assert estimate_memory(MODEL, cluster(), few, how) == estimate_memory(
        MODEL, cluster(), many, how
    )


TRAINED = ("frozen", "projector", "all")


def seeing(method: str, trained: str, images: int = 1000) -> Workload:
    """Samples with an image, and what of the tower trains."""
    more = {"method": "lora", "lora": LoraSpec()} if method == "lora" else {}
    return workload(4096, image_tokens=images).model_copy(
        update={"vision_training": trained, **more}
    )


@given(
    stage=STAGES,
    method=st.sampled_from(("full", "lora")),
    recompute=st.sampled_from(("none", "full")),
    images=st.integers(0, 4096),
)
def test_training_more_of_a_tower_is_never_faster_and_never_needs_less(
    stage: Literal[0, 1, 2, 3], method: str, recompute: Literal["none", "full"], images: int
) -> None:
    """Of a frozen tower, its projector alone, and all: memory, time and useful work rise."""
    how = strategy(8, zero_stage=stage, recompute=recompute)
    works = [seeing(method, trained, images) for trained in TRAINED]
    memory = [estimate_memory(MODEL, cluster(), work, how) for work in works]
    times = [estimate_time(MODEL, cluster(), work, how).step_s.likely for work in works]
    flops = [step_flops(MODEL, work) for work in works]

    peaks = [found.allocated_bytes.likely for found in memory]
    assert peaks == sorted(peaks)
    assert times == sorted(times)
    assert flops == sorted(flops)
    saved = [found.checkpoint_bytes for found in memory]
    assert saved == sorted(saved)


def test_a_tower_that_trains_has_gradients_and_states_like_the_rest() -> None:
    """Its parameters and those of the projector, with 16 bytes each under mixed precision."""
    how = strategy(1, zero_stage=0)
    kept = [
        family_costs(MODEL, cluster(), seeing("full", trained), how).fullest.kept
        for trained in TRAINED
    ]
    tower = MODEL.tower
    assert tower is not None

    for more, parts in ((1, tower.projector_parameters), (2, tower_parameters(MODEL))):
        assert kept[more].weights == kept[0].weights
        grown = kept[more].optimizer - kept[0].optimizer
        assert grown == pytest.approx(12 * parts, rel=1e-6)


def test_adapters_on_a_tower_are_counted() -> None:
    """Rank x (inputs + outputs): four square matrices and an MLP in each of its layers."""
    tower = MODEL.tower
    assert tower is not None
    lora = LoraSpec(rank=8, targets=("query", "value"))
    work = seeing("lora", "all").model_copy(update={"lora": lora})

    adapters = trained_beside_adapters(MODEL, work) - tower.projector_parameters
    assert adapters == 8 * tower.layers * 2 * (2 * tower.hidden_size)
    assert trained_beside_adapters(TEXT, work) == 0


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_every_figure_of_a_model_with_a_tower_is_explained(method: str, trained: str) -> None:
    """Each formula, evaluated on the printed inputs, gives the figure, and the plan's."""
    work = seeing(method, trained)
    choice = price(MODEL, cluster(), work, strategy(8, zero_stage=3))
    plan = Plan.model_construct(
        schema_version=1,
        model=MODEL,
        parameters=1,
        cluster=cluster(),
        workload=work,
        choice=choice,
        variants=(),
    )
    found = explanation(plan).model_dump(mode="json")

    assert [figure["name"] for figure in found["figures"] if not is_redone(figure)] == []
    assert found["disagreements"] == []


def test_a_tower_is_named_and_priced_and_not_trained(tmp_path: Any) -> None:
    """The plan says what stands beside the language model; `gen` and Megatron-LM refuse."""
    work = {"sequence_length": 4096, "global_batch_size": 64, "image_tokens": 1024}
    plan = dsforge.plan(QWEN, NODE, work).best
    rules = {reason.rule for reason in plan.choice.reasons}

    assert {"model-tower", "preference-software"} <= rules
    assert plan.strategy.runs_as.software == "others"
    assert plan.strategy.back_end == "deepspeed"
    asked = dsforge.plan(QWEN, NODE, work, strategy={"back_end": "megatron"}).best
    assert asked.strategy.back_end == "megatron"
    with pytest.raises(SpecError):
        dsforge.gen(QWEN, NODE, work, out=tmp_path / "run")
    for model, tokens in (("llama-3.2-1b", 1024), (QWEN, 5000)):
        with pytest.raises(SpecError) as refused:
            dsforge.plan(model, NODE, {**work, "image_tokens": tokens})
        assert [problem.rule for problem in refused.value.problems] == ["image-tokens"]
    with pytest.raises(SpecError) as refused:
        dsforge.plan("llama-3.2-1b", NODE, {"sequence_length": 4096, "vision_training": "all"})
    assert "requires a model with a vision tower" in refused.value.problems[0].message


@pytest.mark.parametrize(
    "tower",
    [
        {},
        {"depth": 0},
        {"hidden_size": "wide"},
        {"intermediate_size": -1},
        {"patch_size": 10**9},
        {"spatial_merge_size": None},
    ],
)
def test_a_tower_of_any_numbers_is_read_or_refused(tower: dict[str, Any]) -> None:
    """Never a traceback: what is missing has the default of its class."""
    config = {**QWEN, "vision_config": {**QWEN["vision_config"], **tower}}
    try:
        found = read_config(config, "x")[0]
    except SpecError:
        return
    assert found.tower is not None


@pytest.mark.parametrize("tower", [None, [], "vision", {}])
def test_a_config_without_a_tower_is_not_read_as_a_language_model(tower: Any) -> None:
    """Its text alone would be too small."""
    config = {**QWEN, "vision_config": tower}
    if tower == {}:
        assert read_config(config, "x")[0].tower is not None
        return
    with pytest.raises(SpecError, match="is not modelled"):
        read_config(config, "x")
