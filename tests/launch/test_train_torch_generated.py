"""What `dsforge gen --for torch` writes trains as it is, on CPU ranks through launch/torchrun.sh.

What was planned is what `dsforge train` reads: sharding, sizes of ranks and batches.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import runs
from tiny_job import pairs

from dsforge.plan import Plan
from dsforge.reading.job import read_job
from dsforge.train.engines.plain_torch.config import read_config

pytestmark = [pytest.mark.launch, pytest.mark.engine]

# What is fixed -> strategy and sharding that train.yaml must then name.
PLANNED: dict[str, tuple[dict[str, Any], str, str]] = {
    "chosen": ({}, "", ""),
    "ddp": ({"zero_stage": 0}, "ddp", "full"),
    "zero1": ({"zero_stage": 1}, "zero1", "full"),
    "gradients": ({"zero_stage": 2}, "fsdp2", "gradients"),
    "full": ({"zero_stage": 3, "recompute": "full"}, "fsdp2", "full"),
    "offload": ({"zero_stage": 3, "offload_parameters": "cpu"}, "fsdp2", "full"),
    "tensor": ({"tensor_parallel_size": 2}, "fsdp2", ""),
    "pipeline": ({"pipeline_parallel_size": 2}, "fsdp2", ""),
}


def generated(folder: Path, model: Path, fixed: dict[str, Any]) -> Path:
    """The run folder for two CPU ranks."""
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in pairs(64)), encoding="utf-8")
    spec = {
        "model": str(model),
        "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "cpu", "cpu_cores": 2},
        "workload": {
            "sequence_length": 96,
            "global_batch_size": 8,
            "tokens": 96 * 8 * 4,
            "learning_rate": 3e-3,
            "data": {"train": str(data)},
        },
        "strategy": {"micro_batch_size": 2, **fixed},
    }
    (folder / "spec.yaml").write_text(json.dumps(spec), encoding="utf-8")
    gen = [str(runs.BIN / "dsforge"), "gen", "--spec", "spec.yaml", "--for", "torch"]
    subprocess.run([*gen, "--out", "run"], cwd=folder, check=True, timeout=60)
    return folder / "run"


@pytest.mark.parametrize(
    "name",
    [n if n in ("chosen", "tensor") else pytest.param(n, marks=pytest.mark.slow) for n in PLANNED],
)
def test_a_written_folder_trains_as_planned(name: str, tiny_llama: Path, tmp_path: Path) -> None:
    """Four steps by the script; the engine's sizes are those of the plan, and the loss falls."""
    fixed, strategy, sharding = PLANNED[name]
    run = generated(tmp_path, tiny_llama, fixed)
    plan = Plan.model_validate_json((run / "plan.json").read_text(encoding="utf-8"))
    job = read_job(run / "train.yaml")
    read = read_config(job, run, 2, None)
    assert job.torch is not None
    assert job.torch.strategy == (strategy or job.torch.strategy)
    assert job.torch.sharding == (sharding or job.torch.sharding)
    assert job.torch.cpu_offload == (plan.strategy.offload_optimizer == "cpu")
    assert read.mode.layout == plan.strategy.layout
    assert read.zero_stage == plan.strategy.zero_stage
    assert read.micro_batch_size == plan.strategy.micro_batch_size
    assert read.gradient_accumulation_steps == plan.strategy.gradient_accumulation_steps
    assert not (run / "deepspeed").exists()
    assert not (run / "launch/deepspeed.sh").exists()

    port = str(runs.free_port())
    done = runs.succeeded(["bash", "launch/torchrun.sh"], run, MASTER_PORT=port)

    curve = runs.figures(run / "output", "loss")
    assert len(curve) == 4
    assert curve[-1] < curve[0]
    assert "measured, and predicted by plan.json:" in done.stderr
    assert (run / "output/model/model.safetensors").is_file()
