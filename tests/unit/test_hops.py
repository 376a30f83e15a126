"""Every hop has its price: between stages, experts, context ranks, groups that nodes do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from planning import cluster, strategy, workload

from dsforge import catalog
from dsforge.estimate.comm import channel, hop, placement
from dsforge.estimate.time import estimate_time
from dsforge.strategy import Strategy

LLAMA = catalog.model("llama-3.1-8b")
NETWORKS = ("1gbe", "10gbe", "100gbe", "infiniband-400")


def step_s(how: Strategy, inter: str, nodes: int = 4, nics: int = 1, model: Any = LLAMA) -> float:
    """Seconds of a step of 256 samples of 4096 tokens."""
    on = cluster(nodes, gpu="h100-80gb", intra="nvlink-4", inter=inter, nics_per_node=nics)
    return estimate_time(model, on, workload(4096, 256), how).step_s.likely


def megatron(dp: int, tp: int, pp: int, **more: Any) -> Strategy:
    """Megatron with its distributed optimizer."""
    stage = 1 if dp > 1 else 0
    return strategy(dp, tp, pp, batch=256, back_end="megatron", zero_stage=stage, **more)


@pytest.mark.parametrize(
    "how",
    [
        megatron(4, 1, 8, micro_batch_size=2),
        megatron(4, 1, 8, micro_batch_size=2, virtual_stages=4),
        megatron(1, 4, 8),
        strategy(8, 1, 4, batch=256, zero_stage=1),
        megatron(2, 1, 8, context_parallel_size=2),
    ],
    ids=["four ranks a stage", "interleaved", "tensor ranks", "DeepSpeed", "context ranks"],
)
def test_stages_smaller_than_a_node_pay_for_the_network(how: Strategy) -> None:
    """Some hops leave the node, so a slower network makes a slower step, and 1 GbE a dire one."""
    steps = [step_s(how, inter) for inter in NETWORKS]

    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 5 * steps[-1]


@pytest.mark.parametrize("virtual", [1, 2, 4])
def test_a_step_is_never_shorter_than_its_bytes_through_the_port(virtual: int) -> None:
    """Forward and backward of each chunk and micro batch, for all replicas beside each other."""
    how = megatron(4, 1, 8, micro_batch_size=2, virtual_stages=virtual)
    link = catalog.link("1gbe")
    one = 2 * 4096 * LLAMA.hidden_size * 2
    sent = 2 * one * how.gradient_accumulation_steps * virtual * 4

    assert step_s(how, "1gbe") > sent / (link.bytes_per_s * link.efficiency)


def test_more_chunks_send_more_often() -> None:
    """Interleaving multiplies hops: over a slow network it costs what elsewhere it saves."""
    plain, chunked = (
        megatron(4, 1, 8, micro_batch_size=2, virtual_stages=virtual) for virtual in (1, 4)
    )

    assert step_s(chunked, "10gbe") > 3 * step_s(plain, "10gbe")
    assert step_s(chunked, "infiniband-400", nics=8) < step_s(plain, "infiniband-400", nics=8)


def test_a_pipeline_inside_a_node_does_not_ask_for_the_network() -> None:
    """One node: the network has no part in it."""
    how = megatron(1, 1, 8)

    assert step_s(how, "1gbe", 1) == step_s(how, "infiniband-400", 1)


def test_the_hop_is_shared_by_the_ranks_that_send_at_once() -> None:
    """Eight ranks of a node share one port; each has a port of its own where there are eight."""
    rates = {
        (nics, ranks): hop(cluster(4, inter="100gbe", nics_per_node=nics), 4, ranks).bytes_per_s
        for nics in (1, 8)
        for ranks in (1, 4, 8, 16)
    }

    assert rates[1, 1] == pytest.approx(4 * rates[1, 4]) == pytest.approx(8 * rates[1, 8])
    assert rates[1, 16] == rates[1, 8]
    assert len({round(rates[8, ranks]) for ranks in (1, 4, 8, 16)}) == 1


@pytest.mark.parametrize(("ranks", "stride"), [(3, 1), (3, 2), (6, 1), (5, 1), (2, 3)])
def test_groups_that_do_not_divide_a_node_cross_the_network(ranks: int, stride: int) -> None:
    """Three ranks fit on a node of eight, but every third group lies across two nodes."""
    torn = placement(cluster(6), ranks, stride)

    assert torn.nodes == 2
    assert channel(cluster(6, inter="1gbe"), ranks, stride).bytes_per_s < 2e8
    assert placement(cluster(1), ranks, stride).nodes == 1


def test_experts_of_other_nodes_share_the_port() -> None:
    """In an all-to-all each rank sends to each: eight flows leave a node, not one."""
    on = cluster(2, inter="100gbe", nics_per_node=1)
    link = channel(on, 16, 1)
    port = on.inter_node.bytes_per_s * on.inter_node.efficiency

    assert link.exchange_s(16.0) > 8 * 8 / port
    assert channel(cluster(1), 8, 1).exchange_share == 1.0


def test_gradients_of_experts_cross_nodes_where_their_copies_lie_apart() -> None:
    """Eight experts on the ranks of a node: their copies are on the other node, eight flows."""
    mixtral = catalog.model("mixtral-8x7b")
    near = strategy(16, batch=256, back_end="megatron", zero_stage=1)
    far = near.model_copy(
        update={"layout": near.layout.model_copy(update={"expert_parallel_size": 8})}
    )
    near_s, far_s = (
        [step_s(how, inter, 2, model=mixtral) for inter in ("1gbe", "infiniband-400")]
        for how in (near, far)
    )

    assert near_s[0] > near_s[1]
    assert far_s[0] > 10 * far_s[1]


def test_tied_embeddings_are_summed_over_both_ends() -> None:
    """The first and the last stage hold a copy each: its gradient crosses the network once."""
    tied = LLAMA.model_copy(update={"tied_embeddings": True})
    how = megatron(8, 1, 4)
    grown = step_s(how, "1gbe", model=tied) - step_s(how, "1gbe")
    words = 4 * LLAMA.vocab_size * LLAMA.hidden_size

    assert grown > 8 * words / (catalog.link("1gbe").bytes_per_s)
