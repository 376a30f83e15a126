"""Faults planted one at a time on two real hosts: all found, with the right fix, and nothing else.

`make test` runs a sample; the whole set takes minutes and runs with `make test-all`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faults
import hosts
import planting
import pytest
import tiny_job

from dsforge import process

pytestmark = [pytest.mark.launch, pytest.mark.hosts]

LIMIT_S = 90.0
QUICK = ("missing-package", "shaped-link")
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CLUSTER = {
    "gpus_per_node": 1,
    "gpu": "cpu",
    "inter_node": "1gbe",
    "interface": hosts.INTERFACE,
    "ssh_port": hosts.SSH_PORT,
    "host_memory_gib": 8,
    "cpu_cores": 1,
}
WORKLOAD = {"sequence_length": 96, "global_batch_size": 8, "precision": "fp32"}


class Count(NamedTuple):
    """What came of one planted fault."""

    fault: str
    is_found: bool
    false_alarms: tuple[str, ...]


@pytest.fixture(scope="module")
def healthy(two_hosts: hosts.Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `dsforge gen` for the two hosts, with a folder for built ops of its own."""
    folder = tmp_path_factory.mktemp("healthy")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    (folder / "data.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in tiny_job.pairs(64))
    )
    listed = [{"address": address, "slots": 1} for address in two_hosts.addresses]
    (folder / "cluster.yaml").write_text(json.dumps({**CLUSTER, "hosts": listed}))
    (folder / "workload.yaml").write_text(json.dumps(WORKLOAD))
    flags = {
        "--model": folder / "model",
        "--cluster": folder / "cluster.yaml",
        "--data": folder / "data.jsonl",
        "--workload": folder / "workload.yaml",
        "--zero-stage": 2,
        "--out": folder / "run",
    }
    words = [str(word) for pair in flags.items() for word in pair]
    process.run(("dsforge", "gen", *words), timeout_s=60).check("dsforge gen")
    with (folder / "run/.deepspeed_env").open("a") as lines:
        lines.write(f"TORCH_EXTENSIONS_DIR={folder / 'ops'}\n")
    (folder / "ops").mkdir()
    return folder / "run"


@pytest.fixture
def scene(two_hosts: hosts.Hosts, healthy: Path, tmp_path: Path) -> planting.Scene:
    """The hosts, and a copy of the run folder that a fault may spoil."""
    run = tmp_path / "job" / "run"
    shutil.copytree(healthy, run)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return planting.Scene(two_hosts, run, scratch)


@pytest.fixture(scope="module")
def counts() -> Iterator[list[Count]]:
    """What came of all faults; the figures are shown at the end."""
    counted: list[Count] = []
    yield counted
    found = sum(count.is_found for count in counted)
    alarms = [alarm for count in counted for alarm in count.false_alarms]
    print(f"\nfaults found / planted: {found} / {len(counted)}, false alarms: {len(alarms)}")


def preflight(
    scene: planting.Scene, environment: dict[str, str] | None = None, *more: str
) -> dict[str, Any]:
    """What `dsforge preflight --json` says of the run, started on the first host."""
    done = scene.hosts.run(
        ("dsforge", "preflight", str(scene.run), "--json", *more),
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
    fault: planting.Fault, scene: planting.Scene, counts: list[Count]
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
    counts.append(Count(fault.name, bool(right) and where <= named, others))

    assert right, said
    assert where <= named
    assert others == ()


def test_the_network_is_named_with_both_rates(scene: planting.Scene) -> None:
    """On a link of 50 Mbit/s the measured rate is that, beside the rate that the plan needs."""
    shaped = next(fault for fault in planting.FAULTS if fault.name == "shaped-link")

    with shaped.plant(scene):
        document = preflight(scene)

    rates = [stream["bytes_per_s"] for stream in document["streams"].values()]
    (message, *_) = [f["message"] for f in document["findings"] if f["rule"] == "bandwidth"]
    assert all(0.6 * 6.25e6 < rate < 1.1 * 6.25e6 for rate in rates), rates
    assert "the plan counts on 0.125 GB/s and needs 0.075 GB/s" in message
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


@pytest.mark.slow
def test_all_faults_are_different() -> None:
    """At least twenty faults, found by at least twenty rules."""
    assert len(planting.FAULTS) >= 20
    assert len({fault.rule for fault in planting.FAULTS}) >= 20
