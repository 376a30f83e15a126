"""The ds_config.json of a run, as the loop checks it before any process group exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import SpecError
from dsforge.train.parallel.engine_config import EngineConfig, read_engine_config

OPTIMIZER = {"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}


def read(folder: Path, text: str | dict[str, Any], world_size: int = 2) -> EngineConfig:
    """A config read from a file."""
    path = folder / "ds_config.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return read_engine_config(path, world_size)


def problems(folder: Path, text: str | dict[str, Any], world_size: int = 2) -> dict[str, str]:
    """Rule -> message and hint of everything that is wrong."""
    with pytest.raises(SpecError) as raised:
        read(folder, text, world_size)
    return {problem.rule: str(problem) for problem in raised.value.problems}


@pytest.mark.parametrize(
    ("given", "micro", "accumulation"),
    [
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}, 2, 4),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 4}, 2, 4),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}, 3, 5),
        ({"train_micro_batch_size_per_gpu": 3}, 3, 1),
        ({"train_batch_size": 16}, 8, 1),
    ],
)
def test_batch_sizes_are_derived_as_deepspeed_does(
    given: dict[str, int], micro: int, accumulation: int, tmp_path: Path
) -> None:
    """Any two of the three batch keys, or one, give the others on two ranks."""
    config = read(tmp_path, {**given, **OPTIMIZER})

    assert (config.micro_batch_size, config.gradient_accumulation_steps) == (micro, accumulation)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stage_precision_and_rate_are_read(stage: int, tmp_path: Path) -> None:
    """The loop knows the ZeRO stage, the precision and the peak learning rate."""
    config = read(
        tmp_path,
        {
            "train_batch_size": 2,
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": True},
            **OPTIMIZER,
        },
    )

    assert (config.zero_stage, config.precision, config.learning_rate) == (stage, "bf16", 3e-4)
    assert config.shards_parameters == (stage == 3)


def test_without_a_block_the_run_is_fp32_and_unsharded(tmp_path: Path) -> None:
    """DeepSpeed's own defaults."""
    config = read(tmp_path, {"train_batch_size": 2, "bf16": {"enabled": False}, **OPTIMIZER})

    assert (config.zero_stage, config.precision) == (0, "fp32")


def test_a_wrong_product_names_all_factors_and_the_ranks_to_start(tmp_path: Path) -> None:
    """The message has the four numbers, the hint what would make them agree."""
    text = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        **OPTIMIZER,
    }
    found = problems(tmp_path, text)["batch-product"]

    assert "16 must be micro batch (2) x accumulation (2) x data-parallel size (2) = 8" in found
    assert "start 4 ranks" in found


def test_one_process_where_more_are_wanted_is_told_how_to_launch(tmp_path: Path) -> None:
    """People start the script with plain python and wonder about the batch size."""
    text = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 8, **OPTIMIZER}
    text["train_batch_size"] = 16
    text["gradient_accumulation_steps"] = 1
    found = problems(tmp_path, text, world_size=1)["batch-product"]

    assert "start 2 ranks; world size is 1: one process was started" in found
    assert "torchrun --nproc_per_node N -m dsforge.train" in found


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    """JSON readers keep the last one silently."""
    text = '{"train_batch_size": 2, "train_batch_size": 4, "bf16": {"a": 1, "a": 2}}'
    with pytest.raises(SpecError) as raised:
        read(tmp_path, text)

    assert [p.message for p in raised.value.problems] == [
        "`a` occurs twice",
        "`train_batch_size` occurs twice",
    ]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "ds-config-json"),
        ("[" * 100_000, "ds-config-json"),
        ("[1]", "ds-config-mapping"),
        ({**OPTIMIZER}, "batch-missing"),
        ({"train_batch_size": 0, **OPTIMIZER}, "batch-count"),
        ({"train_batch_size": True, **OPTIMIZER}, "batch-count"),
        ({"train_batch_size": "auto", **OPTIMIZER}, "batch-count"),
        ({"train_batch_size": 2}, "optimizer-missing"),
        ({"train_batch_size": 2, "optimizer": "AdamW"}, "ds-config-block"),
        (
            {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}},
            "learning-rate",
        ),
        ({"train_batch_size": 2, "zero_optimization": {"stage": 4}, **OPTIMIZER}, "zero-stage"),
        ({"train_batch_size": 2, "zero_optimization": {"stage": True}, **OPTIMIZER}, "zero-stage"),
        (
            {"train_batch_size": 2, "bf16": {"enabled": True}, "fp16": {"enabled": True}}
            | OPTIMIZER,
            "fp16-with-bf16",
        ),
        ({"train_batch_size": 2, "comet": {"enabled": True}, **OPTIMIZER}, "monitor-missing"),
    ],
)
def test_what_the_loop_cannot_run_is_refused(
    text: str | dict[str, Any], rule: str, tmp_path: Path
) -> None:
    """Each mistake has a rule of its own."""
    assert rule in problems(tmp_path, text)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    """One run of the program shows everything that is wrong."""
    text = {"train_batch_size": -1, "zero_optimization": {"stage": 7}}

    assert set(problems(tmp_path, text)) == {
        "batch-count",
        "batch-missing",
        "optimizer-missing",
        "zero-stage",
    }
