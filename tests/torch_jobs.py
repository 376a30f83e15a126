"""Jobs of `dsforge train` on plain torch, as `tiny_job` makes those on DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_job import write_job

BLOCK: dict[str, Any] = {
    "precision": "fp32",
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "learning_rate": 3e-3,
}


def write_torch_job(folder: Path, model: Path, torch: dict[str, Any], **more: Any) -> Path:
    """A run folder with a `torch` block in train.yaml; global batch 8 and fp32 unless it says."""
    path = write_job(folder, model, {}, **more)
    (folder / "ds_config.json").unlink()
    return switch(path, torch)


def switch(path: Path, torch: dict[str, Any]) -> Path:
    """Have a run go on with other settings of torch, or with torch in place of DeepSpeed."""
    job = json.loads(path.read_text(encoding="utf-8"))
    job.pop("deepspeed_config", None)
    block = {**BLOCK, **torch}
    if "gradient_accumulation_steps" in torch:
        del block["global_batch_size"]
    path.write_text(json.dumps({**job, "torch": block}, indent=1), encoding="utf-8")
    return path
