"""A run that goes on after something changed: refused in one line, or said in one line each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, pairs, write_job, write_model

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STEPS, RATE = 2, 3e-3


@pytest.fixture(scope="module")
def saved(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2 of its 4 steps, with a checkpoint."""
    config = ds_config(0, gradient_accumulation_steps=4)
    config["optimizer"]["params"]["weight_decay"] = 0.01
    more = {"steps": 4, "checkpoint_every": STEPS, "schedule": "constant", "warmup_steps": 0}
    path = write_job(tmp_path_factory.mktemp("saved"), tiny_llama, config, **more)
    ranks.train(path.parent, 1, "--no-export")
    shutil.rmtree(path.parent / "output/checkpoints/global_step4")
    return path.parent


def changed(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """Change a JSON file of the run."""
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))


def job(**fields: Any) -> Callable[[Path], None]:
    """A change of train.yaml."""
    return lambda folder: changed(folder, "train.yaml", lambda value: value.update(fields))


def parameters(**fields: Any) -> Callable[[Path], None]:
    """A change of the optimizer's parameters."""
    return lambda folder: changed(
        folder, "ds_config.json", lambda value: value["optimizer"]["params"].update(fields)
    )


def config(**fields: Any) -> Callable[[Path], None]:
    """A change of ds_config.json."""
    return lambda folder: changed(folder, "ds_config.json", lambda value: value.update(fields))


def other_rows(folder: Path) -> None:
    """As many rows, of which one says something else."""
    rows = [json.dumps(row) for row in pairs(64)]
    rows[5] = rows[6]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")


def other_order(folder: Path) -> None:
    """The same rows the other way round."""
    rows = [json.dumps(row) for row in pairs(64)]
    (folder / "data.jsonl").write_text("\n".join(reversed(rows)) + "\n")


def other_model(folder: Path) -> None:
    """A model of other shapes."""
    job(model=str(write_model(folder / "wide", hidden_size=128)))(folder)


def other_base(folder: Path) -> None:
    """A model of the same shapes that computes something else."""
    old = Path(json.loads((folder / "train.yaml").read_text())["model"])
    shutil.copytree(old, folder / "base")
    changed(folder / "base", "config.json", lambda value: value.update(rms_norm_eps=0.1))
    job(model=str(folder / "base"))(folder)


LORA = {"rank": 4, "alpha": 8}
SGD = {"type": "SGD", "params": {"lr": RATE}}
ANOTHER = f"error: global_step{STEPS} belongs to another run:"
BF16 = {"bf16": {"enabled": True}}
Row = tuple[str, Callable[[Path], None], str]
REFUSED: list[Row] = [
    ("data", other_rows, f"{ANOTHER} data "),
    ("order", other_order, f"{ANOTHER} data "),
    ("length", job(sequence_length=64), f"{ANOTHER} sequence_length 96 -> 64"),
    ("packing", job(packing=True), "global_step2 was saved with samples 64, this run has"),
    ("batching", job(batching="by_length"), f"{ANOTHER} batching random -> by_length"),
    ("seed", job(seed=7), "global_step2 was saved with seed 42, this run has 7"),
    ("precision", config(**BF16), f"{ANOTHER} precision fp32 -> bf16"),
    ("model", other_model, f"{ANOTHER} model.head_dim 16 -> 32; model.hidden_size 64 -> 128"),
    ("base", other_base, f"{ANOTHER} model.rms_norm_eps 1e-06 -> 0.1"),
    ("lora", job(lora=LORA), f"{ANOTHER} lora.alpha unset -> 8; lora.bits unset -> 16"),
    ("optimizer", config(optimizer=SGD), f"{ANOTHER} optimizer adamw -> sgd"),
]
SAID: list[Row] = [
    ("rate", parameters(lr=0.3), "learning_rate 0.003 -> 0.3"),
    ("decay", parameters(weight_decay=0.5), "optimizer.params.weight_decay 0.01 -> 0.5"),
    ("schedule", job(schedule="linear"), "schedule constant -> linear"),
    ("fewer", job(steps=3), "steps 4 -> 3"),
    ("more", job(steps=5), "steps 4 -> 5"),
    ("past", job(steps=1), "step 2 is past the last step, 1: there is nothing to train"),
    ("clipping", config(gradient_clipping=0.1), "gradient_clipping 1 -> 0.1"),
    (
        "batch",
        config(train_batch_size=4, gradient_accumulation_steps=2),
        "train_batch_size 8 -> 4 is ignored: a resumed run keeps its global batch",
    ),
]


def parameters_of(rows: list[Row], *quick: str) -> list[Any]:
    """One parameter for each row; those that are not quick run with `make test-all`."""
    marks = [() if row[0] in quick else (pytest.mark.slow,) for row in rows]
    return [
        pytest.param(*row[1:], id=row[0], marks=own) for row, own in zip(rows, marks, strict=True)
    ]


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the run to go on with."""
    return shutil.copytree(saved, tmp_path / "run")


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
@pytest.mark.parametrize(("change", "said"), parameters_of(REFUSED, "data", "precision"))
def test_another_run_is_refused(change: Callable[[Path], None], said: str, folder: Path) -> None:
    """One line names what differs, the next the way out; the checkpoint stays."""
    change(folder)
    codes, text = ranks.ended(folder, 1, "--no-export")

    assert codes == [1], text[-3000:]
    assert said in text
    assert "--overwrite" in text
    assert "Traceback" not in text
    assert (folder / "output/checkpoints/global_step2/dsforge.json").is_file()


@pytest.mark.parametrize(("change", "said"), parameters_of(SAID, "rate"))
def test_a_changed_setting_is_said(change: Callable[[Path], None], said: str, folder: Path) -> None:
    """The run goes on, and a line names the old value and the new one."""
    change(folder)
    text = ranks.train(folder, 1, "--no-export")

    assert said in text.splitlines()
    assert "resumed from" in text


def test_a_changed_rate_takes_effect_at_once(folder: Path) -> None:
    """The first step after the resume has the new learning rate, not that of the checkpoint."""
    parameters(lr=RATE / 10)(folder)
    ranks.train(folder, 1, "--no-export")

    rates = runs.figures(folder / "output", "learning_rate")
    assert rates == pytest.approx([RATE, RATE, RATE / 10, RATE / 10])


def test_the_same_run_says_nothing_of_changes(folder: Path) -> None:
    """A resume without a change has one line: where it goes on."""
    text = ranks.train(folder, 1, "--no-export")

    assert " -> " not in text
    assert "is not taken" not in text


def test_a_note_without_these_fields_is_resumed(folder: Path) -> None:
    """A checkpoint of an older dsforge goes on, and a line says what was not compared."""
    note = folder / "output/checkpoints/global_step2"
    changed(note, "dsforge.json", lambda value: value.pop("run"))
    text = ranks.train(folder, 1, "--no-export")

    assert "the checkpoint was written by an older dsforge" in text
    assert len(runs.figures(folder / "output", "loss")) == 4
