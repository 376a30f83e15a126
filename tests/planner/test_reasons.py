"""Reasons are true: every figure is that of the row it names, what they deny is not there."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from random import Random

import pytest
from drawing import draw_request
from planning import ask, cluster, lora_workload, qlora_workload, workload
from sampled import each

from dsforge.errors import DsforgeError
from dsforge.plan import Priced, Request
from dsforge.planner import choose, price, search
from dsforge.planner.back_ends import fine_tuned
from dsforge.planner.explore import Explorer
from dsforge.planner.objectives import OBJECTIVES, Aim, Objective, aimed
from dsforge.planner.parts import fitting, settled
from dsforge.specs import ClusterSpec, DataSpec, Host, LoraSpec
from dsforge.units import amount, factor, gb_per_s, gib, seconds, times

SEED = int(os.environ.get("DSFORGE_SEED", "7"))
REQUESTS = int(os.environ.get("DSFORGE_REQUESTS", "25"))
LABEL = re.compile(
    r"(?:ZeRO-\d|Megatron) dp\d+(?: (?:[a-z]+\d+|hpZ \d+|recompute \w+|\w+ on \w+))*"
    r"(?: without distributed optimizer)?"
)
WORDS = re.compile(r"`--[a-z]+ \d+`|ZeRO stages 0, 1 and 2|needs ZeRO-\d")
NUMBER = re.compile(r"\d")


def by_label(explorer: Explorer) -> dict[str, list[Priced]]:
    """Prices of everything that likely fits, by label."""
    request, found = explorer.request, defaultdict(list)
    for explored in explorer.every():
        for candidate in explored.fitting:
            found[candidate.strategy.label()].append(candidate.strategy)
    asked = request.model, request.cluster, request.workload
    return {
        label: [price(*asked, strategy) for strategy in strategies]
        for label, strategies in found.items()
    }


def of_row(cluster: ClusterSpec, priced: Priced) -> Iterator[str]:
    """Every figure that may be said of a row by itself."""
    memory, terms = priced.memory, priced.time.terms
    yield seconds(priced.time.step_s.likely)
    yield from (seconds(terms.offload_s), seconds(terms.optimizer_s))
    yield f"{terms.bubble_s / priced.time.step_s.likely:.0%}"
    yield from map(gib, (memory.device_bytes.likely, memory.device_bytes.high))
    yield gib(memory.host_bytes.peak)
    yield gib(cluster.gpu.memory_bytes - memory.device_bytes.likely)
    yield gib(0.95 * cluster.host_memory_bytes - memory.host_bytes.peak)


def between(other: Priced, mine: Priced) -> Iterator[str]:
    """Every figure that may be said of a row against the choice."""
    ours, theirs = mine.time.step_s.likely, other.time.step_s.likely
    yield f"{max(ours, theirs) / min(ours, theirs):.2f}x {'faster' if theirs < ours else 'slower'}"
    yield times(theirs, ours)
    yield gib(abs(mine.memory.device_bytes.likely - other.memory.device_bytes.likely))
    if mine.time.sent_bytes:
        yield factor(other.time.sent_bytes / mine.time.sent_bytes)


def of_request(request: Request, mine: Priced) -> Iterator[str]:
    """What a reason may quote of the question and of the layout of the choice."""
    cluster, layout = request.cluster, mine.strategy.layout
    yield f"{factor(request.prefer)} slower"
    yield request.model.name
    ranks = layout.context_parallel_size
    yield f"{ranks} GPUs share each sequence"
    yield f"{request.workload.sequence_length // ranks:,} tokens on each"
    batch = request.workload.global_batch_size
    yield f"a global batch of {batch} is too small for {cluster.gpus} GPUs without it"
    yield from (cluster.gpu.name, cluster.intra_node.name, cluster.inter_node.name)
    yield from map(gb_per_s, (cluster.intra_node.bytes_per_s, cluster.inter_node_bytes_per_s))
    yield f"{layout.tensor_parallel_size} tensor parallel ranks"
    yield f"{layout.pipeline_parallel_size} pipeline stages"


def unexplained(request: Request, mine: Priced, message: str, rows: dict[str, list[Priced]]) -> str:
    """What remains of a message without the figures of the rows that it names; empty: no number.

    A rule that DeepSpeed breaks speaks in its own figures.
    """
    if message.startswith(("DeepSpeed cannot run this: ", "ZeRO cannot train the whole model")):
        return ""
    allowed = {*of_row(request.cluster, mine), *of_request(request, mine)}
    for label in LABEL.findall(message):
        for other in rows[label]:
            allowed |= {*of_row(request.cluster, other), *between(other, mine)}
            layout = other.strategy.layout
            allowed |= {
                f"{layout.pipeline_parallel_size} pipeline stages",
                f"over {layout.tensor_parallel_size} GPUs",
            }
    rest = WORDS.sub("", LABEL.sub("", message))
    for figure in sorted(allowed, key=len, reverse=True):
        rest = rest.replace(figure, "")
    return rest if NUMBER.search(rest) else ""


def untrue_of_qlora(request: Request, mine: Priced, said: str) -> list[str]:
    """What a reason says of the same job in 4 bits, if planning that says otherwise."""
    lora = LoraSpec(bits=4)
    work = request.workload.model_copy(update={"lora": lora})
    asked = request.model_copy(update={"workload": work})
    rows = by_label(Explorer(asked))
    words = said.replace("in 4 bits", "")
    wrong = unexplained(request, mine, words, rows)
    return [f"{said} | {wrong}"] * bool(wrong or "faster" not in said)


def untrue(request: Request) -> list[str]:
    """Reasons of a choice that quote a figure of no row they name, or deny what is there."""
    try:
        plan = choose(request)
    except DsforgeError:
        return []
    explorer = settled(Explorer(request))
    request, mine, wrong = explorer.request, plan.choice, []
    rows = by_label(explorer)
    if fine_tuned(request) and not request.constraints.back_end:
        fixed = request.constraints.model_copy(update={"back_end": "megatron"})
        rows |= by_label(Explorer(request.model_copy(update={"constraints": fixed})))
    given = {reason.rule for reason in request.reasons}
    kept = [c for e in explorer.every() if not e.family.offloads for c in e.fitting]
    sure = [c for c in fitting(explorer) if not c.family.offloads]
    for reason in mine.reasons:
        said = reason.message
        if reason.rule == "qlora-needs-no-offload":
            wrong += untrue_of_qlora(request, mine, said)
            continue
        if reason.rule not in given and unexplained(request, mine, said, rows):
            wrong.append(f"{said} | {unexplained(request, mine, said, rows)}")
        if said.startswith("no plan without offload fits"):
            wrong += [said] * bool(kept)
        if said.startswith("without offload, plans fit only by the likely"):
            wrong += [said] * bool(sure or not kept)
        if reason.rule == "fits":
            wrong += [said] * (mine.memory.device_bytes.high > plan.cluster.gpu.memory_bytes)
    return wrong


@pytest.mark.parametrize("requests", each(2, (REQUESTS // 3, REQUESTS)))
def test_figures_in_reasons_are_those_of_their_rows(requests: int) -> None:
    """Of random requests: each number is one of the rows that the reason names."""
    draw = Random(SEED)  # noqa: S311 - which requests, not which key
    drawn = [draw_request(draw) for _ in range(requests)]
    rows = {"data": DataSpec(train="rows.jsonl")}
    with_data = [
        request.model_copy(update={"workload": request.workload.model_copy(update=rows)})
        for request in drawn[: requests // 3]
    ]
    wrong = [said for request in (*drawn, *with_data) for said in untrue(request)]

    assert wrong == []


@pytest.mark.parametrize("times", each(2, (2, 4)))
def test_reasons_come_in_the_order_of_what_they_cost(times: int) -> None:
    """A plan that is 1.5x faster is named before one that is 1.1x slower."""
    draw = Random(SEED + 1)  # noqa: S311 - which requests, not which key
    compared = 0
    for _ in range(times * REQUESTS):
        try:
            plan = choose(draw_request(draw))
        except DsforgeError:
            continue
        own = [r for r in plan.choice.reasons if r.kind == "choice" and "offload" not in r.rule]
        ratios = [
            float(found[0].replace(",", ""))
            for reason in own
            if (found := re.findall(r" is ([\d.,]+)x (?:faster|slower) \(", reason.message))
        ]
        compared += len(ratios) > 1
        assert ratios == sorted(ratios, reverse=True)
    assert compared


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
            assert ("no plan without offload fits" in said["offload-to-fit"]) == (not kept)


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
    assert "`--risk` allows it" in rejected["tight-but-faster"].message
    assert any(reason.rule == "fits-tightly" for reason in bold.choice.reasons)


@pytest.mark.parametrize("listed", [False, True], ids=["numbers", "hosts by name"])
def test_one_node_that_does_better_than_two_is_said(listed: bool) -> None:
    """Adapters of 70 B over 25 GbE: without names one node is taken, with names it is told."""
    hosts = tuple(Host(address=f"10.0.0.{i}", slots=8) for i in (1, 2)) if listed else ()
    on = cluster(2, gpu="a100-40gb", inter="25gbe", nics_per_node=1, hosts=hosts)
    request = ask("llama-3.1-70b", on, lora_workload(4096, 64))
    plan = choose(request)
    said = {reason.rule: reason.message for reason in plan.choice.reasons}
    rule = "fewer-would-do" if listed else "fewer-accelerators"

    assert plan.cluster.nodes == (2 if listed else 1)
    assert "1 of 2 nodes, 8 accelerators: the fastest step there takes" in said[rule]
    assert choose(aimed(request, Aim("fastest"))).cluster.nodes == 1


def test_a_plan_of_rows_lists_only_what_fits_likewise() -> None:
    """Rows after the choice are sorted by time, and none fits less surely."""
    request = ask("llama-2-7b", cluster(2, inter="100gbe"), workload(4096, 64))
    rows = search(request).plans
    steps = [plan.choice.time.step_s.likely for plan in rows[1:]]

    assert steps == sorted(steps)
    assert all(p.choice.memory.device_bytes.high <= p.cluster.gpu.memory_bytes for p in rows)
    assert rows[0].choice.time.step_s.likely <= request.prefer * min(steps)


def test_qlora_is_named_where_lora_has_to_offload() -> None:
    """13 B with adapters on one card of 24 GB: in 4 bits nothing has to leave it."""
    on = cluster(1, 1, "rtx-4090", intra="pcie-4", host_memory_bytes=64 << 30)
    request = ask("llama-2-13b", on, lora_workload(2048, 64))
    said = {reason.rule: reason.message for reason in choose(request).choice.reasons}

    assert "with `--method qlora`, ZeRO-0 dp1" in said["qlora-needs-no-offload"]
    assert untrue(request) == []


@pytest.mark.parametrize("objective", each(3, OBJECTIVES))
def test_an_objective_quotes_the_plan_that_follows(objective: Objective) -> None:
    """Of random requests with a budget of tokens: step, GPU-seconds, days and cost are its own."""
    draw, looked = Random(SEED + 2), 0  # noqa: S311 - which requests, not which key
    for _ in range(REQUESTS // 2):
        request = draw_request(draw)
        priced = {"gpu_hour_price": 2.0, "nodes": min(4, request.cluster.nodes)}
        request = request.model_copy(
            update={
                "cluster": request.cluster.model_copy(update=priced),
                "workload": request.workload.model_copy(update={"tokens": 10**10}),
            }
        )
        try:
            plan = choose(aimed(request, Aim(objective)))
        except DsforgeError:
            continue
        (said,) = [r.message for r in plan.choice.reasons if r.rule == f"objective-{objective}"]
        step_s, gpus, run = plan.choice.time.step_s.likely, plan.cluster.gpus, plan.run
        looked += 1

        assert run is not None
        assert run.money is not None
        assert f"{gpus} of {request.cluster.gpus} GPUs, a step takes {seconds(step_s)}, " in said
        assert f"{amount(gpus * step_s)} GPU-seconds" in said
        assert f"the run takes {amount(run.days.likely)} days" in said
        assert f"costs {amount(run.money.likely)} at 2 per GPU-hour" in said
    assert looked > 1


@pytest.mark.parametrize("times", each(2, (1, 3)))
def test_a_part_that_does_better_quotes_its_own_step(times: int) -> None:
    """Of random requests over slow networks: the step named is that of the fastest on the part."""
    draw, looked = Random(SEED + 3), 0  # noqa: S311 - which requests, not which key
    for _ in range(times * REQUESTS):
        request = draw_request(draw)
        try:
            plan = choose(request)
        except DsforgeError:
            continue
        rules = ("fewer-accelerators", "fewer-would-do")
        said = [r.message for r in plan.choice.reasons if r.rule in rules]
        for message in said:
            looked += 1
            found = re.search(
                r"(\d+) accelerators: the fastest step there takes ([\d.]+ \w+)", message
            )
            steps = [c.step_s for c in fitting(Explorer(request))]
            if not steps:  # a rule or memory stands against all of them
                assert any(f"with all {request.cluster.gpus}" in other for other in said)
                continue
            assert found
            if plan.cluster.gpus < request.cluster.gpus:
                assert f"on all {request.cluster.gpus} it takes {seconds(min(steps))}" in message
                own = Explorer(request.model_copy(update={"cluster": plan.cluster}))
                assert found[2] == seconds(min(c.step_s for c in fitting(own)))
    assert looked


@pytest.mark.parametrize(("model", "said"), [("gemma-2-27b", True), ("qwen2.5-32b", False)])
def test_logits_of_a_whole_micro_batch_are_explained(model: str, said: bool) -> None:
    """Where a model caps its logits, `dsforge train` cannot take them in chunks; others it can."""
    cards = cluster(1, 4, "rtx-5090", intra="pcie-5-host")
    plan = choose(ask(model, cards, qlora_workload(4096)))

    assert ("whole-logits" in {reason.rule for reason in plan.choice.reasons}) is said
