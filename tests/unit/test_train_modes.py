"""Tensor, pipeline and sequence sizes of a ds_config, and what of them cannot meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsforge.layout import Layout
from dsforge.train.modes import Mode, check_shape, read_mode

TENSOR = {"tensor_parallel": {"autotp_size": 2}}
PIPELINE = {"pipeline": {"stages": 2}}
SEQUENCE = {"sequence_parallel_size": 2}


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
    ],
    ids=["none", "tensor-off", "pipeline-auto", "tensor", "pipeline", "sequence"],
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
        ({**TENSOR, **PIPELINE}, 1, 4, "deepspeed-3d"),
        ({**TENSOR, **SEQUENCE}, 1, 4, "deepspeed-3d"),
        (TENSOR, 3, 4, "zero-tensor"),
        (PIPELINE, 2, 4, "zero-pipeline"),
        (
            {"tensor_parallel": {"autotp_size": 2, "vocab_parallel_lm_head": True}},
            1,
            4,
            "tensor-vocabulary",
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
        ({"pipeline": {"stages": 2, "partition": [1, 2, 3]}}, 1, 4, "pipeline-partition"),
        ({"pipeline": {"stages": 2, "partition": "profile"}}, 1, 4, "pipeline-partition"),
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
        (2, {}, True, ["lora-tensor"]),
    ],
    ids=["fits", "kv-heads", "heads", "no-plan", "adapters"],
)
def test_a_model_that_tensor_parallelism_cannot_cut_is_refused(
    size: int, values: dict[str, Any], adapters: bool, found: list[str]
) -> None:
    """Whole heads only, by the plan that transformers has for the kind, without adapters."""
    mode = Mode(Layout(tensor_parallel_size=size))
    problems = check_shape(mode, configuration(**values), adapters=adapters)

    assert [problem.rule for problem in problems] == found
