"""Cluster cards: from the answers of ranks to a file, and from the file to prices and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plans
import pytest
import yaml

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.estimate.comm import channel
from dsforge.estimate.offload import SOCKET_BYTES_PER_S
from dsforge.hostfile import selection
from dsforge.planner import appraise
from dsforge.probe.card import card, card_yaml, described, pace
from dsforge.probe.launch import Found
from dsforge.probe.messages import Answer, Ended, Rate, Skipped, Timed, World
from dsforge.probe.nccl_log import NcclNetwork
from dsforge.probe.verdict import findings
from dsforge.reading.cluster import cluster_of
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting, Source, parse_source, read_source
from dsforge.render.environment import environment_variables
from dsforge.specs import ClusterSpec, Collective

KINDS: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ETHERNET = {
    "gpu": "a100-80gb",
    "gpus_per_node": 8,
    "hosts": [{"address": f"10.0.0.{n}", "slots": 8} for n in (1, 2)],
    "inter_node": "100gbe",
    "nics_per_node": 1,
    "host_memory_gib": 1000,
    "cpu_cores": 128,
}


def world(**changed: Any) -> World:
    """Two nodes of eight A100 that met over eth0."""
    values: dict[str, Any] = {
        "ranks": 16,
        "nodes": 2,
        "device": "NVIDIA A100-SXM4-80GB",
        "back_end": "nccl",
        "versions": {"torch": "2.9.0", "deepspeed": "0.18.2"},
        "memory_bytes": 1000 * 2**30,
        "cpu_cores": 128,
        "interfaces": ("eth0",),
        "rdma_ports": 0,
        "most_rdma_ports": 0,
        **changed,
    }
    return World(**values)


def timed(scope: str, kind: str, bus_gb_s: float, message_s: float = 1e-4) -> list[Timed]:
    """A small and a large message over a link of that bandwidth."""
    ranks, nodes = (8, 1) if scope == "intra_node" else (16, 2)
    made = []
    for payload in (1024, 1 << 28):
        one = Timed.model_validate(
            {
                "scope": scope,
                "collective": kind,
                "nodes": nodes,
                "ranks": ranks,
                "payload_bytes": payload,
                "seconds": 1.0,
            }
        )
        seconds = message_s + one.bus_bytes / (bus_gb_s * 1e9) * (payload > 1024)
        made.append(one.model_copy(update={"seconds": seconds}))
    return made


def rate(what: str, per_s: float, best: float | None = None, **more: Any) -> Rate:
    """A rate, the fastest rank as fast unless said otherwise."""
    values = {"what": what, "per_s": per_s, "best_per_s": best or per_s, "slowest": "b rank 3"}
    return Rate.model_validate({**values, **more})


def found(*answers: Answer, said: tuple[str, ...] = (), **changed: Any) -> Found:
    """A finished measurement with these answers and NCCL lines."""
    words = NcclNetwork()
    for line in said:
        words.read_line(line)
    first = world(**changed)
    return Found(first, (first, *answers, Ended(seconds=60)), words, "deepspeed", True)


def links(intra_gb_s: float, inter_gb_s: float) -> list[Timed]:
    """All kinds of collectives over both links."""
    every = (("intra_node", intra_gb_s), ("inter_node", inter_gb_s))
    return [one for scope, gb_s in every for kind in KINDS for one in timed(scope, kind, gb_s)]


def rated() -> ClusterSpec:
    """The cluster by its ratings."""
    return cluster_of(parse_source(yaml.safe_dump(ETHERNET), "cluster"))[0]


def carded(measurement: Found) -> ClusterSpec:
    """The same cluster as its card reads."""
    base = rated()
    text = card_yaml(card(described(base), base, measurement, "2026-01-01T00:00:00+00:00"))
    return cluster_of(parse_source(text, "card"))[0]


def step_s(tmp_path: Path, cluster: str, **strategy: Any) -> float:
    """Likely seconds of a step of Llama-2-7B on a cluster file."""
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster)
    fixed = {"zero_stage": 3, "micro_batch_size": 1, **strategy}
    settings = [Setting(("model",), "llama-2-7b", "--model")]
    settings += [Setting(("strategy", key), value, key) for key, value in fixed.items()]
    request = read_request(Asked(cluster=path, settings=tuple(settings)))
    return appraise(request).choice.time.step_s.likely


def text_of(*answers: Answer) -> str:
    """The card of these answers."""
    base = rated()
    return card_yaml(card(described(base), base, found(*answers), ""))


def test_a_card_without_measurements_reads_as_its_description() -> None:
    """Names stay names, and every value of the description survives."""
    base = plans.cluster()
    text = card_yaml(described(base))

    again = cluster_of(parse_source(text, "card"))[0]

    assert "gpu: a100-80gb-sxm\n" in text or "gpu: a100" in text
    assert again == base.model_copy(update={"nvme": again.nvme})
    assert again.nvme is not None
    assert again.nvme.read_bytes_per_s == base.nvme.read_bytes_per_s  # type: ignore[union-attr]


def test_a_pace_is_the_smallest_message_and_the_largest_payload() -> None:
    """The line through both gives back what was measured."""
    made = pace(timed("inter_node", "all_reduce", 7.5, message_s=2e-3))

    assert made.bus_gb_s == pytest.approx(7.5, rel=1e-3)
    assert made.message_us == pytest.approx(2000, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_measured_group_costs_what_was_measured(kind: Collective) -> None:
    """Whatever the ratings say, the measured collective comes out of the model again."""
    every = dict.fromkeys(KINDS, 20.0) | {kind: 5.0}
    answers = [one for name, gb_s in every.items() for one in timed("inter_node", name, gb_s)]
    link = channel(carded(found(*answers)), 16, 1)
    payload = 1 << 28
    (large,) = [a for a in answers if a.collective == kind and a.payload_bytes == payload]

    seconds = {
        "all_reduce": link.reduce_s(payload),
        "all_gather": link.gather_s(payload),
        "reduce_scatter": link.scatter_s(payload),
        "all_to_all": link.exchange_s(payload),
    }[kind]

    assert seconds == pytest.approx(large.seconds, rel=2e-3)


def test_groups_that_were_not_measured_keep_their_share() -> None:
    """Eight groups side by side have an eighth of the measured rate each."""
    cluster = carded(found(*links(200.0, 5.0)))

    assert channel(cluster, 2, 8).bytes_per_s == pytest.approx(5e9 / 8, rel=1e-3)
    assert channel(cluster, 8, 1).bytes_per_s == pytest.approx(200e9, rel=1e-3)


@pytest.mark.parametrize(("gb_s", "slower"), [(1.0, True), (40.0, False)], ids=["slow", "fast"])
def test_a_measured_network_moves_the_step(tmp_path: Path, gb_s: float, slower: bool) -> None:
    """ZeRO-3 across nodes takes longer on a network that was found slow, less on a fast one."""
    plain = step_s(tmp_path, yaml.safe_dump(ETHERNET))

    measured = step_s(tmp_path, text_of(*links(235.0, gb_s)))

    assert (measured > 1.2 * plain) if slower else (measured < 0.95 * plain)


@pytest.mark.parametrize(("tflops", "slower"), [(60.0, True), (300.0, False)], ids=["slow", "fast"])
def test_a_measured_product_moves_the_step(tmp_path: Path, tflops: float, slower: bool) -> None:
    """Cards that hold fewer FLOP/s than usual take longer."""
    small = {"zero_stage": 1, "tensor_parallel_size": 1}
    plain = step_s(tmp_path, yaml.safe_dump(ETHERNET), **small)

    text = text_of(rate("product", tflops * 1e12, precision="bf16"))
    measured = step_s(tmp_path, text, **small)

    assert (measured > plain) == slower


def test_measured_adam_replaces_the_rate_of_a_node(tmp_path: Path) -> None:
    """Offloaded states are updated at the measured rate, a tenth of the assumed one."""
    offloaded = {"zero_stage": 2, "offload_optimizer": "cpu"}
    assumed = 2 * SOCKET_BYTES_PER_S / 28  # AdamW's bytes; the other passes slow down with it
    plain = step_s(tmp_path, yaml.safe_dump(ETHERNET), **offloaded)

    measured = step_s(tmp_path, text_of(rate("adam", assumed / 10)), **offloaded)

    parameters = 6_738_415_616 / 2  # a node's share
    assert measured - plain == pytest.approx(9 * parameters / assumed * 42 / 28, rel=0.01)


def test_a_card_of_other_hardware_is_left_out(tmp_path: Path) -> None:
    """With another network on the command line the rating of that counts, and a reason says so."""
    path = tmp_path / "card.yaml"
    path.write_text(text_of(*links(235.0, 1.0)))
    other = Setting(("cluster", "inter_node"), "infiniband-400", "--inter-node")
    asked = Asked(cluster=path, settings=(Setting(("model",), "7b", "--model"), other))

    request = read_request(asked)

    assert request.cluster.inter_node.measured is None
    assert any(reason.rule == "card-other-link" for reason in request.reasons)


def test_plans_hold_no_time_of_measurement() -> None:
    """What the card says of how and when stays in the card: artifacts are deterministic."""
    text = text_of(*links(235.0, 9.0))

    assert "taken" not in cluster_of(parse_source(text, "card"))[0].model_dump_json()


SOCKET = (
    "a:1:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
    "a:1:9 [0] NCCL INFO Using network Socket",
)
VERBS = (
    "a:1:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1",
    "a:1:9 [0] NCCL INFO Using network IB",
    "a:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(3)/GDRDMA",
)


def variables(cluster: ClusterSpec) -> dict[str, str]:
    """What `.deepspeed_env` holds for the cluster."""
    return {one.name: one.value for one in environment_variables(plans.plan(on=cluster))}


def test_the_interface_that_ranks_met_over_is_generated() -> None:
    """The description named none; the card does, and the environment follows."""
    assert "NCCL_SOCKET_IFNAME" not in variables(rated())

    made = variables(carded(found(*links(235.0, 9.0), said=SOCKET, interfaces=("ens5",))))

    assert made["NCCL_SOCKET_IFNAME"] == made["GLOO_SOCKET_IFNAME"] == "ens5"


def test_interfaces_of_different_names_are_not_generated() -> None:
    """One value goes to all hosts: none is better than a wrong one, and a finding says so."""
    measurement = found(*links(235.0, 9.0), said=SOCKET, interfaces=("ens5", "ib0"))
    cluster = carded(measurement)

    assert "NCCL_SOCKET_IFNAME" not in variables(cluster)
    assert "probe-interfaces" in {one.rule for one in findings(cluster, measurement)}


@pytest.mark.parametrize(
    ("said", "ports", "disabled"),
    [(None, 0, True), (SOCKET, 0, False), (VERBS, 2, False), (SOCKET, 2, True)],
    ids=["no card", "no adapter", "RDMA used", "RDMA unused"],
)
def test_rdma_is_disabled_only_where_it_is_in_the_way(
    said: tuple[str, ...] | None, ports: int, disabled: bool
) -> None:
    """The guess from the link's kind gives way to what NCCL did."""
    cluster = rated()
    if said is not None:
        counts = {"rdma_ports": ports, "most_rdma_ports": ports}
        cluster = carded(found(*links(235.0, 9.0), said=said, **counts))

    assert ("NCCL_IB_DISABLE" in variables(cluster)) == disabled


