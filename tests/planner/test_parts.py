"""What fits on a part of the cluster, or with more said, is never lost by asking for more."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from drawing import draw_request
from planning import ask, cluster, workload

from dsforge.errors import DoesNotFitError, DsforgeError, LayoutError
from dsforge.plan import Plan, Request
from dsforge.planner import choose
from dsforge.specs import ClusterSpec
from dsforge.strategy import Constraints

SEED, DRAWN = 41, 12


def planned(request: Request) -> Plan | None:
    """The plan; none where nothing fits."""
    try:
        return choose(request)
    except DsforgeError:
        return None


def narrower(draw: Random, request: Request) -> Request:
    """The request with something fixed that its search looks at, too."""
    fixed: dict[str, Any] = draw.choice(
        (
            {"zero_stage": draw.choice((1, 2, 3))},
            {"micro_batch_size": draw.choice((1, 2))},
            {"recompute": draw.choice(("none", "full"))},
            {"pipeline_parallel_size": draw.choice((1, 2, 4))},
            {"tensor_parallel_size": draw.choice((1, 2))},
        )
    )
    return request.model_copy(update={"constraints": Constraints(**fixed)})


def on_nodes(request: Request, nodes: int) -> Request:
    """The request on another number of nodes."""
    on = request.cluster.model_copy(update={"nodes": nodes})
    return request.model_copy(update={"cluster": on})


def drawn_small() -> list[Request]:
    """Random requests whose search is quick, with little RAM and small batches among them."""
    draw, found = Random(SEED), []  # noqa: S311 - which requests, not which key
    while len(found) < DRAWN:
        request = draw_request(draw)
        if request.model.moe is None and request.cluster.nodes > 1 and request.cluster.gpus <= 32:
            found.append(request)
    return found


def test_a_wider_request_fits_where_a_narrower_one_does() -> None:
    """Who fixes nothing has all the plans of who fixes something."""
    draw = Random(SEED)  # noqa: S311
    for request in drawn_small():
        fixed = narrower(draw, request)
        if planned(fixed) is not None:
            assert planned(request) is not None, fixed.constraints


def test_twice_the_nodes_fit_where_all_of_the_nodes_did() -> None:
    """Half of them can do it, and may stay alone."""
    for request in drawn_small():
        plan = planned(request)
        if plan is not None and plan.cluster.nodes == request.cluster.nodes:
            assert planned(on_nodes(request, 2 * request.cluster.nodes)) is not None


def neox(nodes: int, **fixed: Any) -> Request:
    """20 B with 64 short samples: more than 64 cards have no share of the batch under ZeRO."""
    return ask("gpt-neox-20b", a10g(nodes), workload(512, 64), **fixed)


def a10g(nodes: int) -> ClusterSpec:
    """Nodes of eight cards with 22 GiB, and of little RAM."""
    link = {"intra": "pcie-4", "inter": "200gbe"}
    return cluster(nodes, gpu="a10g-24gb", host_memory_bytes=256 << 30, **link)


@pytest.mark.parametrize("fixed", [{}, {"zero_stage": 3}], ids=["open", "stage 3"])
def test_a_batch_for_half_of_the_machines_goes_to_them(fixed: dict[str, Any]) -> None:
    """Pipelines over all of them are legal and lack memory: that hides no plan of a part."""
    plan = choose(neox(16, **fixed))
    said = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert plan.cluster.nodes == 8
    assert "8 of 16 nodes" in said["fewer-accelerators"]
    assert "use a global batch size of 128" in said["fewer-accelerators"]


def test_an_error_names_the_batch_alone_and_the_machines_that_suffice() -> None:
    """A quarter of the machines can do it, or all with another batch; neither needs more RAM."""
    with pytest.raises(DoesNotFitError) as caught:
        choose(neox(32))
    ways = (caught.value.hint or "").split("\n")

    batch = next(way for way in ways if "a batch that all 256 accelerators share" in way)
    assert "global batch 256" in batch
    assert any("64 of 256 accelerators: " in way for way in ways)
    assert not any("RAM on each node" in way and "global batch" in way for way in ways)


def test_an_error_of_the_batch_names_the_part_that_can_share_it() -> None:
    """`no valid strategy` is true of all machines only."""
    on = cluster(4, gpu="h100-80gb", intra="nvlink-4", inter="infiniband-400")
    request = ask("gemma-3-27b", on, workload(4096, 8))
    with pytest.raises(LayoutError, match="8 of them can run it") as caught:
        choose(request)

    assert "--objective fastest" in str(caught.value)
    assert planned(on_nodes(request, 1)) is not None
