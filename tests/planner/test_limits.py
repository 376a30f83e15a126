"""Deadlines and budgets: an objective is answered among all plans that keep them."""

from __future__ import annotations

from random import Random

from drawing import draw_request
from planning import ask, cluster, workload

from dsforge.errors import DsforgeError
from dsforge.estimate.run import DAY_S, run_steps
from dsforge.plan import Plan, Request
from dsforge.planner import choose
from dsforge.planner.objectives import Aim, aimed

SEED, DRAWN = 31, 6


def within(request: Request, aim: Aim) -> Plan | None:
    """The plan of an aim; none where it cannot be met."""
    try:
        return choose(aimed(request, aim))
    except DsforgeError:
        return None


def days(plan: Plan) -> float:
    """Days of the run by the likely step."""
    return (run_steps(plan.workload) or 0) * plan.choice.time.step_s.likely / DAY_S


def test_fewest_gpus_never_needs_more_than_cheapest() -> None:
    """Under the same random deadline, and keeps it: an easy plan that misses it is not taken."""
    draw, asked = Random(SEED), 0  # noqa: S311 - which requests, not which key
    while asked < DRAWN:
        request = draw_request(draw)
        work = request.workload.model_copy(update={"tokens": 10**9})
        request = request.model_copy(update={"workload": work})
        if request.cluster.gpus > 32 or request.model.moe is not None:
            continue
        quick = within(request, Aim("fastest"))
        if quick is None:
            continue
        asked += 1
        limit = draw.uniform(1.0, 4.0) * days(quick)
        fewest = within(request, Aim("fewest-gpus", deadline_days=limit))
        cheapest = within(request, Aim("cheapest", deadline_days=limit))
        assert fewest is not None
        assert cheapest is not None
        assert fewest.cluster.gpus <= cheapest.cluster.gpus
        assert days(fewest) <= limit


def test_the_easiest_plan_that_keeps_a_deadline_is_taken() -> None:
    """Two nodes keep a deadline that the easiest plan there misses: no third is needed."""
    on = cluster(4, gpu="h100-80gb", intra="nvlink-4", inter="infiniband-400")
    request = ask("llama-3.1-8b", on, workload(4096, 256, tokens=10**10))
    alone = {"cluster": on.model_copy(update={"nodes": 2})}
    two = request.model_copy(update=alone)
    quick, easy = choose(aimed(two, Aim("fastest"))), choose(two)
    assert days(easy) > 1.05 * days(quick)

    close = (days(quick) + days(easy)) / 2
    for limit in (days(quick) * (1 + 1e-9), close, days(easy) * (1 + 1e-9)):
        plan = choose(aimed(request, Aim("fewest-gpus", deadline_days=limit)))
        assert plan.cluster.gpus <= 16
        assert days(plan) <= limit
    assert days(plan) == days(easy)
