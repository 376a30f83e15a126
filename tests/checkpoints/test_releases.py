"""Checkpoints of older releases of DeepSpeed are as good as those of the newest.

`make_releases.py` wrote them with the releases' own code, on one rank, with torch 2.13; ZeRO-3 and
fp16 without ZeRO do not run on a CPU in 0.14 and 0.15.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import load_file

from dsforge.checkpoints.inspect import inspect
from dsforge.checkpoints.verify.checkpoint import verify

RELEASES = Path(__file__).parent / "releases"
RUNS = sorted(path.parent for path in RELEASES.glob("*/*/latest"))
WEIGHTS = 5 * 4 + 4 + 4 + 4 + 4 * 3 + 3


def named(path: Path) -> str:
    """Release and case."""
    return f"{path.parent.name}-{path.name}"


def test_every_release_is_here() -> None:
    """0.14 to 0.18; the samples are of 0.19."""
    assert {path.parent.name[:4] for path in RUNS} == {"0.14", "0.15", "0.16", "0.17", "0.18"}


@pytest.mark.parametrize("path", RUNS, ids=named)
def test_older_checkpoints_are_good(path: Path) -> None:
    """Nothing is found, and all weights and steps are there."""
    found = inspect(path)

    assert verify(path, values=True) == []
    assert found.parameters == WEIGHTS
    assert found.step == 2
    # 0.14 to 0.16 have an optimizer for bf16 that shards its states without ZeRO, too
    assert found.zero_stage in {int(path.name[4]), 1 if path.name == "zero0-bf16" else None}


@pytest.mark.engine
@pytest.mark.parametrize("path", RUNS, ids=named)
def test_older_checkpoints_are_loaded(path: Path) -> None:
    """The list of good names has all that these releases write."""
    pytest.importorskip("torch")
    pytest.importorskip("deepspeed")
    for file in path.rglob("*.pt"):
        assert load_file(file)
