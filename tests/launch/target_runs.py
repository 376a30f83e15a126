"""Run folders with the files of targets, for ranks on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import runs
import tiny_job

import dsforge

STEPS = 6
WORKLOAD = {
    "sequence_length": 96,
    "global_batch_size": 8,
    "precision": "fp32",
    "learning_rate": 3e-3,
}
CLUSTER = {"gpu": "cpu", "host_memory_gib": 8, "cpu_cores": 2, "inter_node": "10gbe"}


# Ways to train, by name: what is fixed of the strategy.
ENGINES: dict[str, dict[str, Any]] = {
    "deepspeed": {"zero_stage": 2, "back_end": "deepspeed"},
    "ddp": {"program": "torch", "zero_stage": 0},
    "zero1": {"program": "torch", "zero_stage": 1},
    "fsdp2": {"program": "torch", "zero_stage": 3},
    "tensor": {"program": "torch", "tensor_parallel_size": 2},
    "pipeline": {"program": "torch", "pipeline_parallel_size": 2},
}


def generated(
    folder: Path,
    model: Path,
    *targets: str,
    steps: int = STEPS,
    engine: str = "deepspeed",
    **cluster: Any,
) -> Path:
    """A run folder for a cluster of CPU ranks, with the files of some targets."""
    folder.mkdir(parents=True, exist_ok=True)
    data, run = folder / "data.jsonl", folder / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in tiny_job.pairs(64)))
    dsforge.gen(
        str(model),
        {"nodes": 1, "gpus_per_node": 2, **CLUSTER, **cluster},
        workload={**WORKLOAD, "data": {"train": str(data)}},
        strategy=ENGINES[engine],
        out=run,
        targets=targets,
    )
    job = run / "train.yaml"
    text, count = re.subn(r"(?m)^steps: null", f"steps: {steps}", job.read_text())
    text, more = re.subn(r"(?m)^checkpoint_every: \S+", "checkpoint_every: 2", text)
    assert (count, more) == (1, 1)
    job.write_text(text)
    return run


def slow(*names: str) -> list[Any]:
    """Cases of the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def is_whole(run: Path, ranks: int, steps: int = STEPS) -> None:
    """Fail where the run did not train all its steps, as one job of so many ranks."""
    measured = json.loads((run / "output/measurement.json").read_text())
    assert measured["world_size"] == ranks
    assert len(runs.figures(run / "output", "loss")) == steps
