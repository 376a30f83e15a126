"""Tensor, pipeline and sequence sizes of a ds_config, and what of them cannot meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsforge.ds_config import read
from dsforge.errors import Problem
from dsforge.layout import Layout
from dsforge.strategy import ZeroStage
from dsforge.train.parallel.modes import Mode, check_model, explicit_bounds, mode_of

TENSOR = {"tensor_parallel": {"autotp_size": 2}}
PIPELINE = {"pipeline": {"stages": 2}}
SEQUENCE = {"sequence_parallel_size": 2}


def read_mode(settings: dict[str, Any], stage: ZeroStage, ranks: int) -> tuple[Mode, list[Problem]]:
    """The mode of a config under a ZeRO stage, and what is wrong with it."""
    config, problems = read(settings, filled_in=False)
    mode, clashes = mode_of(config._replace(zero_stage=stage), ranks)
    return mode, [*problems, *clashes]


def rules(settings: dict[str, Any], stage: int = 1, ranks: int = 4) -> list[str]:
    """The rules that a config breaks."""
    return [problem.rule for problem in read_mode(settings, stage, ranks)[1]]


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        ({}, Layout(data_parallel_size=4)),
        ({"tensor_parallel": {"autotp_size": 0}}, Layout(data_parallel_size=4)),
        ({"pipeline": {"stages": "auto"}}, Layout(data_parallel_size=4)),
        (TENSOR, Layout(data_parallel_size=2, tensor_parallel_size=2)),
        (PIPELINE, Layout(data_parallel_size=2, pipeline_parallel_size=2)),
        (SEQUENCE, Layout(data_parallel_size=2, context_parallel_size=2)),
        ({**TENSOR, **PIPELINE}, Layout(tensor_parallel_size=2, pipeline_parallel_size=2)),
    ],
    ids=["none", "tensor-off", "pipeline-auto", "tensor", "pipeline", "sequence", "three-axes"],
)
def test_the_ranks_that_are_left_are_data_parallel(
    settings: dict[str, Any], layout: Layout
) -> None:
    """Four ranks, two of them for each replica where a size of 2 is given."""
    mode, problems = read_mode(settings, 1, 4)

    assert (mode.layout, problems) == (layout, [])


@pytest.mark.parametrize(
    ("settings", "stage", "ranks", "rule"),
    [
        (TENSOR, 1, 3, "world-size"),
        ({"tensor_parallel": {"autotp_size": -2}}, 1, 4, "parallel-size"),
        ({"pipeline": {"stages": "two"}}, 1, 4, "parallel-size"),
        ({**PIPELINE, **SEQUENCE}, 1, 4, "deepspeed-3d"),
        ({**TENSOR, **PIPELINE}, 1, 6, "world-size"),
        ({**TENSOR, **PIPELINE}, 2, 4, "zero-pipeline"),
        ({**TENSOR, **SEQUENCE}, 1, 4, "deepspeed-3d"),
        (TENSOR, 3, 4, "zero-tensor"),
        (PIPELINE, 2, 4, "zero-pipeline"),
        (
            {"tensor_parallel": {"autotp_size": 2, "vocab_parallel_lm_head": True}},
            1,
            4,
            "vocabulary-split",
        ),
        (
            {**PIPELINE, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            1,
            4,
            "offload-pipeline",
        ),
        ({"zero_optimization": {"offload_param": {"device": "cpu"}}}, 2, 4, "offload-parameters"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, 2, 4, "nvme-stage"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            2,
            4,
            "offload-ratio",
        ),
        (
            {**SEQUENCE, "zero_optimization": {"reduce_scatter": False}},
            3,
            4,
            "sequence-reduce-scatter",
        ),
        ({"pipeline": {"stages": 2, "partition": [1, 2, 3]}}, 1, 4, "partition-form"),
        ({"pipeline": {"stages": 2, "partition": "profile"}}, 1, 4, "partition-form"),
    ],
)
def test_what_cannot_meet_is_refused(
    settings: dict[str, Any], stage: int, ranks: int, rule: str
) -> None:
    """Each has its rule, and DeepSpeed is not asked."""
    assert rule in rules(settings, stage, ranks)


def test_a_partial_offload_belongs_to_zero_3() -> None:
    """There it is done, so there it passes."""
    settings = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}}

    assert rules(settings, stage=3) == []


def configuration(**values: Any) -> Any:
    """What the checks read of a transformers configuration."""
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "model_type": "llama"}
    made = SimpleNamespace(**{**shape, "base_model_tp_plan": {"a": "colwise"}, **values})
    made.get_text_config = lambda: made
    return made


@pytest.mark.parametrize(
    ("size", "values", "adapters", "found"),
    [
        (2, {}, False, []),
        (4, {}, False, ["tensor-kv-heads"]),
        (3, {}, False, ["tensor-heads", "tensor-kv-heads"]),
        (2, {"base_model_tp_plan": None}, False, ["tensor-model"]),
        (2, {"base_model_tp_plan": {"a": "moe_tp_experts"}}, False, ["tensor-model"]),
        (2, {}, True, ["lora-tensor"]),
    ],
    ids=["fits", "kv-heads", "heads", "no-plan", "experts", "adapters"],
)
def test_a_model_that_tensor_parallelism_cannot_cut_is_refused(
    size: int, values: dict[str, Any], adapters: bool, found: list[str]
) -> None:
    """Whole heads only, by the plan that transformers has for the kind, without adapters."""
    mode = Mode(Layout(tensor_parallel_size=size))
    problems = check_model(mode, configuration(**values), adapters=adapters)

    assert [problem.rule for problem in problems] == found


@pytest.mark.parametrize(
    ("values", "job", "found"),
    [
        ({}, {}, []),
        ({"num_key_value_heads": 1}, {}, []),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, {}, ["sequence-heads"]),
        ({"num_key_value_heads": None}, {}, ["sequence-model"]),
        ({}, {"attention": "eager"}, ["sequence-attention"]),
        ({}, {"packing": True}, ["sequence-packing"]),
        ({"sliding_window": 64}, {}, ["sequence-window"]),
        ({"sliding_window": 64}, {"attention": "flash_attention_2"}, []),
        ({"sliding_window": 64, "use_sliding_window": False}, {}, []),
    ],
    ids="fits one-kv-head heads model eager packing window flash no-window".split(),
)
def test_what_the_exchange_of_heads_would_get_wrong_is_refused(
    values: dict[str, Any], job: dict[str, Any], found: list[str]
) -> None:
    """Ulysses drops masks, so whatever needs one is refused."""
    mode = Mode(Layout(context_parallel_size=2))
    given = {"attention": "sdpa", "packing": False, **job}
    problems = check_model(mode, configuration(**values), adapters=False, **given)

    assert [problem.rule for problem in problems if problem.rule != "sequence-kv-heads"] == found


@pytest.mark.parametrize(
    ("stages", "partition", "values", "adapters", "found"),
    [
        (2, "parameters", {}, False, []),
        (2, (1, 3), {}, False, []),
        (2, (1, 4), {}, False, ["pipeline-partition"]),
        (5, "parameters", {}, False, ["pipeline-size"]),
        (2, "parameters", {"model_type": "gemma2"}, False, ["pipeline-model"]),
        (2, "parameters", {}, True, ["lora-pipeline"]),
    ],
    ids=["fits", "explicit", "too-many-layers", "too-many-stages", "kind", "adapters"],
)
def test_a_model_that_is_no_pipeline_is_refused(
    stages: int, partition: Any, values: dict[str, Any], adapters: bool, found: list[str]
) -> None:
    """Kinds are listed; every stage of a balanced cut has a layer."""
    mode = Mode(Layout(pipeline_parallel_size=stages), partition)
    shape = configuration(num_hidden_layers=4, **values)
    problems = check_model(mode, shape, adapters=adapters)

    assert [problem.rule for problem in problems] == found


@pytest.mark.parametrize(
    ("counts", "before", "bounds"),
    [((1, 3), 1, [0, 2, 7]), ((4, 0), 1, [0, 5, 7]), ((2, 1, 1), 2, [0, 4, 5, 8])],
)
def test_outer_stages_take_embedding_and_head(
    counts: tuple[int, ...], before: int, bounds: list[int]
) -> None:
    """Layers of each stage -> bounds in the sequence with embedding before, norm and head after."""
    assert explicit_bounds(counts, before, 2) == bounds


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_model_with_an_indexer_is_refused_in_every_mode(stage: ZeroStage, adapters: bool) -> None:
    """Transformers runs the indexer without gradients, so training would leave it as it was."""
    shape = configuration(layer_types=["indexed_attention"] * 4)
    problems = check_model(Mode(Layout()), shape, adapters=adapters, zero_stage=stage)

    assert [problem.rule for problem in problems] == ["indexed-attention"]
