"""`dsforge preflight` between several real hosts: every pair is called, within a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hosts
import pytest

pytestmark = [pytest.mark.launch, pytest.mark.hosts, pytest.mark.slow]

COUNT, LIMIT_S = 8, 60.0
# Hosts carry the id of the process that makes them, so more of them need one of their own.
SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
import hosts, planting
with hosts.hosts(Path({folder!r}) / "ssh", {count}) as made:
    run = planting.healthy_run(Path({folder!r}), made.addresses)
    print(made.run(("dsforge", "preflight", str(run), "--json"), timeout_s=120).output)
"""


def test_many_hosts_take_less_than_a_minute(tmp_path: Path) -> None:
    """Eight hosts, 56 calls between them, all answered; what it took is in the document."""
    if lacking := hosts.missing():
        pytest.skip(lacking)
    here = Path(__file__).parent
    paths = [str(here), str(here.parent)]
    script = SCRIPT.format(paths=paths, folder=str(tmp_path), count=COUNT)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    said = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{\n") :])[0]
    errors = [call["error"] for calls in said["calls"].values() for call in calls]
    print(f"{COUNT} hosts in {said['seconds']} s")
    assert len(said["hosts"]) == COUNT
    assert errors == [""] * (COUNT * (COUNT - 1))
    assert said["seconds"] < LIMIT_S
