"""Models with recurrent layers: two ranks train what one rank trains; what they lack is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job
from tiny_kinds import write_tiny

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STEPS = 8
KINDS = (
    *("qwen3_5_text", "granitemoehybrid", "nemotron_h", "falcon_h1", "jamba", "lfm2", "mamba2"),
    "lfm2_moe",
)


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("qwen3_5_text", 3),
        *(
            pytest.param(kind, stage, marks=pytest.mark.slow)
            for kind in KINDS
            for stage in (2, 3)
            if (kind, stage) != ("qwen3_5_text", 3)
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
    assert alone[-1] < alone[0] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_5_text", "mamba2"])
def test_adapters_train_as_on_one_rank(kind: str, tmp_path: Path) -> None:
    """LoRA under ZeRO stage 3, on all matrices that may carry adapters."""
    model = write_tiny(tmp_path / "model", kind)
    one = ds_config(0, gradient_accumulation_steps=4)
    for name, config, count in (("one", one, 1), ("two", ds_config(3), 2)):
        write_job(tmp_path / name, model, config, lora={"rank": 8, "alpha": 32})
        ranks.train(tmp_path / name, count)
    alone, both = (runs.figures(tmp_path / name / "output", "loss") for name in ("one", "two"))

    assert both == pytest.approx(alone, abs=1e-3)
    assert alone[-1] < alone[0]


@pytest.mark.parametrize(
    ("more", "settings", "words"),
    [
        ({"packing": True}, {}, "packing=true cannot be combined with the recurrent layers"),
        (
            {},
            {"tensor_parallel": {"autotp_size": 2}, "gradient_accumulation_steps": 4},
            "tensor parallelism (2) cannot be combined with the recurrent layers",
        ),
    ],
)
def test_what_recurrent_layers_do_not_go_with_is_refused(
    more: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """In a line, before the ranks meet."""
    model = write_tiny(tmp_path / "model", "qwen3_5_text")
    write_job(tmp_path / "job", model, ds_config(0, **settings), **more)
    codes, text = ranks.ended(tmp_path / "job", 2)

    assert codes != [0, 0]
    assert words in text
    assert "Traceback" not in text
