"""What `gen --for` writes for trainers trains a tiny model on two CPU ranks, as it is."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import runs
from tiny_job import pairs, write_model

import dsforge

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STEPS = 12
FEWEST = 0.15  # by which the loss must fall in these steps; random weights start at ln 384 = 5.95


def trained(program: str, folder: Path, **fixed: Any) -> list[float]:
    """Losses of the run that the program's run.sh starts."""
    rows = [{"text": f"{row['prompt']} {row['completion']}"} for row in pairs(64)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows * 3), encoding="utf-8")
    work = {
        "sequence_length": 64,
        "global_batch_size": 8,
        "tokens": 64 * 8 * STEPS,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "data": {"train": str(data)},
        **fixed.pop("work", {}),
    }
    cluster = {"gpu": "cpu", "nodes": 1, "gpus_per_node": 2, "cpu_cores": 2}
    model = write_model(folder / "model")
    strategy = {"micro_batch_size": 2, **fixed}
    out = folder / "run"
    dsforge.gen(str(model), cluster, work, out=out, strategy=strategy, targets=(program,))

    script = str(out / "for" / program / "run.sh")
    variables = {"HF_HUB_OFFLINE": "1", "MASTER_PORT": str(runs.free_port())}
    done = runs.finished([script], folder, **variables)

    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"['\"]loss['\"]: ['\"]?([\d.]+)", done.stdout + done.stderr)
    return [float(loss) for loss in found]


def check_falls(losses: list[float]) -> None:
    """Every step has a loss, and the last ones are smaller than the first."""
    assert len(losses) >= STEPS
    assert losses[0] == pytest.approx(5.95, abs=0.3)
    assert sum(losses[-3:]) / 3 < losses[0] - FEWEST


@pytest.mark.parametrize(
    "fixed",
    [
        pytest.param({"trainer": "deepspeed", "zero_stage": 2}, marks=pytest.mark.slow),
        {"trainer": "deepspeed", "zero_stage": 3, "recompute": "full"},
        {"trainer": "fsdp", "zero_stage": 3},
        pytest.param(
            {"trainer": "fsdp", "zero_stage": 2, "recompute": "full"}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_the_trainer_of_transformers_trains(fixed: dict[str, Any], tmp_path: Path) -> None:
    """DeepSpeed and FSDP2, with the script and the arguments that were written."""
    check_falls(trained("transformers", tmp_path, **fixed))


@pytest.mark.slow
def test_the_trainer_of_transformers_trains_adapters(tmp_path: Path) -> None:
    """LoRA: the loss of random weights falls little, but it falls."""
    work = {"method": "lora", "learning_rate": 3e-2}
    losses = trained("transformers", tmp_path, zero_stage=1, work=work)

    assert len(losses) >= STEPS
    assert sum(losses[-3:]) / 3 < losses[0]


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
@pytest.mark.parametrize("engine", ["deepspeed", "fsdp"])
def test_trl_trains(engine: str, tmp_path: Path) -> None:
    """TRL's sft script with the config that was written."""
    check_falls(trained("trl", tmp_path, trainer=engine, zero_stage=3))


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_lightning_trains(tmp_path: Path) -> None:
    """ModelParallelStrategy, the one that runs without CUDA; its progress bar shows the losses."""
    trained("lightning", tmp_path, trainer="fsdp", zero_stage=3, tensor_parallel_size=2)

    assert list((tmp_path / "run/output").rglob("*.ckpt"))
