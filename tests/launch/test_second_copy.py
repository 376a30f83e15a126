"""ZeRO-3 with a second copy of the weights in groups of ranks (hpZ) trains as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("job", [{}, {"lora": {"rank": 4}}], ids=["full", "lora"])
def test_the_same_losses(job: dict[str, Any], tiny_llama: Path, tmp_path: Path) -> None:
    """Four ranks, two groups; weights are gathered, not kept whole as small ones would be."""
    found = {}
    for size in (1, 2):
        config = ds_config(3, gradient_accumulation_steps=1)
        config["zero_optimization"] |= {
            "zero_hpz_partition_size": size,
            "stage3_param_persistence_threshold": 0,
        }
        folder = tmp_path / str(size)
        write_job(folder, tiny_llama, config, steps=3, **job)
        ranks.train(folder, 4)
        found[size] = runs.figures(folder / "output", "loss")

    assert len(found[1]) == 3
    assert found[2] == found[1]
