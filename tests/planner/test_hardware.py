"""Better hardware, and what is promised of the plan: see `dsforge/planner/preference.py`.

Random requests are asked again with more memory, RAM, adapters, nodes, a faster link or card.
`DSFORGE_SEED` draws others. Many at once, another seed each time:

    DSFORGE_SEED=$RANDOM pytest tests/planner/test_hardware.py -m slow -n 4
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from drawing import draw_request
from follows import unlike

from dsforge.errors import DsforgeError, LayoutError
from dsforge.plan import PREFERRED, Request
from dsforge.planner import choose, price, search
from dsforge.planner.explore import Candidate, Explorer
from dsforge.planner.objectives import Aim, aimed
from dsforge.planner.parts import fitting, settled
from dsforge.planner.preference import choice

SEED = int(os.environ.get("DSFORGE_SEED", "11"))
FEW, MANY, PARTS = 3, 2000, 20
ROUNDING = 1 + 1e-9


class Taken(NamedTuple):
    """What is chosen on some hardware."""

    request: Request  # on the machines that are used
    candidate: Candidate
    best_s: float  # the fastest that fits likewise, on all machines or fewer


def taken(request: Request) -> Taken | None:
    """The choice; none where nothing fits."""
    explorer = settled(Explorer(request))
    found = fitting(explorer)
    if not found:
        return None
    chosen = choice(explorer.request, found)
    best_s = min(explorer.request.part_step_s, *(c.step_s for c in found))
    return Taken(explorer.request, chosen, best_s)


def drawn(count: int, part: int = 0) -> Iterator[tuple[Request, Taken]]:
    """So many random requests for which something fits; each part draws others."""
    draw = Random(SEED + 1_000_003 * part)  # noqa: S311 - which requests, not which key
    while count:
        request = draw_request(draw)
        found = taken(request)
        if found is not None:
            count -= 1
            yield request, found


def better(request: Request) -> Iterator[tuple[str, Request]]:
    """The request on hardware that is better in one thing."""
    cluster, card, link = request.cluster, request.cluster.gpu, request.cluster.inter_node
    faster = {kind: 1.3 * flops for kind, flops in card.peak_flops.items()}
    changes = {
        "memory": {"gpu": card.model_copy(update={"memory_bytes": 5 * card.memory_bytes // 4})},
        "RAM": {"host_memory_bytes": 2 * cluster.host_memory_bytes},
        "link": {"inter_node": link.model_copy(update={"bytes_per_s": 1.6 * link.bytes_per_s})},
        "adapters": {"nics_per_node": cluster.nics_per_node + 1},
        "card": {"gpu": card.model_copy(update={"peak_flops": faster})},
        "nodes": {"nodes": 2 * cluster.nodes},
    }
    for name, change in changes.items():
        if cluster.nodes > 1 or name not in ("link", "adapters"):
            on = cluster.model_copy(update=change)
            yield name, request.model_copy(update={"cluster": on})


def worse(request: Request, before: Taken) -> Iterator[str]:
    """Better hardware on which the plan is slower than promised."""
    if not before.candidate.safe:  # certainty may be bought with time
        return
    for name, asked in better(request):
        now = taken(asked)
        if now is None:  # a batch that more nodes do not divide is refused, never slower
            if name != "nodes":
                yield f"better {name}: nothing fits"
            continue
        if now.best_s > before.best_s * ROUNDING and name != "nodes":
            yield f"better {name}: the best takes {now.best_s / before.best_s:.3f}x"
        if now.candidate.step_s > request.prefer * before.candidate.step_s * ROUNDING:
            yield f"better {name}: {now.candidate.step_s / before.candidate.step_s:.3f}x"


def untrue(request: Request, found: Taken) -> Iterator[str]:
    """A choice beyond its preference, a fastest that is not, a plan unlike its estimate."""
    if found.candidate.step_s > request.prefer * found.best_s * ROUNDING:
        yield f"{found.candidate.step_s / found.best_s:.3f}x the best"
    try:
        quickest = aimed(request, Aim("fastest"))
        rows = search(quickest).plans
    except DsforgeError:  # the batch alone forbids it
        return
    steps = [plan.choice.time.step_s.likely for plan in rows]
    if steps[0] > min(steps) * ROUNDING:
        yield f"fastest takes {steps[0] / min(steps):.3f}x the fastest row"
    if steps[0] > found.candidate.step_s * ROUNDING:
        yield f"fastest takes {steps[0] / found.candidate.step_s:.3f}x the default"
    plan, on = rows[0], quickest.cluster
    alone = price(request.model, on, request.workload, plan.strategy)
    if alone.time != plan.choice.time or alone.memory != plan.choice.memory:
        yield "the plan is priced unlike its strategy"


def unlaunched(request: Request, _: Taken) -> Iterator[str]:
    """Files that say or start something else than the choice."""
    try:
        plan = choose(request)
    except DsforgeError:  # the batch alone forbids it
        return
    yield from unlike(plan)


def broken(count: int, part: int = 0) -> list[str]:
    """What random requests break."""
    return [
        f"{request.model.name} on {request.cluster.nodes} x {request.cluster.gpus_per_node} "
        f"{request.cluster.gpu.name} over {request.cluster.inter_node.name}: {said}"
        for request, found in drawn(count, part)
        for check in (worse, untrue, unlaunched)
        for said in check(request, found)
    ]


def test_better_hardware_is_never_slower_than_promised() -> None:
    """Neither the best plan at all, nor the choice beyond the preference; fastest is fastest."""
    assert broken(FEW) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_better_hardware_is_never_slower_for_thousands_of_requests(part: int) -> None:
    """The same of many, in parts that processes can share."""
    assert broken(MANY // PARTS, part) == []


@pytest.mark.parametrize("name", ["link", "memory", "adapters", "card", "RAM"])
def test_without_preference_better_hardware_is_never_slower_at_all(name: str) -> None:
    """`--prefer 1`: each step of a ladder of hardware is at least as fast as the one before."""
    draw = Random(SEED)  # noqa: S311
    ladders = 0
    while ladders < 2:
        request = draw_request(draw).model_copy(update={"prefer": 1.0})
        if request.cluster.nodes == 1 or request.cluster.gpus > 32:
            continue
        found, steps = taken(request), []
        while found is not None and found.candidate.safe and len(steps) < 4:
            steps.append(found.candidate.step_s)
            request = dict(better(request))[name]
            found = taken(request)
        ladders += len(steps) > 1
        assert all(b <= a * ROUNDING for a, b in itertools.pairwise(steps)), steps


def quoted(network: str, *, prefer: float = PREFERRED) -> Taken:
    """8 B on four nodes of H100 over a network: where a link of 50 Gbit/s once took twice 40's."""
    from planning import ask, cluster, workload

    on = cluster(4, gpu="h100-80gb", intra="nvlink-4", inter=network, nics_per_node=1)
    request = ask("llama-3.1-8b", on, workload(4096, 256)).model_copy(update={"prefer": prefer})
    found = taken(request)
    assert found is not None
    return found


