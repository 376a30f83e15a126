"""Decoders of newer architectures: two ranks under ZeRO train what one rank trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job
from tiny_kinds import write_tiny

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STEPS = 8
FIRST = ("apertus", 2)
KINDS = ("apertus", "exaone_moe", "glm4_moe_lite", "hunyuan_v1_moe", "minicpm3", "solar_open")


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        FIRST,
        *(
            pytest.param(kind, stage, marks=pytest.mark.slow)
            for kind in KINDS
            for stage in (2, 3)
            if (kind, stage) != FIRST
        ),
    ],
)
def test_two_ranks_train_what_one_trains(kind: str, stage: int, tmp_path: Path) -> None:
    """Losses under ZeRO are those of one rank."""
    model = write_tiny(tmp_path / "model", kind)
    one = ds_config(0, gradient_accumulation_steps=4)
    for name, config, count in (("one", one, 1), ("two", ds_config(stage), 2)):
        write_job(tmp_path / name, model, config)
        ranks.train(tmp_path / name, count)
    alone, both = (runs.figures(tmp_path / name / "output", "loss") for name in ("one", "two"))

    assert len(both) == STEPS
    assert both == pytest.approx(alone, abs=1e-3)
    assert alone[-1] < alone[0]
