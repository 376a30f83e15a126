"""QLoRA under ZeRO-3: packed matrices sharded over ranks train what one rank trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

pytestmark = [
    pytest.mark.launch,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),  # in peft
]


def losses(
    folder: Path, model: Path, lora: dict[str, Any], *, stage: int, count: int
) -> list[float]:
    """Losses of eight steps on so many ranks, the same samples in each."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
    config = ds_config(stage, gradient_accumulation_steps=4 // count)
    more = {"lora": {"rank": 8, "alpha": 16, **lora}, "gradient_checkpointing": True}
    write_job(folder, model, config, **more)
    ranks.train(folder, count)
    assert (folder / "output/adapter/adapter_model.safetensors").is_file()
    return runs.figures(folder / "output", "loss")


@pytest.mark.parametrize(
    "lora",
    [
        {"bits": 4},
        pytest.param({"base": "fp4", "double_quant": False}, marks=pytest.mark.slow),
        pytest.param({"bits": 4, "quant_storage": "uint8"}, marks=pytest.mark.slow),
    ],
    ids=["nf4", "fp4 without double quantisation", "stored as uint8"],
)
def test_two_ranks_train_what_one_trains(
    lora: dict[str, Any], tiny_llama: Path, tmp_path: Path
) -> None:
    """The losses of two ranks that hold half of each packed matrix are those of one whole rank."""
    one = losses(tmp_path / "one", tiny_llama, lora, stage=0, count=1)
    two = losses(tmp_path / "two", tiny_llama, lora, stage=3, count=2)

    assert one[-1] < one[0] - 0.02
    assert two == pytest.approx(one, abs=1e-3)


@pytest.mark.slow
def test_matrices_in_int8_train(tiny_llama: Path, tmp_path: Path) -> None:
    """LLM.int8 under ZeRO-2, two ranks and one."""
    one = losses(tmp_path / "one", tiny_llama, {"bits": 8}, stage=0, count=1)
    two = losses(tmp_path / "two", tiny_llama, {"bits": 8}, stage=2, count=2)

    assert one[-1] < one[0] - 0.02
    assert two == pytest.approx(one, abs=1e-3)


def test_sharded_qlora_goes_on_from_adapters_alone(tiny_llama: Path, tmp_path: Path) -> None:
    """A checkpoint of two ranks holds no packed matrix, and the run goes on as if never stopped."""
    import torch

    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
    config = ds_config(3)
    more = {"lora": {"rank": 8, "alpha": 16, "bits": 4}, "gradient_checkpointing": True}
    for name in ("whole", "stopped"):
        write_job(tmp_path / name, tiny_llama, config, schedule="constant", **more)
    ranks.train(tmp_path / "whole", 2)
    ranks.train(tmp_path / "stopped", 2, "--steps", "4")
    said = ranks.train(tmp_path / "stopped", 2)
    whole, stopped = (
        runs.figures(tmp_path / name / "output", "loss") for name in ("whole", "stopped")
    )
    (folder,) = (tmp_path / "stopped/output/checkpoints").glob("global_step8")
    states = torch.load(next(folder.glob("*model_states.pt")), weights_only=False)

    assert "resumed from" in said
    assert stopped == pytest.approx(whole, abs=1e-4)
    assert not states["frozen_param_fragments"]
    assert all(".lora_" in name for shapes in states["param_shapes"] for name in shapes)
