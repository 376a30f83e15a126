"""Sentences that a person acts on: each says what is meant, and it is so."""

from __future__ import annotations

import re
from random import Random

import pytest
from click.testing import CliRunner
from drawing import draw_request
from planning import ask, cluster, workload
from sampled import each

from dsforge.cli.main import app
from dsforge.constraints import check
from dsforge.errors import DsforgeError
from dsforge.planner import appraise, choose, price
from dsforge.planner.objectives import Aim, aimed
from dsforge.planner.preference import demand, ease
from dsforge.planner.remedies import remedies
from dsforge.render import render
from dsforge.units import gib, seconds, times

EIGHT = ("--model", "llama-3.1-8b", "--gpu", "h100", "--gpus-per-node", "8")


def said(*words: str) -> str:
    """What a command says, its lines joined; with the message and the hint of an error."""
    done = CliRunner(env={"COLUMNS": "100"}).invoke(app, list(words))
    error = done.exception
    more = [error.message, error.hint] if isinstance(error, DsforgeError) else []
    more += [str(problem) for problem in getattr(error, "problems", ())]
    return " ".join(" ".join([done.output, *more]).split())


@pytest.mark.parametrize("requests", each(2, (10, 30)))
def test_plan_md_says_stage_and_data_parallel_size_and_why_each_other_file_lost(
    requests: int,
) -> None:
    """Of random requests: no configuration that is faster stands there without a reason."""
    draw, looked = Random(3), 0  # noqa: S311 - which requests, not which key
    for _ in range(requests):
        try:
            plan = choose(draw_request(draw))
        except DsforgeError:
            continue
        (page,) = (a.text for a in render(plan) if a.path == "PLAN.md")
        mine_s = plan.choice.time.step_s.likely
        stage = f"- ZeRO stage: **{plan.strategy.zero_stage}"
        assert (
            "distributed optimizer: **" if plan.strategy.back_end == "megatron" else stage
        ) in page
        assert f"- data parallel size: **{plan.strategy.layout.data_parallel_size}**" in page
        assert page.index("\nReasons") < page.index("## The files")
        assert "[default-" not in page
        for variant in plan.variants:
            if variant.priced is None:
                continue
            other = variant.priced
            (row,) = re.findall(
                rf"^\| `\S*{variant.name if variant.name != 'megatron' else 'args'}\.\S*` .*$",
                page,
                re.MULTILINE,
            )
            step_s = other.time.step_s.likely
            looked += 1
            if other.strategy == plan.strategy:
                assert row.endswith("| the choice |")
            elif not other.fits:
                assert "does not fit: needs " in row
            else:
                assert f"{gib(other.memory.device_bytes.likely)} | {seconds(step_s)}" in row
                assert times(step_s, mine_s) in row
                assert ("faster" in row) <= (", but " in row)
                assert "outside the given constraints" not in row
    assert looked > requests


@pytest.mark.parametrize("requests", each(2, (7, 20)))
def test_what_a_plan_demands_is_said_exactly_where_it_demands_more(requests: int) -> None:
    """The words follow the order of ease."""
    draw = Random(4)  # noqa: S311 - which requests, not which key
    for _ in range(requests):
        try:
            plan = choose(draw_request(draw))
        except DsforgeError:
            continue
        for variant in plan.variants:
            if variant.priced:
                other = variant.priced.strategy
                assert bool(demand(plan.strategy, other)) == (ease(other) > ease(plan.strategy))


def test_money_is_said_in_whole_sentences() -> None:
    """No `1,440 in money`."""
    request = ask("llama-2-7b", cluster(2, gpu_hour_price=2.0), workload(tokens=10**10))
    reasons = aimed(request, Aim("cheapest")).reasons
    message = next(reason.message for reason in reasons if reason.rule == "objective-cheapest")

    assert re.search(r"the run takes [\d.]+ days and costs [\d,.]+ at 2 per GPU-hour", message)
    assert "in money" not in message
    assert not re.search(r"\d+x the time", message)


def test_a_batch_is_refused_only_where_it_was_given() -> None:
    """64 was our own assumption: with `--micro-batch 3` it is 72."""
    assert "72 x 4,096 tokens" in said("plan", *EIGHT, "--micro-batch", "3")
    assert "must be micro batch (3)" in said(
        "plan", *EIGHT, "--micro-batch", "3", "--global-batch", "64"
    )


def test_deepspeed_refuses_the_axis_that_was_asked_for() -> None:
    """Not the one that is 1."""
    shown = said("plan", *EIGHT, "--ep", "8", "--for", "deepspeed")

    assert "expert parallelism (8) is not available with DeepSpeed" in shown
    assert "context_parallel_size" not in shown


def test_megatron_without_distributed_optimizer_has_a_label_of_its_own() -> None:
    """3.71 s and 3.31 s are two plans."""
    request = ask("llama-2-7b", cluster(), workload(), back_end="megatron")
    whole = ask("llama-2-7b", cluster(), workload(), back_end="megatron", zero_stage=0)
    sharded, plain = (choose(asked).strategy for asked in (request, whole))

    assert "without distributed optimizer" not in sharded.label()
    assert "without distributed optimizer" in plain.label()
    alone = ask("llama-2-7b", cluster(1, 1), workload(), back_end="megatron", recompute="full")
    kept = alone.model_copy(update={"cluster": cluster(1, 1, "b200")})
    assert "without" not in choose(kept).strategy.label()


SHORT = re.compile(
    r"needs ([\d,.]+) GiB of (device memory|host RAM), .*? (?:has|can use) ([\d,.]+) GiB: "
    r"([\d,.]+) GiB too much"
)
HOST = re.compile(r"host RAM ([\d,.]+) GiB of ([\d,.]+) GiB")


@pytest.mark.parametrize("gib_of_ram", [64, 256, 512, 768, 1024])
def test_what_is_short_is_what_the_sentence_names(gib_of_ram: int) -> None:
    """Host RAM by its peak: a plan that needs it while it starts is refused by that figure."""
    words = ("--model", "qwen2.5-32b", *EIGHT[2:], "--for", "deepspeed", "--zero-stage", "2")
    shown = said("plan", *words, "--offload-optimizer", "cpu", "--host-memory", str(gib_of_ram))
    found = SHORT.search(shown)
    if found:
        needed, what, given, short = found.groups()
        figures = [float(text.replace(",", "")) for text in (needed, given, short)]
        assert figures[0] - figures[1] == pytest.approx(figures[2], abs=1.5)
        assert what == "host RAM"
        assert figures[1] == pytest.approx(0.95 * gib_of_ram, abs=1)
    else:
        fits = HOST.search(shown)
        assert fits
        peak, usable = (float(text.replace(",", "")) for text in fits.groups())
        assert peak <= usable == pytest.approx(0.95 * gib_of_ram, abs=1)


def test_a_remedy_that_lowers_the_peak_of_ram_asks_for_no_more_of_it() -> None:
    """Where host RAM is what is missing, its peak counts and not the step."""
    on = cluster(1, gpu="h100-80gb", intra="nvlink-4", host_memory_bytes=768 << 30)
    request = ask("qwen2.5-32b", on, workload(4096, 64), zero_stage=2, back_end="deepspeed")
    asked = request.model, request.cluster, request.workload
    nearest = appraise(request).choice
    for remedy in remedies(request, nearest):
        same = remedy.strategy.layout == nearest.strategy.layout and not check(
            *asked, remedy.strategy
        )
        if same and "more host RAM" in remedy.cost:
            after = price(*asked, remedy.strategy)
            assert after.memory.host_bytes.peak > nearest.memory.host_bytes.peak
