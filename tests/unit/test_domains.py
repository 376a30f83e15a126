"""NVLink domains larger than a node: priced at NVLink inside, at the network between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from drawing import draw_request, draw_strategy
from planning import cluster, strategy, workload

from dsforge import catalog
from dsforge.cli.asked import to_request
from dsforge.cli.flags import Flags
from dsforge.cli.main import app
from dsforge.constraints import check
from dsforge.errors import SpecError
from dsforge.estimate.comm import channel, placement
from dsforge.estimate.time import estimate_time
from dsforge.plan import Request
from dsforge.strategy import Strategy

SEED = int(os.environ.get("DSFORGE_SEED", "72"))
FEW, MANY = 60, 2000
ROUNDING = 1 + 1e-9
LLAMA = catalog.model("llama-3.1-70b")


def drawn(count: int) -> Iterator[tuple[Request, Strategy]]:
    """So many legal strategies on several nodes with NVLink."""
    draw = Random(SEED)  # noqa: S311 - which plans, not which key
    while count:
        request = draw_request(draw)
        link = catalog.link(draw.choice(("nvlink-3", "nvlink-4", "nvlink-5")))
        nodes = draw.choice((2, 3, 4, 5, 6, 9, 12, 18, 20, 36))
        on = request.cluster.model_copy(update={"nodes": nodes, "intra_node": link})
        request = request.model_copy(update={"cluster": on})
        how = draw_strategy(draw, request, tries=30)
        if how is not None:
            count -= 1
            yield request, how


def steps(request: Request, how: Strategy) -> list[float]:
    """Seconds of a step with domains of 1, 2, 3, ... nodes."""
    sizes = range(1, request.cluster.nodes + 2)
    on = (request.cluster.model_copy(update={"nvlink_domain_nodes": size}) for size in sizes)
    return [estimate_time(request.model, c, request.workload, how).step_s.likely for c in on]


def slower(count: int) -> list[str]:
    """Strategies that a larger domain slows down, or that another domain of one node changes."""
    found = []
    for request, how in drawn(count):
        ladder = steps(request, how)
        for size, (before, now) in enumerate(pairwise(ladder), start=2):
            if now > before * ROUNDING:
                on = f"{request.cluster.nodes} x {request.cluster.gpus_per_node}"
                found.append(f"{how.label()} on {on}, domain {size}: {now / before:.4f}x")
    return found


def test_a_larger_domain_is_never_slower() -> None:
    """Of random strategies on random clusters, for every size from a node to the whole cluster."""
    assert slower(FEW) == []


@pytest.mark.slow
def test_a_larger_domain_is_never_slower_for_thousands_of_strategies() -> None:
    """The same of many."""
    assert slower(MANY) == []


def rack(domain_nodes: int, nodes: int = 18, **more: object) -> Request:
    """Llama 70B on trays of four GB200 over 100 Gbit/s."""
    on = cluster(
        nodes, 4, "gb200", intra="nvlink-5", inter="100gbe", nvlink_domain_nodes=domain_nodes
    )
    return Request(model=LLAMA, cluster=on, workload=workload(4096, 288, **more))


@pytest.mark.parametrize(("ranks", "stride"), [(8, 1), (72, 1), (18, 4), (9, 8), (2, 36)])
def test_inside_a_domain_nothing_crosses_the_network(ranks: int, stride: int) -> None:
    """A group of the whole rack has the rate of a node; over the network it has not."""
    link = catalog.link("nvlink-5")
    inside = channel(rack(18).cluster, ranks, stride)
    outside = channel(rack(1).cluster, ranks, stride)

    assert inside.bytes_per_s == link.bytes_per_s * link.efficiency
    assert outside.bytes_per_s < inside.bytes_per_s / 10
    assert inside.round_s < outside.round_s


def test_between_domains_the_network_counts_with_all_adapters_of_the_smaller_one() -> None:
    """Two racks, the second of two trays: its two adapters carry what the first sends."""
    on = rack(18, 20).cluster
    where, whole = placement(on, 80, 1), placement(rack(18, 36).cluster, 144, 1)

    assert (where.nodes, whole.nodes) == (2, 2)
    assert whole.ports == 18
    assert channel(on, 80, 1).bytes_per_s < channel(rack(18, 36).cluster, 144, 1).bytes_per_s


def test_a_rack_of_trays_is_priced_like_one_node_of_all_its_cards() -> None:
    """18 x 4 in one domain trains like 1 x 72, and unlike 18 nodes on their network."""
    how = strategy(72, batch=288, zero_stage=3)
    trays, alone = rack(18), rack(1)
    box = cluster(1, 72, "gb200", intra="nvlink-5", inter="100gbe")
    near, far, one = (
        estimate_time(LLAMA, on, trays.workload, how).step_s.likely
        for on in (trays.cluster, alone.cluster, box)
    )

    assert near == pytest.approx(one, rel=0.02)
    assert far > 2 * near


def test_tensor_ranks_may_fill_whole_nodes_of_a_domain() -> None:
    """Eight ranks on two trays are legal in a domain, six or a domain and a half are not."""
    request = rack(2, 4)
    broken = {
        tp: [
            problem.rule
            for problem in check(
                LLAMA, request.cluster, request.workload, strategy(16 // tp, tp, batch=288)
            )
        ]
        for tp in (4, 8, 16)
    }

    assert "tensor-in-node" not in broken[4] + broken[8]
    assert "tensor-in-node" in broken[16]


def asked(**values: object) -> Request:
    """The request of a command line."""
    return to_request(Flags(**{"model": "llama-2-7b", **values}))  # type: ignore[arg-type]


def test_cards_that_come_in_racks_have_their_domain_with_a_word() -> None:
    """GB200 is assumed to stand in NVL72; a flag ends the domain at the node or widens it."""
    usual = asked(gpu="gb200", nodes=36)
    alone = asked(gpu="gb200", nodes=36, nvlink_domain=4)
    wider = asked(gpu="h100", nodes=32, gpus_per_node=8, nvlink_domain=256)
    said = {reason.rule: reason.message for reason in usual.reasons}

    assert (usual.cluster.gpus_per_node, usual.cluster.nvlink_domain_nodes) == (4, 18)
    assert "`nvlink_domain_size` is 72" in said["default-nvlink-domain"]
    assert "--nvlink-domain 4" in said["default-nvlink-domain"]
    assert alone.cluster.nvlink_domain_nodes == 1
    assert wider.cluster.nvlink_domain_nodes == 32
    assert asked(gpu="h100", nodes=36).cluster.nvlink_domain_nodes == 1
    assert asked(gpu="gb200").cluster.nvlink_domain_nodes == 1


@pytest.mark.parametrize(("per_node", "joined"), [(1, 18), (2, 18), (4, 18), (8, 9), (72, 1)])
def test_a_rack_has_so_many_nodes_and_cards(per_node: int, joined: int) -> None:
    """18 trays, and 72 cards at most."""
    found = asked(gpu="gb200", nodes=36, gpus_per_node=per_node)

    assert found.cluster.nvlink_domain_nodes == joined


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpu": "gb200", "nvlink_domain": 6}, "must be a multiple of `gpus_per_node` (=4)"),
        ({"gpu": "gb200", "nvlink_domain": 2}, "use 4; 4 limits it to one node"),
        ({"gpu": "l40s", "gpus_per_node": 4, "nvlink_domain": 8}, "requires NVLink"),
    ],
)
def test_a_domain_that_no_nodes_make_is_refused(values: dict[str, object], message: str) -> None:
    """With the flag, the rule and the way out."""
    with pytest.raises(SpecError) as caught:
        asked(nodes=4, **values)

    assert str(caught.value.problems[0]).startswith("--nvlink-domain: ")
    assert message in str(caught.value.problems[0])


def test_the_hostfile_lists_nodes_and_no_domains(tmp_path: Path) -> None:
    """Launchers start 18 x 4: the domain is a price, not a machine."""
    said = (
        f"gen --model llama-3.1-8b --gpu gb200 --nodes 18 --global-batch 288 --out {tmp_path}/run"
    )
    found = CliRunner().invoke(app, said.split())
    hostfile = next((tmp_path / "run").rglob("hostfile*"))
    lines = hostfile.read_text(encoding="utf-8").splitlines()

    assert found.exit_code == 0, found.output
    assert [line.split()[1] for line in lines if line and line[0] != "#"] == ["slots=4"] * 18
