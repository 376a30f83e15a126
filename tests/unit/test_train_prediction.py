"""What the plan beside train.yaml says of a run, and when it says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plans
import pytest

from dsforge.job import TrainJob
from dsforge.measurement import MeasuredMemory, Measurement
from dsforge.plan import Plan
from dsforge.specs import DataSpec
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.modes import Mode
from dsforge.train.run.prediction import Prediction, read_prediction, summary
from dsforge.units import GIB


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan for two A100 nodes."""
    return plans.plan("llama-2-7b")


def config(plan: Plan, **changed: Any) -> EngineConfig:
    """The config of the plan's choice."""
    strategy = plan.strategy
    values: dict[str, Any] = {
        "settings": {"zero_optimization": {"stage": strategy.zero_stage}},
        "zero_stage": strategy.zero_stage,
        "precision": plan.workload.precision,
        "micro_batch_size": strategy.micro_batch_size,
        "gradient_accumulation_steps": strategy.gradient_accumulation_steps,
        "learning_rate": 2e-5,
        "mode": Mode(strategy.layout),
    }
    return EngineConfig(**(values | changed))


def job(plan: Plan, **changed: Any) -> TrainJob:
    """The job of the plan."""
    values: dict[str, Any] = {
        "model": "m",
        "deepspeed_config": "ds_config.json",
        "data": DataSpec(train="d.jsonl"),
        "sequence_length": plan.workload.sequence_length,
    }
    return TrainJob(**(values | changed))


def read(folder: Path, plan: Plan, job: TrainJob, config: EngineConfig) -> Prediction | None:
    """What is said of a run in a folder that holds the plan."""
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    return read_prediction(folder, job, config)


def test_the_planned_run_has_the_figures_of_its_plan(plan: Plan, tmp_path: Path) -> None:
    """Step, memory, and an MFU that is the plan's own where all sequences are full."""
    said = read(tmp_path, plan, job(plan), config(plan))

    assert said is not None
    assert said.step_s == plan.choice.time.step_s
    assert said.memory_bytes == plan.choice.memory.allocated_bytes
    assert said.likely_mfu == pytest.approx(plan.speed.mfu.likely)


@pytest.mark.parametrize(
    ("changed_config", "changed_job"),
    [
        ({"micro_batch_size": 99}, {}),
        ({"zero_stage": 0}, {}),
        ({"precision": "fp32"}, {}),
        ({"settings": {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}}, {}),
        ({}, {"sequence_length": 77}),
    ],
    ids=["micro-batch", "zero-stage", "precision", "offload", "sequence-length"],
)
def test_nothing_is_said_of_another_run(
    changed_config: dict[str, Any], changed_job: dict[str, Any], plan: Plan, tmp_path: Path
) -> None:
    """A figure of another run would mislead."""
    said = read(tmp_path, plan, job(plan, **changed_job), config(plan, **changed_config))

    assert said is None


@pytest.mark.parametrize("text", [None, "{", "{}"], ids=["none", "cut", "empty"])
def test_a_plan_that_is_not_there_or_broken_stops_nothing(
    text: str | None, plan: Plan, tmp_path: Path
) -> None:
    """Training does not need it."""
    if text is not None:
        (tmp_path / "plan.json").write_text(text, encoding="utf-8")

    assert read_prediction(tmp_path, job(plan), config(plan)) is None


def test_the_summary_pairs_what_was_measured_with_what_was_predicted(
    plan: Plan, tmp_path: Path
) -> None:
    """Half the predicted speed is half the predicted MFU."""
    said = read(tmp_path, plan, job(plan), config(plan))
    assert said is not None
    measured = Measurement(
        zero_stage=2,
        world_size=16,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        tokens_per_step=said.tokens_per_step,
        warmup_steps=0,
        step_s=(2 * said.step_s.likely,) * 3,
        losses=(1.0,) * 3,
        memory=MeasuredMemory(allocated_bytes=0, reserved_bytes=0, device_bytes=0, host_bytes=0),
        sent_bytes=GIB,
        versions={},
        hardware={},
    )
    lines = summary(measured, 41 * GIB, said)

    assert lines[0] == "measured, and predicted by plan.json:"
    assert lines[1].split()[:4] == ["step", "time", "12.8", "s"]
    assert lines[1].endswith("predicted 6.4 s (5.76 s to 7.68 s)")
    assert lines[3].split() == [
        "MFU",
        f"{said.likely_mfu / 2:.1%}",
        "predicted",
        f"{said.likely_mfu:.1%}",
    ]
    assert lines[4].startswith("  allocated memory ")
    assert "42.0 GiB (40.0 GiB to 45.0 GiB)" in lines[4]
    assert len(summary(measured, 0, None)) == 5
