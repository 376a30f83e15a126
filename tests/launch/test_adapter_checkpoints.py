"""Checkpoints of LoRA hold adapters alone: their size, resume, verification, conversion, export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job, write_model

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.inspect import inspect
from dsforge.checkpoints.verify.checkpoint import Wanted, verify
from dsforge.train.checkpoints.universal_conversion import convert

pytestmark = [
    pytest.mark.launch,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),  # in peft
]
LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
BATCH = {"train_batch_size": 12, "gradient_accumulation_steps": 3}
CLOSE = 2e-4  # of a loss of about 5, as in test_resume


def job(folder: Path, model: Path, stage: int, **more: Any) -> Path:
    """A run of 8 steps with adapters, a checkpoint every second one, a constant learning rate."""
    fields = {"steps": 8, "checkpoint_every": 2, "keep_checkpoints": 9, "schedule": "constant"}
    fields |= {"lora": LORA, **more}
    return write_job(folder, model, ds_config(stage, **BATCH), **fields).parent


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    return find_checkpoint(folder / "output/checkpoints").path


def size(folder: Path) -> int:
    """Bytes of the rank files of the newest checkpoint of a run."""
    return sum(file.stat().st_size for file in newest(folder).glob("*.pt"))


@pytest.mark.parametrize(
    "stage", [3, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 2))]
)
def test_the_frozen_weights_are_saved_only_where_no_file_has_them(
    stage: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """Random weights are all saved; those of a folder are not, which saves at least their bytes."""
    drawn = job(tmp_path / "random", tiny_llama, stage, random_weights=True, steps=2)
    read = job(tmp_path / "read", tiny_llama, stage, steps=2)
    said = [ranks.train(folder, 2, "--no-export") for folder in (drawn, read)]
    weights = sum(file.stat().st_size for file in tiny_llama.glob("*.safetensors"))
    tensors = inspect(newest(read)).tensors

    assert size(drawn) - size(read) > 0.95 * weights
    assert size(read) < 0.75 * size(drawn)
    assert tensors
    assert all(tensor.trained for tensor in tensors)
    for text, folder in zip(said, (drawn, read), strict=True):
        predicted = float(text.split("(predicted ")[1].split()[0])
        assert predicted == pytest.approx(size(folder) / 1024, rel=0.5), text


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ((3, 2), (2, 1), {}),
        ((0, 2), (3, 1), {"modules_to_save": ["head"]}),
        pytest.param((2, 2), (2, 2), {}, marks=pytest.mark.slow),
        pytest.param((1, 2), (0, 1), {"modules_to_save": ["head"]}, marks=pytest.mark.slow),
    ],
    ids=["zero3 to zero2", "zero0 to zero3 with a head", "the same", "zero1 to zero0 with a head"],
)
def test_a_run_goes_on_and_its_checkpoints_are_used(
    before: tuple[int, int],
    after: tuple[int, int],
    more: dict[str, Any],
    tiny_llama: Path,
    tmp_path: Path,
) -> None:
    """On other ranks and another stage, with the losses of a run that never stopped.

    Both checkpoints are good, fit the model and no other one; what is exported is what was trained.
    """
    from safetensors.torch import load_file

    from dsforge.train.model.source import model_shapes

    lora = {"lora": {**LORA, **more}}
    whole, parts = (job(tmp_path / n, tiny_llama, before[0], **lora) for n in ("whole", "parts"))
    ranks.train(whole, before[1], "--no-export")
    ranks.train(parts, before[1], "--no-export", "--steps", "4")
    first = newest(parts)
    (parts / "ds_config.json").write_text(json.dumps(ds_config(after[0], **BATCH)))
    said = ranks.train(parts, after[1])
    curves = [runs.figures(folder / "output", "loss") for folder in (whole, parts)]
    right = Wanted(shapes=model_shapes(str(tiny_llama)))
    wrong = Wanted(shapes=dict.fromkeys(right.shapes, (5, 7)))
    exported = export(find_checkpoint(newest(parts)), tmp_path / "exported", lora_alpha=8).folder
    held = load_file(exported / "adapter_model.safetensors")
    trained = load_file(parts / "output/adapter/adapter_model.safetensors")

    assert "resumed from" in said
    assert curves[1] == pytest.approx(curves[0], abs=CLOSE)
    for path in (first, newest(parts)):
        assert verify(path, wanted=right) == []
        assert [finding.rule for finding in verify(path, wanted=wrong)] == ["shape-other"]
    assert held.keys() == trained.keys()
    assert all((held[name] == trained[name]).all() for name in held)


@pytest.mark.parametrize("stage", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_deepspeed_loads_a_conversion(stage: int, tiny_llama: Path, tmp_path: Path) -> None:
    """The universal form of adapters: every parameter that trains, each with its states."""
    run = job(tmp_path / "run", tiny_llama, stage, steps=4)
    ranks.train(run, 2, "--no-export")
    written = convert(find_checkpoint(newest(run)), tmp_path / "universal")
    names = {tensor.name for tensor in inspect(newest(run)).tensors}

    assert verify(written) == []
    assert {folder.name for folder in (written / "zero").iterdir() if folder.is_dir()} == names
    assert inspect(written).states == ("exp_avg", "exp_avg_sq", "fp32", "step")


def test_another_base_under_the_same_name_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    """The adapters belong to the weights that they were trained on, and the message says so."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    run = job(tmp_path / "run", model, 0)
    ranks.train(run, 2, "--no-export", "--steps", "2")
    (model / "model.safetensors").unlink()
    _other_weights(model)
    codes, said = ranks.ended(run, 2)
    shutil.copytree(tiny_llama, model, dirs_exist_ok=True)
    again = ranks.train(run, 2, "--no-export", "--steps", "4")

    assert codes == [1, 1]
    assert "belongs to another run: base weights " in said
    assert "use the model of the checkpoint" in said
    assert "resumed from" in again


def _other_weights(folder: Path) -> None:
    """A model of the same shapes with other numbers in all its weights."""
    from safetensors.torch import load_file, save_file

    write_model(folder)
    tensors = load_file(folder / "model.safetensors")
    changed = {name: tensor + 0.5 for name, tensor in tensors.items()}
    save_file(changed, folder / "model.safetensors", {"format": "pt"})