@pytest.mark.parametrize(
    ("measurement", "rule", "severity"),
    [
        (found(*links(235, 2.0)), "probe-slow-link", "warning"),
        (found(*links(100, 9.0)), "probe-slow-link", "warning"),
        (found(said=SOCKET, rdma_ports=2, most_rdma_ports=2), "probe-sockets", "error"),
        (found(said=(*VERBS[:2], VERBS[2][:-7])), "probe-no-gpu-direct", "warning"),
        (found(rdma_ports=1, most_rdma_ports=2), "probe-rdma-uneven", "warning"),
        (found(interfaces=("a0", "b0")), "probe-interfaces", "warning"),
        (found(memory_bytes=500 * 2**30), "probe-less-memory", "warning"),
        (found(Skipped(what="CPU Adam", why="x")), "probe-skipped", "info"),
        (found(rate("product", 1e14, 2e14, precision="bf16")), "probe-slow-rank", "warning"),
        (found()._replace(complete=False), "probe-incomplete", "warning"),
    ],
    ids="network cards sockets host-memory uneven interfaces ram skipped rank cut-short".split(),
)
def test_a_finding_for_each_weakness(measurement: Found, rule: str, severity: str) -> None:
    """Each is found by its rule and nothing else is."""
    (finding,) = findings(carded(measurement), measurement)

    assert (finding.rule, finding.severity) == (rule, severity)
    assert finding.fix or severity == "info"


