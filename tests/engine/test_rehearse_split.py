"""Rehearsals of models that ranks share, and of kinds that have ways of their own."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from planning import workload
from rehearsed import Cell, played

from dsforge import catalog
from dsforge.estimate.cut import stages
from dsforge.estimate.shard import rank_parameters
from dsforge.huggingface import tiny
from dsforge.layout import Layout

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

BASE = Cell(0, False, "bf16", 4, False, False, 4)
MODEL = BASE.model().model_copy(update={"vocab_size": 512, "layers": 4})
PHASES = ["init", "first_forward", "first_backward", "first_step"]


def whole_bytes(phases: dict[str, Any]) -> int:
    """Bytes of the parameters that a rank holds after init."""
    return phases["init"]["by_owner"]["parameter"]


def test_stages_of_a_pipeline_hold_the_model_between_them(apart: ProcessPoolExecutor) -> None:
    """Each weight is on one stage, after the host had them all."""
    alone = apart.submit(played, BASE.settings(), MODEL, 1).result()["phases"]
    settings = BASE.settings() | {"pipeline": {"stages": 2}}
    first, last = (apart.submit(played, settings, MODEL, 4, rank=rank).result() for rank in (0, 3))

    assert first["refused"] == last["refused"] == []
    assert list(first["phases"]) == [*PHASES, "forward", "backward", "step"]
    stages = [found["phases"] for found in (first, last)]
    assert sum(map(whole_bytes, stages)) == whole_bytes(alone)
    assert stages[0]["init"]["host_peak_bytes"] >= whole_bytes(alone)


def test_tensor_parallel_ranks_hold_their_part_of_each_matrix(apart: ProcessPoolExecutor) -> None:
    """All matrices but the embedding are halved on two ranks; norms are whole."""
    settings = BASE.settings() | {"tensor_parallel": {"autotp_size": 2}}
    found = apart.submit(played, settings, MODEL, 4, rank=1).result()
    alone = apart.submit(played, BASE.settings(), MODEL, 1).result()["phases"]

    assert found["refused"] == []
    whole = MODEL.vocab_size * MODEL.hidden_size + (2 * MODEL.layers + 1) * MODEL.hidden_size
    halved = whole_bytes(alone) // 2 - whole
    assert whole_bytes(found["phases"]) == 2 * (whole + halved // 2)


@pytest.mark.parametrize("tied", [False, True])
def test_three_axes_hold_what_the_estimate_says(apart: ProcessPoolExecutor, tied: bool) -> None:
    """Stages x tensor ranks x replicas under ZeRO-1: weights, fp32 states, to the last element."""
    model = MODEL.model_copy(update={"tied_embeddings": tied})
    layout = Layout(data_parallel_size=2, tensor_parallel_size=2, pipeline_parallel_size=2)
    split = {"pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2}}
    settings = BASE._replace(stage=1).settings() | split
    for rank in (0, layout.world_size - 1):
        found = apart.submit(played, settings, model, layout.world_size, rank=rank).result()
        stage = stages(model, 2)[layout.coordinates(rank).pipeline]
        held = rank_parameters(model, workload(), layout, stage, copies_ends=True)

        assert found["refused"] == []
        assert whole_bytes(found["phases"]) == 2 * held.total
        states = found["phases"]["step"]["by_owner"]["optimizer_state"]
        assert states == pytest.approx(3 * 4 * held.total / 2, abs=64)  # counts of steps, padding


def test_a_pipeline_with_zero_2_is_refused_by_the_engine(apart: ProcessPoolExecutor) -> None:
    """The engine's own words: its gradients and the pipeline's do not meet."""
    zero2 = BASE._replace(stage=2).settings() | {"pipeline": {"stages": 2}}
    (refusal,) = apart.submit(played, zero2, MODEL, 4).result()["refused"]

    assert "incompatible with pipeline" in refusal["message"]


@pytest.mark.parametrize("name", ["gemma-2-9b", "falcon-7b", "deepseek-v2-lite"])
def test_kinds_without_flash_attention_recompute(name: str, apart: ProcessPoolExecutor) -> None:
    """Gemma 2 takes eager attention; Falcon has one key head; DeepSeek's values are smaller."""
    found = apart.submit(played, BASE.settings(), tiny(catalog.model(name)), 4, True).result()

    assert found["refused"] == []
    assert "step" in found["phases"]
