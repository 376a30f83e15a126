"""What a person fixes holds: every plan keeps it and the rules of its engine, in files as well.

A fixed value enters where a family is made, so that the rules judge it before anything is priced.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from drawing import draw_request
from planning import ask, cluster, workload

from dsforge.constraints import check
from dsforge.errors import DsforgeError, LayoutError
from dsforge.lint.files import Against, checked, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.plan import Plan, Request
from dsforge.planner import appraise, choose
from dsforge.render import render
from dsforge.strategy import Constraints

SEED, DRAWN = 23, 15
H100 = cluster(gpu="h100-80gb", intra="nvlink-4")


def draw_fixed(draw: Random) -> Request:
    """A random request with some sizes fixed, whether they go together or not."""
    sizes: dict[str, tuple[int | None, ...]] = {
        "virtual_stages": (None, 1, 2, 4),
        "pipeline_parallel_size": (None, None, 1, 2, 4),
        "tensor_parallel_size": (None, None, 1, 2),
        "micro_batch_size": (None, None, 1, 2, 3),
    }
    fixed: dict[str, Any] = {name: draw.choice(values) for name, values in sizes.items()}
    fixed["back_end"] = draw.choice((None, "megatron"))
    return draw_request(draw).model_copy(update={"constraints": Constraints(**fixed)})


def refused(plan: Plan) -> list[str]:
    """Rules that a plan breaks, by the engine's constraints and by its own files."""
    strategy = plan.choice.strategy
    broken = [p.rule for p in check(plan.model, plan.cluster, plan.workload, strategy)]
    if strategy.back_end != "megatron" or plan.workload.method == "lora":
        return broken
    files = {artifact.path: artifact.text for artifact in render(plan)}
    document = document_of("args.txt", files["megatron/args.txt"])
    found = checked(document, Against(*release_named(None)))
    return broken + [f"lint: {one.rule}" for one in found if one.severity == "error"]


def test_plans_of_random_sizes_break_no_rule() -> None:
    """Chosen or only priced, a plan is one that its engine accepts."""
    draw, plans = Random(SEED), 0  # noqa: S311 - which requests, not which key
    for _ in range(DRAWN):
        request = draw_fixed(draw)
        for planned in (choose, appraise):
            try:
                plan = planned(request)
            except DsforgeError:
                continue
            plans += 1
            assert refused(plan) == [], request.constraints
    assert plans > DRAWN // 2


def test_virtual_stages_lead_to_a_pipeline() -> None:
    """Megatron-LM interleaves a pipeline only, so the search takes one; DeepSpeed is not short."""
    plan = choose(ask("llama-3.1-8b", H100, workload(4096, 64), virtual_stages=4))
    said = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert plan.choice.strategy.virtual_stages == 4
    assert plan.choice.strategy.layout.pipeline_parallel_size > 1
    assert "in memory" not in said["megatron-only"]


@pytest.mark.parametrize("planned", [choose, appraise])
def test_virtual_stages_without_a_pipeline_are_refused(planned: Any) -> None:
    """The rule is named, not a file that every rank would refuse."""
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "virtual_stages": 4}
    with pytest.raises(LayoutError) as caught:
        planned(ask("llama-3.1-8b", H100, workload(4096, 64), back_end="megatron", **sizes))

    assert "virtual-stages" in {problem.rule for problem in caught.value.problems}
