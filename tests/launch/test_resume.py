"""A run goes on anywhere: on the same ranks bit for bit, on others and another ZeRO stage alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

from dsforge.checkpoints.verify.checkpoint import verify

pytestmark = [pytest.mark.launch, pytest.mark.engine]
CLOSE = 2e-4  # of a loss of about 5: other ranks add in another order, in fp32


def config(stage: int, **more: Any) -> dict[str, Any]:
    """A config for two ranks; its global batch of 12 suits one, two and three."""
    return {**ds_config(stage), "train_batch_size": 12, "gradient_accumulation_steps": 3, **more}


def job(folder: Path, model: Path, stage: int, **more: Any) -> Path:
    """A run of 8 steps with a checkpoint every second one, at a constant learning rate."""
    fields = {"steps": 8, "checkpoint_every": 2, "schedule": "constant", **more}
    return write_job(folder, model, config(stage), **fields).parent


def under(folder: Path, stage: int) -> None:
    """Have the run go on under another ZeRO stage; the batch sizes stay those for two ranks."""
    (folder / "ds_config.json").write_text(json.dumps(config(stage)), encoding="utf-8")


@pytest.fixture(scope="module")
def whole(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that was never disturbed."""
    folder = job(tmp_path_factory.mktemp("whole"), tiny_llama, 2)
    ranks.train(folder, 2, "--no-export")
    return runs.figures(folder / "output", "loss")


def test_from_two_ranks_to_one_and_another_stage(
    whole: list[float], tiny_llama: Path, tmp_path: Path
) -> None:
    """From ZeRO-2 on two ranks to ZeRO-3 on one: global batch, schedule and data order stay."""
    folder = job(tmp_path, tiny_llama, 2)
    ranks.train(folder, 2, "--no-export", "--steps", "4")
    under(folder, 3)
    said = ranks.train(folder, 1, "--no-export")

    assert "saved by 2 ranks under ZeRO-2; 2 x 6 samples on each rank" in said
    assert runs.figures(folder / "output", "loss") == pytest.approx(whole, abs=CLOSE)
    assert verify(folder / "output" / "checkpoints") == []


@pytest.mark.slow
def test_from_two_ranks_to_one_to_three_and_back(
    whole: list[float], tiny_llama: Path, tmp_path: Path
) -> None:
    """Each time another ZeRO stage takes over as well."""
    folder = job(tmp_path, tiny_llama, 2)
    ranks.train(folder, 2, "--no-export", "--steps", "2")
    under(folder, 0)
    one = ranks.train(folder, 1, "--no-export", "--steps", "4")
    under(folder, 1)
    three = ranks.train(folder, 3, "--no-export", "--steps", "6")
    under(folder, 3)
    two = ranks.train(folder, 2, "--no-export", "--steps", "8")

    assert "saved by 2 ranks under ZeRO-2; 2 x 6 samples on each rank" in one
    assert "saved by 1 ranks under ZeRO-0; 2 x 2 samples on each rank" in three
    assert "saved by 3 ranks under ZeRO-1; 2 x 3 samples on each rank" in two
    assert runs.figures(folder / "output", "loss") == pytest.approx(whole, abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("then", [0, 1, 2, 3])
def test_every_stage_takes_over_from_every_other(
    first: int, then: int, whole: list[float], tiny_llama: Path, tmp_path: Path
) -> None:
    """From two ranks to one, with the optimizer and the schedule."""
    folder = job(tmp_path, tiny_llama, first)
    ranks.train(folder, 2, "--no-export", "--steps", "4")
    under(folder, then)
    ranks.train(folder, 1, "--no-export")

    assert runs.figures(folder / "output", "loss") == pytest.approx(whole, abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_ranks_go_on_bit_for_bit(
    stage: int, precision: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """The losses after a resume are those of a run that never stopped, to the last digit."""
    more = {} if precision == "fp32" else {"bf16": {"enabled": True}}
    found = []
    for name, stops in (("whole", ()), ("parts", ("3", "5"))):
        folder = job(tmp_path / name, tiny_llama, stage)
        settings = config(stage, **more)
        (folder / "ds_config.json").write_text(json.dumps(settings), encoding="utf-8")
        for steps in (*stops, "8"):
            ranks.train(folder, 2, "--no-export", "--steps", steps)
        found.append(runs.figures(folder / "output", "loss"))

    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
def test_adapters_go_on_elsewhere(tiny_llama: Path, tmp_path: Path) -> None:
    """LoRA in bf16 from two ranks under ZeRO-3 to one under ZeRO-2: the loss curve goes on."""
    lora = {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0}}
    curves = []
    for name, stages in (("whole", [(3, 2, 8)]), ("parts", [(3, 2, 4), (2, 1, 8)])):
        folder = job(tmp_path / name, tiny_llama, 3, **lora)
        for stage, count, steps in stages:
            settings = config(stage, bf16={"enabled": True})
            (folder / "ds_config.json").write_text(json.dumps(settings), encoding="utf-8")
            ranks.train(folder, count, "--no-export", "--steps", str(steps))
        curves.append(runs.figures(folder / "output", "loss"))

    assert curves[0] == pytest.approx(curves[1], abs=1e-2)
