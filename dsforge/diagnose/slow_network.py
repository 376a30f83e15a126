"""Steps that take longer than the plan says, and the network that would explain it.

Nothing fails where the network is slow, so no line of a log names it. But the plan knows what each
step sends: from the seconds that steps take follows the rate that the link between nodes gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from dsforge.diagnose.ranking import SHOWN_LINES, Cause, Evidence
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.templates import filled_message
from dsforge.plan import Plan
from dsforge.planner import price
from dsforge.units import bit_rate, seconds

LEAST_SHARE = 0.6  # of a link's rating; below it something is wrong with the link
SLOW = 1.5  # times the upper end of the plan's interval
WARMUP_STEPS = 1  # not counted where there are more: allocations, first connections
_LOWEST, _HIGHEST = 1e-5, 1e3  # of the rating: where a rate is looked for
_HALVINGS = 40
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

SLOW_NETWORK = "slow-network"


def slow_network(hits: Iterable[MatchedLine], plan: Plan) -> tuple[Cause, ...]:
    """The network as a cause, where the steps of a log take what they would on a slower one."""
    hits = tuple(hits)
    taken = [taken_s for hit in hits if (taken_s := _step_s(hit, plan)) > 0]
    counted = taken[WARMUP_STEPS:] or taken
    planned = plan.choice.time.step_s
    if not counted or (step_s := median(counted)) < SLOW * planned.high:
        return ()
    rate = rate_of(plan, step_s)
    rating = plan.cluster.inter_node_bytes_per_s
    if rate is None or rate >= LEAST_SHARE * rating:
        return ()
    rule = hits[0].rule
    values = {
        "measured": seconds(step_s),
        "planned": seconds(planned.likely),
        "rate": bit_rate(rate),
        "rating": bit_rate(rating),
        "needed": bit_rate(LEAST_SHARE * rating),
        "alone": beside_one_node(plan, step_s),
    }
    message = filled_message(rule.message, values)
    proof = tuple(Evidence(hit.file, hit.line, hit.text.strip()) for hit in hits[-SHOWN_LINES:])
    return (Cause(rule.id, rule.confidence, message, rule.cause, proof, rule.fix, hits),)


def step_at(plan: Plan, bytes_per_s: float) -> float:
    """Seconds of the plan's step where all adapters of a node together give that rate."""
    link = plan.cluster.inter_node.model_copy(update={"bytes_per_s": bytes_per_s, "measured": None})
    cluster = plan.cluster.model_copy(update={"inter_node": link, "nics_per_node": 1})
    return price(plan.model, cluster, plan.workload, plan.strategy).time.step_s.likely


def step_alone(plan: Plan) -> float | None:
    """Seconds of the same step on one node alone; none where the layout cannot shrink to it."""
    layout, nodes = plan.strategy.layout, plan.cluster.nodes
    if layout.data_parallel_size % nodes or nodes == 1:
        return None
    fewer = {"data_parallel_size": layout.data_parallel_size // nodes}
    steps = plan.strategy.gradient_accumulation_steps * nodes
    strategy = plan.strategy.model_copy(
        update={
            "layout": layout.model_copy(update=fewer),
            "gradient_accumulation_steps": steps,
            "hpz_partition_size": min(
                plan.strategy.hpz_partition_size, fewer["data_parallel_size"]
            ),
        }
    )
    cluster = plan.cluster.model_copy(update={"nodes": 1, "hosts": plan.cluster.hosts[:1]})
    priced = price(plan.model, cluster, plan.workload, strategy)
    return priced.time.step_s.likely if priced.fits else None


def rate_of(plan: Plan, step_s: float) -> float | None:
    """Bytes/s at which the plan's step takes that long; none where no such rate explains it."""
    rating = plan.cluster.inter_node_bytes_per_s
    low, high = _LOWEST * rating, _HIGHEST * rating
    if plan.cluster.nodes == 1 or not step_at(plan, high) < step_s < step_at(plan, low):
        return None
    return _between(low, high, lambda rate: step_at(plan, rate) > step_s)


def beside_one_node(plan: Plan, step_s: float) -> str:
    """The step time of one node alone, if shorter, and the rate above which more are faster."""
    alone = step_alone(plan)
    if alone is None or alone >= step_s:
        return ""
    words = f"; one node alone takes {seconds(alone)}"
    worth = rate_of(plan, alone)
    return (
        f"{words}, {plan.cluster.nodes} nodes are faster only above {bit_rate(worth)}"
        if worth
        else words
    )


def _between(low: float, high: float, is_low: Callable[[float], bool]) -> float:
    """The place between two positive figures where `is_low` ceases to hold."""
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return high


def _step_s(hit: MatchedLine, plan: Plan) -> float:
    """Seconds of an optimizer step by one line; 0 where it does not say."""
    values = hit.values
    if values.get("step"):
        return float(values["step"]) * _UNITS[values["unit"]]
    samples = float(values.get("samples") or 0)
    return plan.workload.global_batch_size / samples if samples else 0.0
