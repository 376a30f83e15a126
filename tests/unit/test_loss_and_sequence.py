"""What holds for the loss and for shared sequences, whatever the model, the cluster and the plan.

`DSFORGE_SEED` draws others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random

import pytest
from drawing import draw_request

from dsforge.constraints import check, divisors
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.loss import loss_of
from dsforge.estimate.memory import estimate_memory, footprints
from dsforge.estimate.time import estimate_time
from dsforge.explain.explanation import explanation
from dsforge.layout import Layout
from dsforge.plan import Plan, Request
from dsforge.planner.pricing import price
from dsforge.specs import LinkSpec
from dsforge.strategy import EXECUTIONS, AskedLoss, Strategy

SEED = int(os.environ.get("DSFORGE_SEED", "20261122"))
FEW = 80
Drawn = tuple[Request, Strategy]


def drawn(count: int) -> Iterator[Drawn]:
    """So many legal ways of DeepSpeed to do a job, a third of them with Ulysses."""
    draw = Random(SEED)  # noqa: S311 - which plans, not which key
    while count:
        request = draw_request(draw)
        vocabulary = draw.choice((32000, 50257, 128256, 256000))
        model = request.model.model_copy(update={"vocab_size": vocabulary})
        length = draw.choice((128, 512, 4096, 32768))
        work = request.workload.model_copy(update={"sequence_length": length})
        model = model.model_copy(update={"max_position_embeddings": 1 << 20})
        request = request.model_copy(update={"model": model, "workload": work})
        how = deepspeed(draw, request)
        if not check(model, request.cluster, work, how):
            count -= 1
            yield request, how


def deepspeed(draw: Random, request: Request) -> Strategy:
    """Some way, legal or not."""
    gpus = request.cluster.gpus
    cp = draw.choice((1, 1, *divisors(gpus)))
    share = max(1, request.workload.global_batch_size // (gpus // cp))
    micro = draw.choice(divisors(share))
    return Strategy(
        layout=Layout(data_parallel_size=gpus // cp, context_parallel_size=cp),
        micro_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        zero_stage=draw.choice((0, 1, 2, 3)),
        recompute=draw.choice(("none", "full")),
    )


def with_loss(how: Strategy, loss: AskedLoss) -> Strategy:
    """The strategy with that loss."""
    execution = EXECUTIONS["deepspeed"].model_copy(update={"loss": loss})
    return how.model_copy(update={"execution": execution})


def chunks_that_cost(request: Request, how: Strategy) -> str | None:
    """A chunked loss that needs more memory than a plain one."""
    inputs = request.model, request.cluster, request.workload
    chunked, plain = (
        estimate_memory(*inputs, with_loss(how, loss)) for loss in ("chunked", "plain")
    )
    more = chunked.allocated_bytes.likely - plain.allocated_bytes.likely
    return f"chunks need {more:,.0f} bytes more" if more > 1 else None


def sharing_that_costs(request: Request, how: Strategy) -> str | None:
    """A rank that needs more activations, or more in all, where twice the ranks share a sample."""
    layout = how.layout
    if layout.data_parallel_size % 2 or how.hpz_partition_size > 1:
        return None
    shared = {
        "data_parallel_size": layout.data_parallel_size // 2,
        "context_parallel_size": 2 * layout.context_parallel_size,
    }
    twice = how.model_copy(
        update={
            "layout": layout.model_copy(update=shared),
            "gradient_accumulation_steps": 2 * how.gradient_accumulation_steps,
        }
    )
    inputs = request.model, request.cluster, request.workload
    if check(*inputs, twice):
        return None
    (one,), (two,) = (footprints(family_costs(*inputs, way), way) for way in (how, twice))
    tokens = how.micro_batch_size * one.sample_tokens
    for name, before, after in (
        ("saved activations", tokens * one.saved, tokens / 2 * two.saved),
        ("a layer at work", tokens * one.working, tokens / 2 * two.working),
        ("the loss", one.head.at(tokens), two.head.at(tokens / 2)),
    ):
        if after > before + 1:
            return f"{name} grows from {before:,.0f} to {after:,.0f} bytes"
    return None


def slower_on_better_links(request: Request, how: Strategy) -> str | None:
    """A step that takes longer where a link is faster."""
    cluster = request.cluster
    step_s = estimate_time(request.model, cluster, request.workload, how).step_s.likely
    for name in ("intra_node", "inter_node"):
        link: LinkSpec = getattr(cluster, name)
        for change in (
            {"bytes_per_s": 1.7 * link.bytes_per_s},
            {"latency_s": link.latency_s / 2},
        ):
            better = cluster.model_copy(update={name: link.model_copy(update=change)})
            now_s = estimate_time(request.model, better, request.workload, how).step_s.likely
            if now_s > step_s * (1 + 1e-9):
                return f"{name} {change}: {now_s / step_s:.4f}x the time"
    return None


def figures_that_differ(request: Request, how: Strategy) -> str | None:
    """An explanation whose formulas give other figures than the estimate."""
    for way in (how, with_loss(how, "plain")):
        found = explanation(
            Plan.model_construct(
                schema_version=1,
                model=request.model,
                parameters=1,
                cluster=request.cluster,
                workload=request.workload,
                choice=price(request.model, request.cluster, request.workload, way),
                variants=(),
            )
        )
        if found.disagreements:
            return f"the explanation has {found.disagreements[:2]}"
    return None


CHECKS = (chunks_that_cost, sharing_that_costs, slower_on_better_links, figures_that_differ)


@pytest.mark.parametrize("property_", CHECKS, ids=lambda check: str(check.__name__))
def test_no_random_plan_breaks_it(property_: Callable[[Request, Strategy], str | None]) -> None:
    """Of random models, vocabularies, lengths, clusters and layouts."""
    broken = [
        f"{how.label()} for {request.model.name}, {request.workload.sequence_length} tokens, "
        f"vocabulary {request.model.vocab_size}: {said}"
        for request, how in drawn(FEW)
        if (said := property_(request, how)) is not None
    ]

    assert broken == []


def test_the_draw_has_both_losses_and_shared_sequences() -> None:
    """Else the properties would say little."""
    found = [(loss_of(r.model, how), how.layout.context_parallel_size > 1) for r, how in drawn(FEW)]

    assert sum(shared for _, shared in found) > FEW // 8
    assert {loss for loss, _ in found} >= {"chunked"}
