"""Two hosts on a slow link really train slower than one, and preflight had named the network."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import faults  # noqa: F401 (registers them)
import hosts
import planting
import pytest
import tiny_job
from test_two_hosts import CLUSTER, WORKLOAD

from dsforge import process
from dsforge.diagnose import diagnose_files
from dsforge.measurement import Measurement
from dsforge.reading.stored import read_plan

pytestmark = [pytest.mark.launch, pytest.mark.hosts, pytest.mark.slow]

LIMIT_S = 280.0
STEPS = 5
HIDDEN = 512  # 5 M parameters: 20 MB of gradients a step


def trained(made: hosts.Hosts, folder: Path, model: Path, addresses: tuple[str, ...]) -> float:
    """Seconds of the median step of a generated run on these hosts."""
    run = generated(folder, model, addresses)
    done = made.run((str(run / "launch/deepspeed.sh"),), timeout_s=LIMIT_S)
    done.check(f"training on {len(addresses)} hosts")
    (folder / "run.log").write_text(done.output)
    text = (run / "output/measurement.json").read_bytes()
    return statistics.median(Measurement.model_validate_json(text).step_s)


def generated(folder: Path, model: Path, addresses: tuple[str, ...]) -> Path:
    """A run folder for these hosts on 1 Gbit/s Ethernet."""
    folder.mkdir()
    rows = "".join(json.dumps(row) + "\n" for row in tiny_job.pairs(64))
    (folder / "data.jsonl").write_text(rows)
    listed = [{"address": address, "slots": 1} for address in addresses]
    cluster = {**CLUSTER, "inter_node": "1gbe", "hosts": listed}
    (folder / "cluster.yaml").write_text(json.dumps(cluster))
    (folder / "workload.yaml").write_text(json.dumps(WORKLOAD))
    words = ("--model", model, "--cluster", folder / "cluster.yaml", "--zero-stage", 2)
    words += ("--data", folder / "data.jsonl", "--workload", folder / "workload.yaml")
    run = folder / "run"
    command = ("dsforge", "gen", *map(str, words), "--out", str(run))
    process.run(command, timeout_s=60).check("dsforge gen")
    job = run / "train.yaml"
    job.write_text(job.read_text().replace("\nsteps: null", f"\nsteps: {STEPS}"))
    return run


def test_two_hosts_on_a_slow_link_are_slower_than_one(
    two_hosts: hosts.Hosts, tmp_path: Path
) -> None:
    """Half of the work on each of two hosts takes longer, and the cause is named with its rate."""
    model = tiny_job.write_model(tmp_path / "model", HIDDEN)
    shaped = next(fault for fault in planting.FAULTS if fault.name == "shaped-link")
    alone_s = trained(two_hosts, tmp_path / "one", model, two_hosts.addresses[:1])
    scene = planting.Scene(two_hosts, tmp_path, tmp_path)

    with shaped.plant(scene):
        together_s = trained(two_hosts, tmp_path / "two", model, two_hosts.addresses)
        command = ("dsforge", "preflight", str(tmp_path / "two/run"), "--json")
        done = two_hosts.run(command, timeout_s=90)

    (cause,) = diagnose_files([tmp_path / "two/run.log"], read_plan(tmp_path / "two/run/plan.json"))
    said = json.JSONDecoder().raw_decode(done.output[done.output.index("{\n") :])[0]
    (message, *_) = [f["message"] for f in said["findings"] if f["rule"] == "bandwidth"]
    print(f"one host {alone_s:.2f} s a step, two on 50 Mbit/s {together_s:.2f} s")
    print(f"preflight: {message}\ndiagnose: {cause.message}")
    assert together_s > alone_s
    assert "the plan counts on 1 Gbit/s and needs 600 Mbit/s" in message
    assert cause.rule == "slow-network"
    assert "counts on 1 Gbit/s and needs 600 Mbit/s; one node alone takes" in cause.message
