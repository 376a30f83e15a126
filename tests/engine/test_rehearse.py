"""The rehearsal itself: what it reports, what the engine refuses, what recomputation saves."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from rehearsed import Cell, played

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

BASE = Cell(2, False, "bf16", 1, False, False, 8)


def test_every_phase_is_told_with_its_owners(apart: ProcessPoolExecutor) -> None:
    """Peaks are no less than what stays, and owners add up to both."""
    found = apart.submit(played, BASE.settings(), BASE.model(), 8).result()
    phases = found["phases"]

    assert list(phases) == [
        *("init", "first_forward", "first_backward", "first_step"),
        *("forward", "backward", "step"),
    ]
    assert found["refused"] == []
    for phase in phases.values():
        assert phase["peak_bytes"] >= phase["resident_bytes"] > 0
        assert sum(phase["by_owner"].values()) == phase["resident_bytes"]
        assert sum(phase["peak_by_owner"].values()) == phase["peak_bytes"]


def test_recomputation_keeps_fewer_activations(apart: ProcessPoolExecutor) -> None:
    """After the forward, most activations of the layers are gone."""
    kept, dropped = (
        apart.submit(played, BASE.settings(), BASE.model(), 8, recompute).result()["phases"]
        for recompute in (False, True)
    )
    before, after = (p["forward"]["by_owner"]["activation"] for p in (kept, dropped))

    assert after < 0.6 * before
    assert dropped["step"]["resident_bytes"] == kept["step"]["resident_bytes"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "batch arithmetic": ({"train_batch_size": 7}, "batch"),
    "both precisions": ({"fp16": {"enabled": True}}, "fp16"),
    "ZeRO 4": ({"zero_optimization": {"stage": 4}}, "stage"),
    "a bucket as text": ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "x"}}, "bucket"),
    "an unknown key": ({"zero_optimization": {"stage": 2, "bucket": 1}}, "bucket"),
    "an unknown optimizer": ({"optimizer": {"type": "Nonesuch", "params": {}}}, "Nonesuch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_told(name: str, apart: ProcessPoolExecutor) -> None:
    """The engine's own words and where it said them, instead of a traceback."""
    change, word = REFUSED[name]
    found = apart.submit(played, BASE.settings() | change, BASE.model(), 8).result()
    (refusal,) = found["refused"]

    assert word.lower() in refusal["message"].lower()
    assert refusal["source"].startswith("deepspeed/")
    assert refusal["phase"] == "init"
