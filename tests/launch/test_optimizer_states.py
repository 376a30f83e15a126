"""States of the optimizer under DeepSpeed: in 8 bits, in pages, or all in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]


@pytest.mark.parametrize(
    ("states", "stage"),
    [("8bit", 2), pytest.param("paged_32bit", 3, marks=pytest.mark.slow)],
    ids=["8bit-zero2", "paged-zero3"],
)
def test_moments_of_bitsandbytes_train_like_those_of_torch(
    states: str, stage: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """Two ranks lower the loss along torch's curve, stop and go on; the states are those asked."""
    import torch

    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    config = ds_config(stage, zero_allow_untested_optimizer=True)
    constant = {"schedule": "constant"}
    write_job(tmp_path / "usual", tiny_llama, config, **constant)
    write_job(tmp_path / "low", tiny_llama, config, optimizer_states=states, **constant)
    ranks.train(tmp_path / "usual", 2)
    ranks.train(tmp_path / "low", 2, "--steps", "4")
    again = ranks.train(tmp_path / "low", 2)
    usual, low = (runs.figures(tmp_path / n / "output", "loss") for n in ("usual", "low"))
    (file, *_) = (tmp_path / "low/output/checkpoints/global_step8").glob("*optim_states.pt")
    kinds = {
        tensor.dtype
        for tensor in _tensors(torch.load(file, weights_only=False))
        if tensor.numel() > 10_000
    }

    assert "resumed from" in again
    assert low[-1] < low[0] - 0.1
    assert low == pytest.approx(usual, abs=0.05)
    assert (torch.uint8 in kinds) == (states == "8bit")


@pytest.mark.parametrize(
    "stage", [3, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 2))]
)
def test_states_in_bf16_train_and_are_saved(stage: int, tiny_llama: Path, tmp_path: Path) -> None:
    """Two ranks lower the loss, stop and go on; no state of the checkpoint is in float32."""
    import torch

    half = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    config = ds_config(stage, bf16={"enabled": True, **half})
    write_job(tmp_path, tiny_llama, config, schedule="constant")
    ranks.train(tmp_path, 2, "--steps", "4")
    again = ranks.train(tmp_path, 2)
    losses = runs.figures(tmp_path / "output", "loss")
    (file, *_) = (tmp_path / "output/checkpoints/global_step8").glob("*optim_states.pt")
    large = [t for t in _tensors(torch.load(file, weights_only=False)) if t.numel() > 10_000]

    assert "resumed from" in again
    assert losses[-1] < losses[0] - 0.1
    assert {tensor.dtype for tensor in large} == {torch.bfloat16}
    assert len(large) >= 3  # master weights and two moments


def _tensors(held: object) -> list[Any]:
    """The tensors in nested mappings and sequences."""
    import torch

    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, dict):
        return [t for value in held.values() for t in _tensors(value)]
    return [t for value in held for t in _tensors(value)] if isinstance(held, list) else []
