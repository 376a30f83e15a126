"""Faults planted one at a time on two real hosts: all found, with the right fix, and nothing else.

`make test` runs a sample; the whole set takes minutes and runs with `make test-all`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import faults
import hosts
import planting
import pytest

from dsforge.preflight.checks.environment import RANK_VARIABLES

pytestmark = [pytest.mark.launch, pytest.mark.hosts]

LIMIT_S = 90.0
QUICK = ("missing-package", "shaped-link")


@pytest.fixture(scope="module")
def healthy(two_hosts: hosts.Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `dsforge gen` for the two hosts, with a folder for built ops of its own."""
    return planting.healthy_run(tmp_path_factory.mktemp("healthy"), two_hosts.addresses)


@pytest.fixture
def scene(two_hosts: hosts.Hosts, healthy: Path, tmp_path: Path) -> planting.Scene:
    """The hosts, and a copy of the run folder that a fault may spoil."""
    run = tmp_path / "job" / "run"
    shutil.copytree(healthy, run)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return planting.Scene(two_hosts, run, scratch)


def preflight(
    scene: planting.Scene, environment: dict[str, str] | None = None, *more: str
) -> dict[str, Any]:
    """What `dsforge preflight --json` says of the run, started on the first host."""
    planted = environment or {}
    mine = (name for name in os.environ if name.startswith(RANK_VARIABLES) and name not in planted)
    done = scene.hosts.run(
        (
            *("env", *(f"--unset={name}" for name in mine)),  # whoever runs the tests sets what
            *("dsforge", "preflight", str(scene.run), "--json", *more),
        ),
        timeout_s=LIMIT_S,
        environment=environment,
    )
    begin = done.output.find("\n{") + 1 if not done.output.startswith("{") else 0
    document: dict[str, Any] = json.JSONDecoder().raw_decode(done.output[begin:])[0]
    errors = any(finding["severity"] == "error" for finding in document["findings"])

    assert done.code == (3 if errors else 0), done.output
    return document


def alarms(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Errors and warnings; what is only worth knowing is no alarm."""
    return [finding for finding in document["findings"] if finding["severity"] != "info"]


def test_healthy_hosts_raise_no_alarm(scene: planting.Scene) -> None:
    """Two good hosts and a generated run: both seen, both reachable, nothing wrong."""
    document = preflight(scene)

    assert alarms(document) == []
    assert set(document["hosts"]) == set(scene.hosts.addresses)
    assert [call["error"] for calls in document["calls"].values() for call in calls] == ["", ""]
    assert document["exported"]["GLOO_SOCKET_IFNAME"] == hosts.INTERFACE


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.name, marks=() if f.name in QUICK else pytest.mark.slow)
        for f in planting.FAULTS
    ],
)
def test_a_planted_fault_is_found_with_its_fix(
    fault: planting.Fault, scene: planting.Scene
) -> None:
    """The rule of the fault names the host, the evidence and the way out; no other rule speaks."""
    with fault.plant(scene) as environment:
        document = preflight(scene, environment)

    said = alarms(document)
    of_rule = [finding for finding in said if finding["rule"] == fault.rule]
    where = {scene.hosts.addresses[index] for index in fault.where}
    right = [
        finding
        for finding in of_rule
        if fault.fix in finding["fix"] and fault.evidence in finding["message"]
    ]
    named = {host for finding in right for host in finding["hosts"]}
    others = tuple(f["rule"] for f in said if f["rule"] not in (fault.rule, *fault.also))
    planting.COUNTS.append(planting.Count(fault.name, bool(right) and where <= named, others))

    assert right, said
    assert where <= named
    assert others == ()


@pytest.mark.slow
def test_the_network_is_named_with_both_rates(scene: planting.Scene) -> None:
    """On a link of 50 Mbit/s the measured rate is that, beside the rate that the plan needs."""
    shaped = next(fault for fault in planting.FAULTS if fault.name == "shaped-link")

    with shaped.plant(scene):
        document = preflight(scene)

    rates = [stream["bytes_per_s"] for stream in document["streams"].values()]
    (message, *_) = [f["message"] for f in document["findings"] if f["rule"] == "bandwidth"]
    assert all(0.3 * 6.25e6 < rate < 1.1 * 6.25e6 for rate in rates), rates
    assert "the plan counts on 1 Gbit/s and needs 600 Mbit/s" in message
    assert "a step then takes" in message


@pytest.mark.slow
def test_a_stale_lock_is_removed_when_asked(scene: planting.Scene) -> None:
    """`--fix` removes the lock of a dead build, says so, and leaves nothing to find."""
    stale = next(fault for fault in planting.FAULTS if fault.name == "stale-lock")
    lock = faults.ops(scene) / "deepspeed_shm_comm" / "lock"

    with stale.plant(scene):
        document = preflight(scene, None, "--fix")
        is_left = lock.exists()

    assert not is_left
    assert alarms(document) == []
    assert any(finding["rule"] == "op-lock" for finding in document["findings"])


def test_all_faults_are_different() -> None:
    """At least twenty faults, found by at least twenty rules."""
    assert len(planting.FAULTS) >= 20
    assert len({fault.rule for fault in planting.FAULTS}) >= 20
