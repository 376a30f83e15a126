"""The price of one strategy: predicted memory and step time, and how each figure comes about."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from dsforge.api.inputs import (
    ClusterInput,
    Inputs,
    JobInput,
    PathInput,
    StrategyInput,
    WorkloadInput,
    as_described,
    by_others,
    load_plan,
    request_of,
    says_whose,
    with_loss,
)
from dsforge.api.results import EstimateResult
from dsforge.errors import DsforgeError, LayoutError
from dsforge.plan import Plan, Reason, Request

if TYPE_CHECKING:
    from dsforge.exact.fullest import ExactMemory
    from dsforge.explain.explanation import Explanation

PLAIN_LOSS = Reason(
    rule="default-loss",
    message="`--exact` simulates the plain loss, which has full logits: `--loss` is plain",
)
OURS = Reason(
    rule="default-software",
    message="`software` is dsforge: as `dsforge train` runs it, with its loss and the buckets that "
    "it writes; `--software others` prices other scripts",
)
NOT_OURS = "`software` is others: `dsforge train` and `gen` refuse this"
MOST_TOLD = 3  # of the rules that it breaks
LEAST_WORD, MOST_NEAR = 3, 6  # letters of a word that tells something; names that are shown


def estimate(
    model: JobInput | None,
    cluster: ClusterInput | None = None,
    workload: WorkloadInput | None = None,
    *,
    strategy: StrategyInput | None = None,
    ds_config: PathInput | None = None,
    exact: bool = False,
) -> EstimateResult:
    """The predicted memory and step time of one strategy; what is not fixed is chosen.

    Where sharding, a split or offload are fixed and `software` is not, the scripts are anybody's.

    Args:
        model: As for `load_model`; or a request of `load_request` instead of all inputs.
        cluster: As for `load_cluster`.
        workload: As for `load_workload`.
        strategy: What is fixed, such as `{"zero_stage": 3}`; the rest is chosen.
        ds_config: Path of a DeepSpeed config whose settings are fixed; `strategy` wins over it.
        exact: Also simulate a step tensor by tensor: Llama, Mistral and Qwen2 under ZeRO.

    Returns:
        The priced strategy; where it does not fit, also the cheapest changes after which it does.

    Raises:
        SpecError: The input is wrong, or `exact` does not know the job.
        LayoutError: No combination is legal.

    Examples:
        >>> import dsforge
        >>> result = dsforge.estimate(
        ...     "llama-2-7b", {"gpu": "a100-80gb", "gpus_per_node": 8}, strategy={"zero_stage": 3}
        ... )
        >>> result.fits, result.plan.strategy.zero_stage
        (True, 3)
        >>> result.document.memory.device_bytes.likely < 80 * 2**30
        True

    """
    request = request_of(Inputs(model, cluster, workload, strategy, ds_config))
    if not exact:
        return _result(request, ours=False)
    found = _result(with_loss(request, "plain", PLAIN_LOSS), ours=True)
    return replace(found, exact=_exact_memory(found.plan))


def nearest(request: Request) -> EstimateResult:
    """The strategy nearest to fitting of a request that no plan fits, as of the plan's scripts."""
    return _result(request, ours=True)


def _result(request: Request, *, ours: bool) -> EstimateResult:
    """The priced strategy, and what would make it fit where it does not."""
    from dsforge.planner.remedies import remedies

    request, made = _priced(request, ours=ours)
    ways = () if made.choice.fits else remedies(request, made.choice)
    return EstimateResult(made, ways, None)


def explain(plan: Plan | PathInput, figure: str | None = None) -> Explanation:
    """Each figure of a plan with its formula, inputs and source.

    Args:
        plan: A plan, the path of a `plan.json`, or the run folder that it is in.
        figure: Name of one figure, as the plan, a document or a table calls it: only that one and
            what it rests on; every figure without it.

    Returns:
        The figures, in the order in which they rest on each other, each with value and unit.

    Raises:
        DsforgeError: The plan cannot be read, or has no such figure.

    Examples:
        >>> import dsforge
        >>> made = dsforge.estimate("gpt2", "v100-32gb").plan
        >>> figures = dsforge.explain(made, "device_memory").figures
        >>> figures[-1].unit
        'bytes'

    """
    from dsforge.explain.explanation import explanation
    from dsforge.explain.stated_inputs import stated_figure, stated_setting

    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    found = explanation(plan)
    if figure is None:
        return found
    try:
        return found.model_copy(update={"figures": found.resting_on(figure)})
    except KeyError:
        stated = stated_figure(plan, figure)
        if stated is not None:
            return found.model_copy(update={"figures": (stated,)})
        setting = stated_setting(plan, figure)
        if setting is not None:
            return found.model_copy(update={"figures": (), "settings": (setting,)})
        near = ", ".join(_similar_names(figure, [each.name for each in found.figures]))
        hint = "`dsforge explain PLAN` lists all figures"
        message = f"the plan has no figure `{figure[:60]}`"
        raise DsforgeError(message, f"near it: {near}; {hint}" if near else hint) from None


def _priced(request: Request, *, ours: bool) -> tuple[Request, Plan]:
    """The request and its plan, as of the scripts that it says, describes or needs."""
    from dsforge.planner import appraise

    try:
        made = appraise(request)
    except LayoutError as refused:
        return _of_others(request, refused)
    asked = request if ours else as_described(request)
    if asked is not request:
        return asked, appraise(asked)
    choice = made.choice
    runs = choice.strategy.back_end == "deepspeed" and choice.strategy.runs_as.software
    if says_whose(request) or runs != "dsforge":
        return request, made
    told_more = choice.model_copy(update={"reasons": (*choice.reasons, OURS)})
    return request, made.model_copy(update={"choice": told_more})


def _of_others(request: Request, refused: LayoutError) -> tuple[Request, Plan]:
    """The request and the plan of somebody else's scripts, which can do what dsforge's own cannot.

    Raises the refusal where it is said whose scripts they are, or where nobody's can.
    """
    from dsforge.planner import appraise

    if says_whose(request):
        raise refused
    told = "; ".join(problem.message for problem in refused.problems[:MOST_TOLD])
    reason = Reason(rule="estimate-others", message=f"{NOT_OURS}: {told}")
    asked = by_others(request, reason)
    try:
        return asked, appraise(asked)
    except LayoutError:
        raise refused from None


def _exact_memory(plan: Plan) -> ExactMemory:
    """The simulated memory of a plan's choice. Raises SpecError where it is not known."""
    from dsforge.exact.fullest import exact_memory

    choice = plan.choice
    return exact_memory(
        plan.model, plan.cluster, plan.workload, choice.strategy, buckets=choice.buckets
    )


def _similar_names(name: str, names: list[str]) -> list[str]:
    """Names like a misspelt one, and those that share a word of it."""
    words = {word for word in re.split(r"[^a-z]+", name.lower()) if len(word) >= LEAST_WORD}
    sharing = [other for other in names if words & set(other.split("_"))]
    return list(dict.fromkeys([*get_close_matches(name, names, MOST_NEAR), *sharing]))[:MOST_NEAR]
