"""Several groups of parameters, frozen ones, a buffer that comes first: nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.inspect import inspect
from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.checkpoints.zero.parameters import read_saved
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.reshape import fill_buffers
from dsforge.train.checkpoints.universal_conversion import convert

PROGRAM = Path(__file__).with_name("grouped.py")
WEIGHTS = {"first": (4, 3), "frozen": (4, 3), "second": (4, 3), "norm": (3,)}


def unsharded(folder: Path, groups: list[list[int]], *, masters: bool, frozen: bool) -> Path:
    """A checkpoint without ZeRO as DeepSpeed writes it: states are numbered, not named."""
    dtype = torch.bfloat16 if masters else torch.float32
    torch.manual_seed(3)
    module: dict[str, Any] = {"places": torch.arange(5)}
    module |= {name: torch.randn(shape).to(dtype) for name, shape in WEIGHTS.items()}
    names = [name for name in WEIGHTS if not (frozen and name == "frozen")]
    numbers = [number for group in groups for number in group]
    state = {
        index: {
            "step": torch.tensor(2.0),
            **{key: torch.randn(WEIGHTS[names[n]]) for key in ("exp_avg", "exp_avg_sq")},
        }
        for index, n in enumerate(numbers)
    }
    counts = iter(range(len(numbers)))
    settings = [{"lr": 0.1, "params": [next(counts) for _ in group]} for group in groups]
    optimizer: dict[str, Any] = {"state": state, "param_groups": settings}
    if masters:
        own = [[module[names[n]].float() for n in group] for group in groups]
        optimizer = {"optimizer_state_dict": optimizer, "fp32_groups": own}
    folder.mkdir()
    values = {"module": module, "buffer_names": ["places"], "optimizer": optimizer}
    more = {"global_steps": 2, "skipped_steps": 0, "dp_world_size": 1, "ds_version": "0.19.8"}
    torch.save({**values, **more, "lr_scheduler": None}, folder / "mp_rank_00_model_states.pt")
    return folder


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize(
    ("groups", "frozen"),
    [
        *(([[0, 1, 2, 3]], False), ([[0, 1], [2, 3]], False), ([[1, 0], [2, 3]], False)),
        *(([[0, 1, 2]], True), ([[3, 2, 1, 0]], False), ([[0, 1], [2]], True)),
    ],
)
def test_states_are_not_guessed(
    groups: list[list[int]], frozen: bool, masters: bool, tmp_path: Path
) -> None:
    """Weights come out of each; states where it is told whose they are, else a word."""
    run = unsharded(tmp_path / "run", groups, masters=masters, frozen=frozen)
    module = torch.load(run / "mp_rank_00_model_states.pt", weights_only=True)["module"]

    assert verify(run) == []
    assert inspect(run).trained_in == ("bfloat16" if masters else "float32")
    export(find_checkpoint(run), tmp_path / "weights")
    written = load_file(tmp_path / "weights/model.safetensors")
    assert all(torch.equal(written[name], weight) for name, weight in module.items())
    if groups == [[0, 1, 2, 3]]:
        assert convert(find_checkpoint(run), tmp_path / "universal").is_dir()
        return
    with pytest.raises(DsforgeError, match="no file maps optimizer states"):
        convert(find_checkpoint(run), tmp_path / "universal")
    assert not (tmp_path / "universal").exists()


def test_buffers_go_on_other_ranks(tmp_path: Path) -> None:
    """A buffer that the checkpoint holds replaces that of the model, in the type of the model."""
    run = unsharded(tmp_path / "run", [[0, 1, 2, 3]], masters=False, frozen=False)
    model = torch.nn.Module()
    model.register_buffer("places", torch.zeros(5))
    model.register_buffer("others", torch.ones(2), persistent=False)
    fill_buffers(model, read_saved(find_checkpoint(run)))

    assert model.get_buffer("places").tolist() == [0, 1, 2, 3, 4]
    assert model.get_buffer("others").tolist() == [1, 1]


@pytest.mark.launch
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_group_is_loaded(stage: int, tmp_path: Path) -> None:
    """DeepSpeed takes the second group's weights, states and settings from what `convert` wrote."""
    here = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(stage), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **here, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "all the same" in done.stdout