def test_a_tight_plan_of_a_part_does_not_count_where_the_whole_fits_surely() -> None:
    """More RAM gives one node a surer and slower plan than the tight one it had before."""
    from planning import ask, cluster, workload

    steps = []
    for gib in (1024, 2048):
        on = cluster(6, 6, gpu="b200-180gb", inter="1gbe", host_memory_bytes=gib << 30)
        found = taken(ask("llama-3.1-70b", on, workload(4096, 96)))
        assert found is not None
        steps.append(found.best_s)

    assert steps[1] <= steps[0] * ROUNDING


def test_the_ladder_of_networks_has_no_step_down() -> None:
    """Each faster network has a plan within the preference, and without it a faster one."""
    names = ("1gbe", "10gbe", "40gbe", "50gbe", "100gbe", "200gbe", "400gbe")
    for prefer in (1.0, PREFERRED):
        steps = [quoted(name, prefer=prefer).candidate.step_s for name in names]

        assert all(b <= prefer * a * ROUNDING for a, b in itertools.pairwise(steps))


def test_one_node_is_taken_where_two_are_clearly_slower() -> None:
    """Gradients of 9 B over 1 GbE: the plan leaves nodes idle and says so; `prefer` keeps them."""
    from planning import ask, cluster, workload

    on = cluster(2, gpu="b200", inter="1gbe", nics_per_node=1)
    request = ask("llama-3.1-8b", on, workload(4096, 64), back_end="deepspeed", zero_stage=2)
    plan = choose(request)
    kept = choose(request.model_copy(update={"prefer": 1e6}))
    said = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert (plan.cluster.nodes, kept.cluster.nodes) == (1, 2)
    assert "1 of 2 nodes, 8 accelerators" in said["fewer-accelerators"]
    assert plan.choice.time.step_s.likely < kept.choice.time.step_s.likely / 2


@pytest.mark.parametrize(("nodes", "batch", "kept"), [(48, 2048, 32), (3, 256, 2), (6, 512, 4)])
def test_a_batch_that_all_cannot_share_goes_to_the_most_that_can(
    nodes: int, batch: int, kept: int
) -> None:
    """More machines than divide the batch are no reason to refuse: some stay idle."""
    from planning import ask, cluster, workload

    on = cluster(nodes, gpu="a100-80gb", inter="infiniband-200", nics_per_node=8)
    plan = choose(ask("llama-2-13b", on, workload(2048, batch), back_end="deepspeed", zero_stage=2))
    said = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert plan.cluster.nodes == kept
    assert f"{kept} of {nodes} nodes" in said["fewer-accelerators"]
    assert "use a global batch size of" in said["fewer-accelerators"]


def test_a_batch_for_less_than_half_of_the_machines_is_refused() -> None:
    """Another batch is the better answer then; the error names it."""
    from planning import ask, cluster, workload

    with pytest.raises(LayoutError, match="no valid strategy") as caught:
        choose(ask("llama-2-7b", cluster(1, 8), workload(2048, 2), zero_stage=2))

    assert "use a global batch size of 8" in str(caught.value.problems[0])
