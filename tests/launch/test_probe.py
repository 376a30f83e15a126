"""`dsforge probe` with real ranks: on this machine, and across two hosts over ssh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hosts
import pytest
import tiny_job
import yaml
from runs import finished

from dsforge import process

LIMIT_S = 240.0
MBIT_BYTES_PER_S = 1e6 / 8
SHAPED_MBIT = 50
CLUSTER = {
    "gpus_per_node": 1,
    "gpu": "cpu",
    "inter_node": "10gbe",
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
KINDS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


@contextmanager
def shaped(made: hosts.Hosts, mbit: int) -> Iterator[None]:
    """Inside, each host sends no faster than this."""
    rule = ("rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
    for host in made.hosts:
        add = ("qdisc", "add", "dev", hosts.INTERFACE, "root", "tbf", *rule)
        process.run(("tc", "-n", host.namespace, *add), timeout_s=10).check("tc")
    try:
        yield
    finally:
        for host in made.hosts:
            delete = ("qdisc", "del", "dev", hosts.INTERFACE, "root")
            process.run(("tc", "-n", host.namespace, *delete), timeout_s=10).check("tc")


def generate(
    folder: Path, made: hosts.Hosts, cluster: Path | None = None, *, steps: int = 6
) -> Path:
    """A run folder for the two hosts from the public command; the interface is not described."""
    folder.mkdir(exist_ok=True)
    if cluster is None:
        cluster = folder / "cluster.yaml"
        listed = [{"address": address, "slots": 1} for address in made.addresses]
        cluster.write_text(json.dumps({**CLUSTER, "hosts": listed}))
        tiny_job.write_model(folder / "model", hidden_size=256)
        (folder / "workload.yaml").write_text(json.dumps(WORKLOAD))
        rows = "".join(json.dumps(row) + "\n" for row in tiny_job.pairs(64))
        (folder / "data.jsonl").write_text(rows)
    run = folder / f"run-{cluster.stem}"
    flags: dict[str, Any] = {
        "--model": folder / "model",
        "--cluster": cluster,
        "--data": folder / "data.jsonl",
        "--workload": folder / "workload.yaml",
        "--zero-stage": 2,
        "--out": run,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    process.run(("dsforge", "gen", *words), timeout_s=60).check("dsforge gen")
    job = run / "train.yaml"
    job.write_text(job.read_text().replace("\nsteps: null", f"\nsteps: {steps}"))
    return run


def probed(made: hosts.Hosts, run: Path) -> tuple[dict[str, Any], str]:
    """The document of a probe of the run folder, and what it said meanwhile."""
    said: list[str] = []
    command = ("dsforge", "probe", str(run), "--json", "--force")
    done = made.run(command, timeout_s=LIMIT_S, on_line=said.append).check("dsforge probe")
    document = done.output[done.output.index("{\n") :]
    return json.JSONDecoder().raw_decode(document)[0], done.output


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.hosts
def test_two_hosts_behind_a_narrow_link(two_hosts: hosts.Hosts, tmp_path: Path) -> None:
    """The card has the link's real rate and the interface; the verdict names the network."""
    run = generate(tmp_path / "job", two_hosts)
    with shaped(two_hosts, SHAPED_MBIT):
        document, said = probed(two_hosts, run)

    link = document["card"]["measured"]["inter_node"]
    wire = SHAPED_MBIT * MBIT_BYTES_PER_S / 1e9
    assert link["link"] == "10gbe"
    assert (link["nodes"], link["ranks"], link["transport"]) == (2, 2, "sockets")
    assert set(link) >= KINDS
    assert 0.5 * wire < link["all_reduce"]["bus_gb_s"] < 1.3 * wire
    assert "all-reduce between nodes" in said
    assert [one["rule"] for one in document["findings"]] == ["probe-slow-link"]
    assert document["card"]["interface"] == hosts.INTERFACE

    again = generate(tmp_path / "job", two_hosts, run / "card.yaml")
    before, after = (json.loads((path / "plan.json").read_text()) for path in (run, again))
    assert "GLOO_SOCKET_IFNAME" not in (run / ".deepspeed_env").read_text()
    assert f"GLOO_SOCKET_IFNAME={hosts.INTERFACE}" in (again / ".deepspeed_env").read_text()
    terms = [plan["choice"]["time"]["terms"]["communication_s"] for plan in (before, after)]
    assert terms[1] > 20 * terms[0]


@pytest.mark.launch
@pytest.mark.hosts
@pytest.mark.slow
def test_the_card_predicts_the_step_of_a_narrow_link(
    two_hosts: hosts.Hosts, tmp_path: Path
) -> None:
    """Training across it takes what the card says, within a factor of two; without, not nearly."""
    run = generate(tmp_path / "job", two_hosts)
    with shaped(two_hosts, SHAPED_MBIT):
        probed(two_hosts, run)
        again = generate(tmp_path / "job", two_hosts, run / "card.yaml")
        script = (str(again / "launch/deepspeed.sh"),)
        two_hosts.run(script, timeout_s=LIMIT_S).check("training")

    record = json.loads((again / "output/measurement.json").read_text())
    measured = sum(record["step_s"]) / len(record["step_s"])
    before, after = (
        json.loads((path / "plan.json").read_text())["choice"]["time"]["step_s"]["likely"]
        for path in (run, again)
    )
    print(f"step: {before:.3f} s by ratings, {after:.3f} s by the card, {measured:.3f} s measured")
    assert after / 2 < measured < after * 2
    assert measured > 4 * before


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "ranks"), [("deepspeed", 2), ("torchrun", 2), ("python", 1)])
def test_this_machine_by_every_launcher(launcher: str, ranks: int, tmp_path: Path) -> None:
    """The ranks meet by each launcher and measure the same things; the card is taken by plan."""
    cluster, out = tmp_path / "cluster.yaml", tmp_path / "card.yaml"
    cluster.write_text(json.dumps({**CLUSTER, "nodes": 1, "gpus_per_node": ranks}))
    flags = ["--cluster", str(cluster), "--launcher", launcher, "--out", str(out)]
    done = finished(["dsforge", "probe", *flags], tmp_path)
    card = yaml.safe_load(out.read_text())["measured"]

    assert done.returncode == 0, done.stderr
    assert set(card["gpu"]["tflops"]) == {"fp32", "bf16"}
    assert card["cpu_adam_mparams_s"] > 0
    assert ("intra_node" in card) == (ranks > 1)
    assert f"{launcher}: {ranks} rank" in card["how"]
    plan = finished(
        ["dsforge", "plan", "--model", "160m", "--cluster", str(out), "--verbose"], tmp_path
    )
    assert "card-gpu" in plan.stdout


def test_what_cannot_be_started_is_said_at_once(tmp_path: Path) -> None:
    """Many hosts without addresses, a launcher that is for one machine, a card that exists."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(json.dumps({**CLUSTER, "nodes": 3}))
    (tmp_path / "card.yaml").write_text("mine\n")
    fresh = ["--cluster", "cluster.yaml", "--out", "new.yaml"]
    for flags, words in (
        (fresh, "--hostfile"),
        ([*fresh, "--launcher", "torchrun"], "on this machine only"),
        (["--cluster", "cluster.yaml"], "--force"),
        (["nowhere", "--out", "new.yaml"], "plan.json"),
    ):
        done = finished(["dsforge", "probe", *flags], tmp_path)

        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "new.yaml").exists()
