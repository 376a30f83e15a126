"""Reasons are true: every figure is that of the row it names, what they deny is not there."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from random import Random

import pytest
from drawing import draw_request
from planning import ask, cluster, lora_workload, workload

from dsforge.errors import DsforgeError
from dsforge.plan import Request
from dsforge.planner import choose, search
from dsforge.planner.explore import Explorer
from dsforge.planner.objectives import Aim, aimed
from dsforge.planner.parts import fitting, settled
from dsforge.specs import Host
from dsforge.units import seconds

SEED = int(os.environ.get("DSFORGE_SEED", "7"))
QUOTED = re.compile(
    r"((?:ZeRO-\d|Megatron) dp[^;,()]*?)\)? takes (?:([\d.]+ (?:ms|s|min|h|days?)), )?([\d.]+)x"
)


def steps_of(explorer: Explorer) -> dict[str, set[float]]:
    """Steps of everything that likely fits, by label."""
    found: dict[str, set[float]] = defaultdict(set)
    for explored in explorer.every():
        for candidate in explored.fitting:
            found[candidate.strategy.label()].add(candidate.step_s)
    return found


def untrue(request: Request) -> list[str]:
    """Figures in the reasons of a choice that are not those of the plan they name."""
    explorer = settled(Explorer(request))
    try:
        plan = choose(request)
    except DsforgeError:
        return []
    mine_s, known, wrong = plan.choice.time.step_s.likely, steps_of(explorer), []
    for reason in plan.choice.reasons:
        for label, step, ratio in QUOTED.findall(reason.message):
            theirs = known[label]
            timed = not step or any(seconds(s) == step for s in theirs)
            if not timed or not any(f"{s / mine_s:.2f}" == ratio for s in theirs):
                wrong.append(f"{reason.message} ({theirs}, {mine_s})")
        if reason.message.startswith("nothing fits without offload"):
            kept = [c for e in explorer.every() if not e.family.offloads for c in e.fitting]
            wrong += [reason.message] * bool(kept)
        if "only the likely memory estimate fits" in reason.message:
            kept = [c for c in fitting(explorer) if not c.family.offloads]
            wrong += [reason.message] * bool(kept)
    return wrong


def test_figures_in_reasons_are_those_of_their_rows() -> None:
    """Of random requests; a ratio is to the step of the plan that the reason stands beside."""
    draw = Random(SEED)  # noqa: S311 - which requests, not which key
    wrong = [said for _ in range(25) for said in untrue(draw_request(draw))]

    assert wrong == []


def test_the_reason_of_fastest_quotes_the_row_that_is_chosen() -> None:
    """20 B on 32 hosts of one card each: no row is faster, and the reason says that row's time."""
    on = cluster(32, 1, gpu="h200", intra="nvlink-4", inter="100gbe", nics_per_node=1)
    request = aimed(ask("gpt-neox-20b", on, workload(1024, 32)), Aim("fastest"))
    rows = search(request).plans
    steps = [plan.choice.time.step_s.likely for plan in rows]
    said = {reason.rule: reason.message for reason in rows[0].choice.reasons}

    assert steps[0] == min(steps)
    assert f"a step takes {seconds(steps[0])}," in said["objective-fastest"]


def test_offload_beside_a_tight_plan_says_what_is_true() -> None:
    """70 B with adapters on eight small cards: without offload only the likely estimate fits."""
    on = cluster(1, gpu="a100-40gb")
    sized = (ask("llama-3.1-70b", on, lora_workload(2048, batch)) for batch in (16, 64))
    for request in sized:
        plan = choose(request)
        kept = [c for e in Explorer(request).every() if not e.family.offloads for c in e.fitting]
        said = {reason.rule: reason.message for reason in plan.choice.reasons}
        if plan.strategy.offloads:
            assert ("nothing fits without offload" in said["offload-to-fit"]) == (not kept)


def test_a_much_faster_tight_plan_is_named_and_taken_with_risk() -> None:
    """8 B on eight cards of 80 GB: a larger micro batch or no recomputation may not fit."""
    request = ask("llama-3.1-70b", cluster(4, gpu="a100-80gb"), workload(4096, 64))
    plan = choose(request)
    bold = choose(request.model_copy(update={"risk": True, "prefer": 1.0}))
    sure = choose(request.model_copy(update={"prefer": 1.0}))
    rejected = {lost.rule: lost for lost in search(request).rejected}

    assert plan.choice.memory.device_bytes.high <= plan.cluster.gpu.memory_bytes
    assert bold.choice.time.step_s.likely < sure.choice.time.step_s.likely
    assert bold.choice.memory.device_bytes.high > bold.cluster.gpu.memory_bytes
    assert rejected["tight-but-faster"].strategy == bold.strategy
    assert "`--risk` takes it" in rejected["tight-but-faster"].message
    assert any(reason.rule == "fits-tightly" for reason in bold.choice.reasons)


@pytest.mark.parametrize("listed", [False, True], ids=["numbers", "hosts by name"])
def test_one_node_that_does_better_than_two_is_said(listed: bool) -> None:
    """Adapters of 70 B over 100 GbE: without names one node is taken, with names it is told."""
    hosts = tuple(Host(address=f"10.0.0.{i}", slots=8) for i in (1, 2)) if listed else ()
    on = cluster(2, gpu="a100-40gb", inter="100gbe", nics_per_node=1, hosts=hosts)
    request = ask("llama-3.1-70b", on, lora_workload(4096, 64))
    plan = choose(request)
    said = {reason.rule: reason.message for reason in plan.choice.reasons}
    rule = "fewer-would-do" if listed else "fewer-accelerators"

    assert plan.cluster.nodes == (2 if listed else 1)
    assert "1 of 2 nodes, 8 accelerators: a step takes" in said[rule]
    assert choose(aimed(request, Aim("fastest"))).cluster.nodes == 1


def test_a_plan_of_rows_lists_only_what_fits_likewise() -> None:
    """Rows after the choice are sorted by time, and none fits less surely."""
    request = ask("llama-2-7b", cluster(2, inter="100gbe"), workload(4096, 64))
    rows = search(request).plans
    steps = [plan.choice.time.step_s.likely for plan in rows[1:]]

    assert steps == sorted(steps)
    assert all(p.choice.memory.device_bytes.high <= p.cluster.gpu.memory_bytes for p in rows)
    assert rows[0].choice.time.step_s.likely <= request.prefer * min(steps)