def test_a_healthy_cluster_has_no_findings() -> None:
    """Rates above 60 % of the ratings, sockets where only sockets are."""
    measurement = found(*links(235.0, 8.0), said=SOCKET)

    assert findings(carded(measurement), measurement) == ()


def test_the_slow_link_says_how_slow() -> None:
    """The share of the rating that was reached, and which link it is."""
    measurement = found(*links(235.0, 2.5))
    (finding,) = findings(carded(measurement), measurement)

    assert "20% of the 12.5 GB/s that 100gbe is rated at" in finding.message


def test_impossible_cards_are_refused() -> None:
    """A rate of nothing, or of an unknown precision, is no measurement."""
    for wrong in ("tflops: {bf16: 0}", "tflops: {bf17: 1}", "memory_gb_s: -1"):
        text = yaml.safe_dump(ETHERNET) + f"measured:\n  gpu:\n    name: a100-80gb\n    {wrong}\n"
        with pytest.raises(SpecError) as caught:
            cluster_of(parse_source(text, "card"))
        assert any("measured" in str(problem) for problem in caught.value.problems)


def test_the_card_reads_from_a_file(tmp_path: Path) -> None:
    """The file that is written is one that `--cluster` takes, with a reason for each link."""
    path = tmp_path / "card.yaml"
    path.write_text(text_of(*links(235.0, 9.0)))

    cluster, reasons = cluster_of(read_source(path))

    assert cluster.gpu.name == catalog.gpu("a100-80gb").name
    assert sum(reason.rule == "card-link" for reason in reasons) == 2


def test_a_card_keeps_what_was_selected(tmp_path: Path) -> None:
    """Devices, Slurm's words and the disk of a run that is measured stand in its description."""
    path = tmp_path / "hosts"
    path.write_text("10.0.0.1 slots=4\n10.0.0.2 slots=8\n10.0.0.3 slots=8\n")
    values = {
        "gpu": "a100-80gb",
        "exclude": "10.0.0.2@10.0.0.3:0,4,5,6,7",
        "slurm": {"account": "proj-1", "time": 30},
        "nvme": {"path": "/scratch"},
    }
    planned, _ = cluster_of(Source("test", values), hostfile=path)
    (tmp_path / "cluster.yaml").write_text(card_yaml(described(planned)))
    again, _ = cluster_of(read_source(tmp_path / "cluster.yaml"))

    assert selection(planned) == "10.0.0.1:0,1,2@10.0.0.3:1,2,3"
    assert again.hosts == planned.hosts
    assert (again.slurm, again.nvme) == (planned.slurm, planned.nvme)
