"""What holds for every strategy on every cluster, asked of random ones.

`DSFORGE_SEED` draws others; the slow test draws many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
from drawing import draw_request, draw_strategy
from planning import ask, cluster, strategy, workload

from dsforge.estimate.cut import stages_of
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.params import parameters
from dsforge.estimate.shard import rank_parameters
from dsforge.estimate.states import States, states
from dsforge.estimate.time import estimate_time
from dsforge.plan import Request
from dsforge.specs import ClusterSpec
from dsforge.strategy import Strategy

SEED = int(os.environ.get("DSFORGE_SEED", "20261122"))
FEW, MANY = 60, 3000

Drawn = tuple[Request, Strategy]


def drawn(count: int) -> Iterator[Drawn]:
    """So many legal strategies, each for its own request."""
    draw = Random(SEED)  # noqa: S311 - which plans, not which key
    while count:
        request = draw_request(draw)
        how = draw_strategy(draw, request, tries=30)
        if how is not None:
            count -= 1
            yield request, how


def on_device(kept: States) -> float:
    """Weights, gradients and optimizer state."""
    return kept.weights + kept.gradients + kept.optimizer


def fuller_than_the_mean(request: Request, how: Strategy) -> str | None:
    """A fullest rank that holds less than the mean of all, or a sum that is not the model."""
    model, work, layout = request.model, request.workload, how.layout
    costs = family_costs(model, request.cluster, work, how)
    every = stages_of(model, how)
    held = [rank_parameters(model, work, layout, stage) for stage in every]
    buckets = costs.loads[0].buckets
    each = [on_device(states(work, how, ranks, buckets)) for ranks in held]
    fullest = max(on_device(load.kept) for load in costs.loads)
    tp, ep = layout.tensor_parallel_size, layout.expert_parallel_size
    total = tp * sum(ranks.shared for ranks in held) + tp * ep * sum(r.experts for r in held)
    copies = model.vocab_size * model.embedding_size
    copies *= model.tied_embeddings and layout.pipeline_parallel_size > 1
    rounding = tp * ep * 2 * len(every)
    if sum(stage.layers for stage in every) != model.layers:
        return "the stages do not hold the layers"
    if work.method == "full" and not 0 <= total - parameters(model) - copies <= rounding:
        return f"all ranks hold {total - parameters(model)} elements more than the model"
    if fullest < max(each) - 1:
        return f"a stage holds {max(each)}, the fullest {fullest}"
    return None if fullest >= sum(each) / len(each) - 1 else "the mean is fuller than the fullest"


def better(cluster: ClusterSpec) -> Iterator[tuple[str, ClusterSpec]]:
    """The cluster with one thing better."""
    card, inter, intra = cluster.gpu, cluster.inter_node, cluster.intra_node
    faster = {kind: 1.3 * flops for kind, flops in card.peak_flops.items()}
    changes = {
        "network": {
            "inter_node": inter.model_copy(update={"bytes_per_s": 1.7 * inter.bytes_per_s})
        },
        "latency": {"inter_node": inter.model_copy(update={"latency_s": inter.latency_s / 2})},
        "slots": {"intra_node": intra.model_copy(update={"bytes_per_s": 1.7 * intra.bytes_per_s})},
        "adapters": {"nics_per_node": cluster.nics_per_node + 1},
        "FLOP/s": {"gpu": card.model_copy(update={"peak_flops": faster})},
        "bandwidth": {
            "gpu": card.model_copy(update={"memory_bytes_per_s": 1.3 * card.memory_bytes_per_s})
        },
        "memory": {"gpu": card.model_copy(update={"memory_bytes": 2 * card.memory_bytes})},
        "RAM": {"host_memory_bytes": 2 * cluster.host_memory_bytes},
        "cores": {"cpu_cores": 2 * cluster.cpu_cores},
    }
    for name, change in changes.items():
        yield name, cluster.model_copy(update=change)


def worse_for_better(request: Request, how: Strategy) -> str | None:
    """Better hardware on which the same strategy takes longer, or needs more memory."""
    model, work = request.model, request.workload
    step_s = estimate_time(model, request.cluster, work, how).step_s.likely
    most = estimate_memory(model, request.cluster, work, how).device_bytes.high
    for name, on in better(request.cluster):
        now_s = estimate_time(model, on, work, how).step_s.likely
        if now_s > step_s * (1 + 1e-9):
            return f"better {name}: {now_s / step_s:.4f}x the time"
        if estimate_memory(model, on, work, how).device_bytes.high > most + 1:
            return f"better {name}: more memory"
    return None


def grown_states(request: Request, how: Strategy) -> str | None:
    """Twice the replicas with more bytes of states on a rank."""
    model, cluster, work, layout = request.model, request.cluster, request.workload, how.layout
    twice = layout.model_copy(update={"data_parallel_size": 2 * layout.data_parallel_size})
    one, two = (
        max(on_device(load.kept) for load in family_costs(model, cluster, work, s).loads)
        for s in (how, how.model_copy(update={"layout": twice}))
    )
    return f"{two / one:.4f}x the states on twice the ranks" if two > one + 1 else None


CHECKS = (fuller_than_the_mean, worse_for_better, grown_states)


def broken(count: int) -> list[str]:
    """What random strategies break."""
    return [
        f"{how.label()} for {request.model.name} on {request.cluster.nodes} x "
        f"{request.cluster.gpus_per_node}: {said}"
        for request, how in drawn(count)
        for check in CHECKS
        if (said := check(request, how)) is not None
    ]


def test_no_random_strategy_breaks_an_invariant() -> None:
    """Fullest at least the mean, sums, states that do not grow, nothing slower on better links."""
    assert broken(FEW) == []


@pytest.mark.slow
def test_no_strategy_of_thousands_breaks_an_invariant() -> None:
    """The same of many."""
    assert broken(MANY) == []


def test_a_faster_card_is_never_slower_where_copies_and_gathers_both_wait() -> None:
    """What compute hides of gathers over PCIe and of copies to RAM was once counted twice of it."""
    on = cluster(1, 2, "a100-40gb", intra="pcie-4", host_memory_bytes=128 << 30, cpu_cores=16)
    how = strategy(2, zero_stage=3, batch=16, offload_optimizer="cpu")
    for offload in ("none", "cpu"):
        request = ask("qwen3-30b-a3b", on, workload(512, 16))

        assert (
            worse_for_better(request, how.model_copy(update={"offload_parameters": offload}))
            is None
        )


def test_more_bandwidth_is_never_slower_where_another_stage_becomes_the_slowest() -> None:
    """The stage with the head gets faster than one of three layers, whose collectives take longer.

    Sends over 10 GbE go on beside those too; beside compute alone they showed 25 ms more.
    """
    on = cluster(6, 8, "b200", intra="nvlink-3", inter="10gbe", nics_per_node=1)
    how = strategy(2, 2, 12, batch=16, back_end="megatron", zero_stage=1, sequence_parallel=True)

    assert worse_for_better(ask("llama-3.1-8b", on, workload(4096, 16)), how) is None
