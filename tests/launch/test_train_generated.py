"""What `dsforge gen` writes for CPU ranks trains as it is: offload, NVMe, torchrun, Parquet."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import pairs, write_model

pytestmark = [pytest.mark.launch, pytest.mark.engine]


def generated(folder: Path, model: Path, data: dict[str, Any], precision: str) -> Path:
    """The run folder that `dsforge gen` writes for two CPU ranks with a disk for NVMe offload."""
    spec = {
        "model": str(model),
        "cluster": {
            "nodes": 1,
            "gpus_per_node": 2,
            "gpu": "cpu",
            "cpu_cores": 2,
            "nvme": {
                "path": str(folder / "nvme"),
                "size_gib": 10,
                "read_gb_s": 2,
                "write_gb_s": 1,
            },
        },
        "workload": {
            "sequence_length": 96,
            "global_batch_size": 8,
            "tokens": 96 * 8 * 6,
            "learning_rate": 3e-3,
            "data": data,
            "precision": precision,
        },
        "strategy": {"zero_stage": 1, "micro_batch_size": 2, "recompute": "full"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(json.dumps(spec), encoding="utf-8")
    gen = [str(runs.BIN / "dsforge"), "gen", "--spec", "spec.yaml", "--out", "run"]
    subprocess.run(gen, cwd=folder, check=True, timeout=60)
    return folder / "run"


def rows(path: Path, shape: str) -> Path:
    """Training rows in a file, as `prompt` with `completion` or as `messages`."""
    found: list[dict[str, Any]] = list(pairs(64))
    if shape == "messages":
        found = [
            {
                "messages": [
                    {"role": "user", "content": row["prompt"]},
                    {"role": "assistant", "content": row["completion"]},
                ]
            }
            for row in found
        ]
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(found), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated run in fp32, started once under the chosen ZeRO-1."""
    home = tmp_path_factory.mktemp("generated")
    data = rows(home / "data.parquet", "prompt")
    run = generated(home, tiny_llama, {"train": str(data)}, "fp32")
    runs.succeeded(runs.deepspeed("train.yaml"), run)
    return run


def trained(folder: Path, name: str) -> Path:
    """The output of the generated job with another of the generated configs."""
    job = (folder / "train.yaml").read_text(encoding="utf-8")
    chosen = job.replace("deepspeed/ds_config.json", f"deepspeed/{name}.json")
    (folder / f"{name}.yaml").write_text(chosen, encoding="utf-8")
    ranks.train(folder, 2, "--output", name, job=f"{name}.yaml")
    return folder / name


@pytest.mark.parametrize("name", ["zero2_offload", "zero3_offload"])
def test_every_offload_config_gives_the_same_losses(folder: Path, name: str) -> None:
    """Optimizer and parameters on the host: the losses stay within 1e-2 of ZeRO-1."""
    output = trained(folder, name)

    plain = runs.figures(folder / "output", "loss")
    assert len(plain) == 6
    assert plain[-1] < plain[0] - 0.2
    assert runs.figures(output, "loss") == pytest.approx(plain, abs=1e-2)
    assert (output / "model/model.safetensors").is_file()


def test_the_model_card_compares_the_run_with_its_plan(folder: Path) -> None:
    """What the plan beside train.yaml says of time and memory, and what was measured."""
    card = (folder / "output/model/README.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith("| step time")]

    assert "Predicted by the plan (80 % interval)" in card
    assert "`data.parquet`, 64 samples" in card
    assert len(rows) == 1
    assert " to " in rows[0][1]


@pytest.mark.slow
def test_parameters_and_optimizer_on_disk_give_the_same_losses(tmp_path: Path) -> None:
    """ZeRO-3 on NVMe, its tensors large enough to leave memory: as ZeRO-1, and exported."""
    data = rows(tmp_path / "data.parquet", "prompt")
    model = write_model(tmp_path / "model", hidden_size=768)
    run = generated(tmp_path, model, {"train": str(data)}, "fp32")
    plain, disk = trained(run, "zero1"), trained(run, "zero3_nvme")
    swapped = {path.parts[-3] for path in (tmp_path / "nvme").rglob("*.swp")}

    expected = runs.figures(plain, "loss")
    assert runs.figures(disk, "loss") == pytest.approx(expected, abs=1e-2)
    assert (disk / "model/model.safetensors").is_file()
    assert swapped == {"float32params", "optimizer"}


def test_the_torchrun_script_trains_and_validates(tiny_llama: Path, tmp_path: Path) -> None:
    """`launch/torchrun.sh` in bf16 with recomputation, chat messages and validation samples."""
    data = rows(tmp_path / "data.jsonl", "messages")
    split = {"train": str(data), "validation_fraction": 0.2}
    run = generated(tmp_path, tiny_llama, split, "bf16")
    port = str(runs.free_port())
    done = runs.succeeded(["bash", "launch/torchrun.sh"], run, MASTER_PORT=port)

    curve = runs.figures(run / "output", "loss")
    assert "gradient_checkpointing: true" in (run / "train.yaml").read_text(encoding="utf-8")
    assert curve[-1] < curve[0] - 0.2
    assert runs.figures(run / "output", "validation_loss")[0] < curve[0]
    assert done.stderr.count("step 6/6") == 1
    assert "measured, and predicted by plan.json:" in done.stderr
