"""An explanation is the estimate itself: the same numbers for any plan, to the last bit."""

from __future__ import annotations

import os
from random import Random

import pytest
from drawing import draw_request, draw_strategy
from formulas import is_redone

from dsforge.explain.explanation import Explanation, explanation, stated
from dsforge.plan import Plan
from dsforge.planner.pricing import price
from dsforge.specs import Workload
from dsforge.strategy import FULLY_SHARDED, Strategy

SEED = int(os.environ.get("DSFORGE_SEED", "20261122"))
FEW, MANY = 70, 2000
CHANCE = 0.25


def draw_types(draw: Random, workload: Workload) -> Workload:
    """The workload in some precision, with some optimizer, packed or not, for tokens or pairs."""
    return workload.model_copy(
        update={
            "precision": draw.choice(("bf16", "bf16", "fp16", "fp32")),
            "optimizer": draw.choice(("adamw", "adamw", "adamw_8bit", "paged_adamw_8bit", "sgd")),
            "document_length": draw.choice((None, None, 256)),
            "preference": draw.choice((None, None, None, "dpo", "orpo", "reward")),
        }
    )


def draw_software(draw: Random, strategy: Strategy) -> Strategy:
    """The same strategy as scripts of others run it, with their kernels, types and savings."""
    update: dict[str, object] = {
        "software": draw.choice(("dsforge", "others")),
        "kernels": draw.choice(("eager", "fused", "compiled")),
        "attention": draw.choice(("flash", "eager", "masked")),
        "dropout": draw.random() < CHANCE,
        "loss": draw.choice((None, "plain", "chunked", "fused", "softmax")),
        "gradients": draw.choice(("compute", "fp32")),
        "master_weights": draw.random() > CHANCE,
        "moments": draw.choice(("fp32", "bf16")),
        "early_stop": draw.random() < CHANCE,
        "offload_activations": draw.random() < CHANCE,
        "tiled_mlp": draw.random() < CHANCE,
        "deterministic": draw.random() < CHANCE,
        "buckets": draw.choice(("sized", "engine")),
    }
    if strategy.back_end == "deepspeed" and strategy.layout.model_ranks == 1:
        ways = {0: ("deepspeed", "ddp"), FULLY_SHARDED: ("deepspeed", "fsdp", "torchtune")}
        update["trainer"] = draw.choice(ways.get(strategy.zero_stage, ("deepspeed",)))
    return strategy.model_copy(update={"execution": strategy.runs_as.model_copy(update=update)})


def draw_plan(draw: Random) -> Plan:
    """The price of a random legal strategy."""
    while True:
        drawn = draw_request(draw)
        request = drawn.model_copy(update={"workload": draw_types(draw, drawn.workload)})
        strategy = draw_strategy(draw, request)
        if strategy is not None:
            strategy = draw_software(draw, strategy)
            break
    return Plan.model_construct(
        schema_version=1,
        model=request.model,
        parameters=1,
        cluster=request.cluster,
        workload=request.workload,
        choice=price(request.model, request.cluster, request.workload, strategy),
        variants=(),
    )


def differences(plan: Plan, found: Explanation) -> list[str]:
    """Figures with another value than the plan states, or than their formula gives."""
    values = {figure.name: figure.value for figure in found.figures}
    wrong = [name for name, value in stated(plan) if values[name] != value]
    return wrong + [f.name for f in found.figures if not is_redone(f.model_dump())]


def check_plans(count: int) -> None:
    """No difference in so many random plans."""
    draw = Random(SEED)  # noqa: S311 - which plans, not which key
    broken = {}
    for _ in range(count):
        plan = draw_plan(draw)
        if wrong := differences(plan, explanation(plan)):
            broken[f"{plan.model.name} {plan.strategy.label()}"] = wrong

    assert broken == {}


def test_explanations_are_the_estimates() -> None:
    """Memory, time, RAM and checkpoint of random plans; every formula redone."""
    check_plans(FEW)


@pytest.mark.slow
def test_explanations_are_the_estimates_in_many_plans() -> None:
    """The same for ten times as many."""
    check_plans(MANY)
