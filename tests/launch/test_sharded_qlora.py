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
