"""Compiled layers train as plain ones do; what cannot be compiled is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]


@pytest.mark.slow
def test_compiled_layers_give_the_same_losses(tiny_llama: Path, tmp_path: Path) -> None:
    """One rank, ZeRO-2, with recomputation: the curve of the plain run."""
    losses = {}
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        config = ds_config(2, gradient_accumulation_steps=4)
        more = {"steps": 4, "compile": compiled, "gradient_checkpointing": True}
        write_job(folder, tiny_llama, config, **more)
        runs.succeeded(runs.alone("train.yaml", "--no-export"), folder)
        losses[compiled] = runs.figures(folder / "output", "loss")

    assert len(losses[True]) == 4
    assert losses[True] == pytest.approx(losses[False], abs=1e-4)


def test_zero_3_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    """Its hooks gather weights inside the layers."""
    write_job(tmp_path, tiny_llama, ds_config(3, gradient_accumulation_steps=4), compile=True)
    done = runs.finished(runs.alone("train.yaml"), tmp_path)

    assert done.returncode == 1
    assert "[compile-stage]" in done.stderr
    assert not (tmp_path / "output").exists()
