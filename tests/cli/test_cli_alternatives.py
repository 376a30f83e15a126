"""Alternatives that one screen shows: none that another plan on it outdoes in every way."""

from __future__ import annotations

from random import Random

from drawing import draw_request

from dsforge.cli.brief import Other, alternatives
from dsforge.errors import DsforgeError
from dsforge.planner import search
from dsforge.planner.alternatives import alternatives as other_kinds
from dsforge.planner.explore import Explorer
from dsforge.planner.parts import settled
from dsforge.planner.preference import ease

SEED, REQUESTS = 8, 8
NOTICED = 1.01


def _outdoes(one: Other, other: Other) -> bool:
    """Whether it is clearly faster, smaller, and no harder, on the same engine."""
    first, second = one.priced, other.priced
    return (
        first.strategy.back_end == second.strategy.back_end
        and NOTICED * first.time.step_s.likely < second.time.step_s.likely
        and NOTICED * first.memory.device_bytes.likely < second.memory.device_bytes.likely
        and NOTICED * first.memory.device_bytes.high < second.memory.device_bytes.high
        and ease(first.strategy) <= ease(second.strategy)
    )


def test_no_alternative_is_outdone() -> None:
    """Of random requests: neither by the choice nor by another alternative."""
    draw, shown = Random(SEED), 0  # noqa: S311 - which requests, not which key
    for _ in range(REQUESTS):
        explorer = settled(Explorer(draw_request(draw)))
        try:
            found = search(explorer.request, explorer=explorer)
        except DsforgeError:
            continue
        plan = found.plans[0]
        fitting = tuple(one for each in explorer.every() for one in each.fitting)
        others = alternatives(plan, found, other_kinds(explorer.request, plan.choice, fitting))
        rows = [Other("choice", plan.choice), *others]
        shown += len(others)
        assert [(a.name, b.name) for a in rows for b in others if _outdoes(a, b)] == []
    assert shown
