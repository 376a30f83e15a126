"""Nothing is proposed that an engine refuses: plans of random requests, best and further down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("megatron.core")
SCRIPT = Path(__file__).with_name("proposed.py")

MANY = 500  # so many have every kind among them

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("back_end", "plans"),
    [
        ("megatron", 15),
        ("deepspeed", 4),
        pytest.param("megatron", MANY, marks=pytest.mark.slow),
        pytest.param("deepspeed", MANY, marks=pytest.mark.slow),
    ],
)
def test_engines_take_what_is_proposed(back_end: str, plans: int) -> None:
    """The engine initialises and steps in a rehearsal; megatron-core builds its config classes."""
    command = (sys.executable, str(SCRIPT), back_end, str(plans))
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    said = json.loads(done.stdout)
    assert (said["plans"], said["refused"]) == (plans, [])
    assert said["with_experts"] > 0
    assert said["uneven_pipelines"] > 0 or plans < MANY
