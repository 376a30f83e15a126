"""What `dsforge gen` writes, launched across two hosts over ssh as a user would."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hosts
import pytest
import tiny_job

from dsforge import process
from dsforge.measurement import Measurement

pytestmark = [pytest.mark.launch, pytest.mark.hosts]

LAUNCH_LIMIT_S = 180.0
REFUSAL_LIMIT_S = 20.0  # an address that nobody has costs one ssh timeout of 5 s
STEPS = 12
TOLERANCE = 1e-2
CLUSTER = {
    "gpus_per_node": 1,
    "gpu": "cpu",
    "inter_node": "10gbe",
    "interface": hosts.INTERFACE,
    "ssh_port": hosts.SSH_PORT,
    "host_memory_gib": 8,
    "cpu_cores": 1,
}
WORKLOAD = {
    "sequence_length": 96,
    "global_batch_size": 8,
    "precision": "fp32",
    "learning_rate": 3e-3,
}


@dataclass(frozen=True)
class Launched:
    """A finished launch: what it said, measured, and which environment each host's rank had."""

    done: process.Completed
    folder: Path
    environments: dict[str, dict[str, str]]

    @property
    def measurement(self) -> Measurement:
        """What the run measured."""
        return Measurement.model_validate_json(
            (self.folder / "output/measurement.json").read_bytes()
        )


def generate(folder: Path, model: Path, addresses: tuple[str, ...], stage: int = 2) -> Path:
    """A run folder for these hosts, from the public command."""
    folder.mkdir()
    data, cluster, run = folder / "data.jsonl", folder / "cluster.yaml", folder / "run"
    workload = folder / "workload.yaml"
    workload.write_text(json.dumps(WORKLOAD))
    data.write_text("".join(json.dumps(row) + "\n" for row in tiny_job.pairs(64)))
    listed = [{"address": address, "slots": 1} for address in addresses]
    cluster.write_text(json.dumps({**CLUSTER, "hosts": listed}))
    flags: dict[str, Any] = {
        "--model": model,
        "--cluster": cluster,
        "--data": data,
        "--workload": workload,
        "--zero-stage": stage,
        "--out": run,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    process.run(("dsforge", "gen", *words), timeout_s=60).check("dsforge gen")
    job = run / "train.yaml"
    job.write_text(job.read_text().replace("\nsteps: null", f"\nsteps: {STEPS}"))
    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that all runs train."""
    return tiny_job.write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def launched(
    two_hosts: hosts.Hosts, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Launched]:
    """One launch of the generated script for each ZeRO stage."""
    folder = tmp_path_factory.mktemp("runs")
    return {stage: launch(two_hosts, folder / f"zero{stage}", model, stage) for stage in (1, 2, 3)}


def launch(two_hosts: hosts.Hosts, folder: Path, model: Path, stage: int) -> Launched:
    """Run the generated script on the first host and look at the ranks while they train."""
    run = generate(folder, model, two_hosts.addresses, stage)
    environments: dict[str, dict[str, str]] = {}

    def look(line: str) -> None:
        if "step 1/" in line:
            environments.update({h.address: h.rank_environment() for h in two_hosts.hosts})

    done = two_hosts.run(
        (str(run / "launch/deepspeed.sh"),), timeout_s=LAUNCH_LIMIT_S, on_line=look
    )
    return Launched(done, run, environments)


@pytest.mark.parametrize("stage", [1, 2, 3], ids=["zero1", "zero2", "zero3"])
def test_generated_script_trains_across_both_hosts(
    launched: dict[int, Launched], stage: int
) -> None:
    """Each ZeRO stage trains to the end with one rank on each host, and the loss falls."""
    run = launched[stage]

    run.done.check(f"ZeRO-{stage} on two hosts")

    assert run.measurement.zero_stage == stage
    assert run.measurement.world_size == 2
    assert len(run.measurement.losses) == STEPS
    assert run.measurement.losses[-1] < run.measurement.losses[0]
    ranks = {address: found["RANK"] for address, found in run.environments.items()}
    assert sorted(ranks.values()) == ["0", "1"]


@pytest.mark.parametrize("stage", [2, 3], ids=["zero2", "zero3"])
def test_zero_stages_compute_the_same_losses(launched: dict[int, Launched], stage: int) -> None:
    """On the same data every stage gives the loss curve of ZeRO-1."""
    assert launched[stage].measurement.losses == pytest.approx(
        launched[1].measurement.losses, abs=TOLERANCE
    )


def test_every_variable_of_the_env_file_reaches_both_hosts(launched: dict[int, Launched]) -> None:
    """The ranks of both hosts have each variable of .deepspeed_env with its value."""
    run = launched[2]
    lines = (run.folder / ".deepspeed_env").read_text().splitlines()
    asked = dict(line.split("=", 1) for line in lines)

    assert asked
    for found in run.environments.values():
        assert {name: found.get(name) for name in asked} == asked


def refused(two_hosts: hosts.Hosts, run: Path) -> str:
    """What the script says when it starts nothing, within seconds."""
    begin = time.monotonic()
    done = two_hosts.run((str(run / "launch/deepspeed.sh"),), timeout_s=60)

    assert time.monotonic() - begin < REFUSAL_LIMIT_S
    assert done.code not in (0, process.TIMEOUT_CODE)
    assert not (run / "output").exists()
    return done.output


def test_an_address_that_nobody_has_is_named(
    two_hosts: hosts.Hosts, model: Path, tmp_path: Path
) -> None:
    """A wrong address in the hostfile is named, and no rank starts."""
    run = generate(tmp_path / "job", model, (two_hosts.addresses[0], "10.77.0.99"))

    assert "host 10.77.0.99 does not respond over ssh" in refused(two_hosts, run)


def test_a_second_host_that_is_down_is_named(
    two_hosts: hosts.Hosts, model: Path, tmp_path: Path
) -> None:
    """A host whose link is down is named, and the first host does not train alone."""
    run = generate(tmp_path / "job", model, two_hosts.addresses)

    with two_hosts.unplugged(1):
        said = refused(two_hosts, run)

    assert f"host {two_hosts.addresses[1]} does not respond over ssh" in said


def test_a_missing_hostfile_is_an_error(
    two_hosts: hosts.Hosts, model: Path, tmp_path: Path
) -> None:
    """Without a hostfile nothing is trained, where DeepSpeed would use one machine."""
    run = generate(tmp_path / "job", model, two_hosts.addresses)
    (run / "hostfile").unlink()

    assert "there is no hostfile" in refused(two_hosts, run)
