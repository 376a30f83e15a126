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

SEED = int(os.environ.get("DSFORGE_SEED", "20261122"))
FEW, MANY = 200, 2000


def draw_plan(draw: Random) -> Plan:
    """The price of a random legal strategy."""
    while True:
        request = draw_request(draw)
        strategy = draw_strategy(draw, request)
        if strategy is not None:
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
