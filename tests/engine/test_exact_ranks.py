"""The exact simulator against two real ranks: real tensors, gloo, nothing pretended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rehearsed import Cell

from dsforge.exact.residency import FLAG_BYTES, resident
from dsforge.strategy import ZeroStage

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("real_rank.py")
RANKS = 2


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def held_by_ranks(stage: ZeroStage) -> list[dict[str, dict[str, int]]]:
    """What each of two ranks holds, by phase and owner."""
    port, folder = str(free_port()), str(SCRIPT.parent)
    ranks = []
    for rank in range(RANKS):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": folder}
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(stage)],
                env=os.environ | place | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=500)[0] for process in ranks]
    lines = [
        next((line for line in text.splitlines() if line.startswith("HELD ")), text[-2000:])
        for text in outputs
    ]
    return [json.loads(line.removeprefix("HELD ")) for line in lines]


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 3)] + [2]
)
def test_two_real_ranks_hold_what_is_simulated(stage: ZeroStage) -> None:
    """Weights, gradients and optimizer state, after init and around the second step."""
    cell = Cell(stage, False, "bf16" if stage else "fp32", 1, False, False, RANKS)

    for rank, found in enumerate(held_by_ranks(stage)):
        engine = cell.engine()._replace(rank=rank)
        told = {phase: resident(engine, phase).device for phase in ("init", "backward", "step")}
        wanted = {
            phase: {
                "parameter": held.parameter,
                "gradient": held.gradient,
                "optimizer_state": held.optimizer_state
                - FLAG_BYTES,  # torch's Adam has no such flag
            }
            for phase, held in told.items()
        }
        assert found == wanted, f"rank {rank}"
