"""The exact simulator against the engine itself.

What is resident after each phase to the byte, and the fullest phase of each phase within 2 %. The
whole matrix: `python benchmarks/engine_matrix.py`.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor

import pytest
from rehearsed import STAGES, Cell, cells, proof

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SAMPLED = 24
DEAR = 8  # ranks from which on gathering a tensor of ZeRO 3 takes long: a view for each rank
PEAK_ERROR = 0.02


def sample() -> list[Cell]:
    """The same cells every time; the dear ones are left to the whole matrix."""
    quick = [cell for cell in cells() if cell.stage < STAGES[-1] or cell.world <= DEAR]
    return random.Random(3).sample(quick, SAMPLED)  # noqa: S311 - it only has to be the same


@pytest.mark.parametrize("cell", sample(), ids=lambda cell: cell.name)
def test_the_simulator_agrees_with_the_engine(cell: Cell, apart: ProcessPoolExecutor) -> None:
    """Weights, gradients, optimizer state, ZeRO's buffers on device and host; peaks."""
    found = apart.submit(proof, cell).result()

    assert {"init", "forward", "backward", "step"} <= set(found.phases)
    assert ("accumulation" in found.phases) == (cell.accumulation > 1)
    assert found.differences == {}
    assert set(found.peak_errors) == set(found.phases) - {"init"}
    assert all(abs(error) <= PEAK_ERROR for error in found.peak_errors.values())
