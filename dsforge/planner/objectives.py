"""The questions behind the money: fastest, cheapest, fewest GPUs, by a date, within a budget.

Each is answered by the part of the cluster to use: parts that divide it are planned for the same
job, those that miss the deadline or the budget are left out, and the objective picks one. What is
planned on that part is as always, among the plans that keep the limits: the preference for easy
plans ends (`prefer`) where they would miss one. For `fastest` and `cheapest` nothing slower is
preferred. Dates and prices are those of the likely step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal, NamedTuple

from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.estimate.run import DAY_S, HOUR_S, run_steps
from dsforge.plan import Reason, Request
from dsforge.planner.explore import Candidate
from dsforge.planner.parts import Part, parts
from dsforge.planner.search import choose
from dsforge.units import amount, digits, seconds

Objective = Literal["fastest", "cheapest", "fewest-gpus"]
OBJECTIVES: tuple[Objective, ...] = ("fastest", "cheapest", "fewest-gpus")
BY_CLOCK = ("fastest", "cheapest")
MORE_NODES = (2, 4, 8, 16, 32)
FREE_BATCH = "default-global-batch"  # the rule of the reason that reading gives


class Aim(NamedTuple):
    """What a user wants of a run; `None` where nothing was said."""

    objective: Objective | None = None
    deadline_days: float | None = None
    budget: float | None = None

    @property
    def picks(self) -> Objective:
        """The objective: by a date the cheapest, within a budget the fastest."""
        if self.objective is not None:
            return self.objective
        return "fastest" if self.deadline_days is None else "cheapest"


class Bill(NamedTuple):
    """What a candidate takes on its part of the cluster."""

    part: Part
    candidate: Candidate
    steps: int | None

    @property
    def gpu_s(self) -> float:
        """Accelerator seconds of a step."""
        return self.part.gpus * self.candidate.step_s

    @property
    def token_s(self) -> float:
        """Seconds for a token: steps of the same batch compare by it as well as by their own."""
        return self.candidate.step_s / self.part.request.workload.tokens_per_step

    @property
    def days(self) -> float:
        """Days of the run; 0 where there is no token budget."""
        return (self.steps or 0) * self.candidate.step_s / DAY_S

    @property
    def money(self) -> float:
        """Price of the run; 0 where nobody named one."""
        price = self.part.request.cluster.gpu_hour_price or 0.0
        return (self.steps or 0) * self.gpu_s / HOUR_S * price

    def room(self, aim: Aim) -> float:
        """How many times longer the step may be within deadline and budget."""
        limits = (aim.deadline_days, self.days), (aim.budget, self.money)
        return min((most / mine for most, mine in limits if most is not None and mine), default=inf)

    def within(self, aim: Aim) -> bool:
        """Whether deadline and budget are kept."""
        in_time = aim.deadline_days is None or self.days <= aim.deadline_days
        return in_time and (aim.budget is None or self.money <= aim.budget)


_ORDERS: dict[Objective, Callable[[Bill], tuple[float, float]]] = {
    "fastest": lambda bill: (bill.token_s, bill.part.gpus * bill.token_s),
    "cheapest": lambda bill: (bill.part.gpus * bill.token_s, bill.token_s),
    "fewest-gpus": lambda bill: (bill.part.gpus, bill.token_s),
}


def aimed(request: Request, aim: Aim) -> Request:
    """The request on the part of the cluster that the aim picks, with a reason.

    Raises SpecError where a deadline or a budget lacks what it is counted from, DsforgeError with
    the nearest aim that can be met where none is, and as `choose` does where nothing fits.
    """
    if aim == Aim():
        return request
    _check(request, aim)
    bills = _bills(request, aim)
    if not bills:
        choose(request)  # says what is missing
    kept = [bill for bill in bills if bill.within(aim)]
    if not kept:
        raise _nearest_possible(request, aim, bills)
    best = min(kept, key=_ORDERS[aim.picks])
    asked, reason = best.part.request, _reason(request, aim, best, bills)
    return asked.model_copy(update={"reasons": (*asked.reasons, reason)})


def _check(request: Request, aim: Aim) -> None:
    """SpecError where the workload or the cluster lacks what the aim needs."""
    problems = []
    limited = aim.deadline_days is not None or aim.budget is not None
    if limited and run_steps(request.workload) is None:
        message = "a deadline or a budget requires the length of the run"
        problems.append(Problem("aim-tokens", message, "add --tokens, such as --tokens 2b"))
    if aim.budget is not None and request.cluster.gpu_hour_price is None:
        message = f"`budget` (={aim.budget:g}) requires a price per GPU-hour"
        problems.append(Problem("aim-price", message, "add --gpu-hour-price; there is no default"))
    if problems:
        raise SpecError(tuple(problems))


def _bills(request: Request, aim: Aim) -> list[Bill]:
    """What each part of the cluster would take."""
    return [_bill(part, aim) for part in parts(request)]


def _bill(part: Part, aim: Aim) -> Bill:
    """What a part takes: its easiest plan that keeps the limits, else its fastest."""
    by_clock = part.preferring(1.0)
    quickest = Bill(by_clock, by_clock.fastest, run_steps(part.request.workload))
    slower = min(part.request.prefer, quickest.room(aim))
    if aim.picks in BY_CLOCK or slower < 1:
        return quickest
    patient = part.preferring(slower)
    easiest = quickest._replace(part=patient, candidate=patient.best)
    return easiest if easiest.within(aim) else quickest


def _reason(request: Request, aim: Aim, best: Bill, bills: list[Bill]) -> Reason:
    """What was picked, against the whole cluster or the fastest part."""
    words = [f"{best.part.gpus} of {request.all_gpus} GPUs", _spent(best)]
    if best.steps:
        cost = f"{amount(best.money)} at {request.cluster.gpu_hour_price or 0:g} per GPU-hour"
        days = f"the run takes {amount(best.days)} days"
        words.append(f"{days} and costs {cost}" if best.money else days)
    whole = max(bills, key=lambda bill: bill.part.gpus)
    if whole is not best and not request.others:
        words.append(f"on all {whole.part.gpus} {_spent(whole)}")
    limits = [f"within {aim.deadline_days:g} days"] if aim.deadline_days is not None else []
    limits += [f"for at most {digits(aim.budget, 9)}"] if aim.budget is not None else []
    head = " ".join([aim.picks.replace("-", " "), *limits])
    return Reason(rule=f"objective-{aim.picks}", message=f"{head}: {', '.join(words)}")


def _spent(bill: Bill) -> str:
    """`a step takes 4.6 s, 73.6 GPU-seconds`."""
    return f"a step takes {seconds(bill.candidate.step_s)}, {amount(bill.gpu_s)} GPU-seconds"


def _nearest_possible(request: Request, aim: Aim, bills: list[Bill]) -> DsforgeError:
    """What comes nearest to a deadline or a budget that no fastest plan of a part keeps."""
    quickest, least = min(bills, key=lambda b: b.days), min(bills, key=lambda b: b.money)
    days, money = aim.deadline_days, aim.budget
    if days is not None and quickest.days > days:
        what = f"`deadline_days` (={days:g}) cannot be met: the run takes"
        message = f"{what} {amount(quickest.days)} days on {quickest.part.gpus} GPUs"
        ways = [f"--deadline-days {_rounded_up(quickest.days)}"]
        more = _more_nodes(request, days)
        ways += [f"{more} nodes"] if more else []
        steps = int((quickest.steps or 0) * days / quickest.days)  # of fewer tokens no more steps
        ways.append(f"--tokens {_tokens(request.workload.tokens_per_step * steps)}")
        return DsforgeError(message, f"the nearest that can: {', or '.join(ways)}")
    if money is not None and least.money > money:
        what = f"`budget` (={money:g}) is too low: the run costs"
        message = f"{what} {amount(least.money)} on {least.part.gpus} GPUs, where it is cheapest"
        return DsforgeError(message, f"the nearest possible: --budget {_rounded_up(least.money)}")
    in_time = min((b for b in bills if b.days <= (days or b.days)), key=lambda b: b.money)
    message = f"`deadline_days` (={days:g}) and `budget` (={money:g}) cannot both be met"
    both = f"--budget {_rounded_up(in_time.money)} meets the deadline on {in_time.part.gpus} GPUs"
    cheap = [b for b in bills if b.money <= (money or b.money)]
    slow = min(cheap, key=lambda b: b.days)
    return DsforgeError(
        message, f"{both}, --deadline-days {_rounded_up(slow.days)} meets the budget"
    )


def _rounded_up(value: float) -> str:
    """Three digits, not below the value."""
    text = float(f"{value:.3g}")
    if text < value:
        text = float(f"{value * 1.01:.3g}")
    return f"{text:,.0f}".replace(",", "") if text >= 1000 else f"{text:g}"  # noqa: PLR2004


def _tokens(value: float) -> str:
    """Two digits, not above the value, as people write tokens."""
    factor, letter = next((f, c) for f, c in ((1e9, "b"), (1e6, "m"), (1.0, "")) if value >= f)
    return f"{int(value / factor * 10) / 10:g}{letter}" if letter else f"{int(value)}"


def _more_nodes(request: Request, days: float) -> int | None:
    """The fewest nodes, by doubling, on which the run meets a deadline."""
    cluster, free = request.cluster, any(r.rule == FREE_BATCH for r in request.reasons)
    for factor in MORE_NODES:
        nodes = cluster.nodes * factor
        wider = cluster.model_copy(update={"nodes": nodes, "hosts": ()})
        work = request.workload
        if free and work.global_batch_size < wider.gpus:
            work = work.model_copy(update={"global_batch_size": wider.gpus})
        asked = request.model_copy(update={"cluster": wider, "workload": work, "others": ()})
        part = next(parts(asked), None)
        if part is None or part.gpus < wider.gpus:
            continue
        steps = run_steps(work)
        if Bill(part, part.fastest, steps).days <= days:
            return nodes
    return None
