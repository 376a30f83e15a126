"""The Pareto front: plans that no other beats in step time, GPUs, money and free memory at once.

Every part of the cluster is planned for the same job. All points do the same step, so seconds and
accelerator seconds compare.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.estimate.run import RunEstimate, rate_of, run_of
from dsforge.plan import Plan, Request
from dsforge.planner.explore import Candidate
from dsforge.planner.parts import Part
from dsforge.planner.pieces import pieces
from dsforge.planner.pricing import price
from dsforge.specs import FROZEN
from dsforge.strategy import Strategy
from dsforge.units import GIB, Interval

NOTICED = 1.01  # a plan that is this much better in time or money is better
NOTICED_BYTES = GIB  # and this much in free memory


class FrontPoint(BaseModel):
    """One plan of the front."""

    model_config = FROZEN

    gpus: int = Field(description="Accelerators that it uses.")
    nodes: int = Field(description="Machines that it uses.")
    strategy: Strategy = Field(description="Strategy of the plan.")
    label: str = Field(description="The strategy in short.")
    chosen: bool = Field(description="Plan that dsforge chooses on this number of GPUs.")
    step_s: Interval = Field(description="Seconds of one optimizer step.")
    tokens_per_s: Interval = Field(description="Tokens/s of all its accelerators.")
    gpu_s: float = Field(description="GPU-seconds of one step; the cost is proportional to it.")
    free_bytes: int = Field(description="Likely memory left on each accelerator.")
    run: RunEstimate | None = Field(
        description="Cost and duration of the token budget; none without a token budget."
    )


class _Rival(NamedTuple):
    """A candidate by what counts, less being better."""

    step_s: float
    gpus: int
    gpu_s: float
    used_bytes: float
    candidate: Candidate
    part: Part

    def beats(self, other: _Rival) -> bool:
        """Whether it is nowhere worse, within what anybody would notice."""
        return (
            self.step_s <= other.step_s * NOTICED
            and self.gpus <= other.gpus
            and self.gpu_s <= other.gpu_s * NOTICED
            and self.used_bytes <= other.used_bytes + NOTICED_BYTES
        )


def front(found: tuple[Part, ...]) -> tuple[FrontPoint, ...]:
    """The points that nothing beats, and our choice for each part; fastest first."""
    rivals = [
        _Rival(c.step_s, part.gpus, part.gpus * c.step_s, c.device_bytes, c, part)
        for part in found
        for c in part.fitting
    ]
    kept: list[_Rival] = []
    for rival in sorted(rivals, key=lambda r: r[:4]):
        if not any(other.beats(rival) for other in kept):
            kept.append(rival)
    choices = {id(part): part.best for part in found}
    picked = {id(rival.candidate) for rival in kept}
    kept += [
        r for r in rivals if r.candidate is choices[id(r.part)] and id(r.candidate) not in picked
    ]
    kept.sort(key=lambda r: (-r.gpus, r.step_s))
    return tuple(_point(r, chosen=r.candidate is choices[id(r.part)]) for r in kept)


def plan_of(point: FrontPoint, chosen: Plan, request: Request) -> Plan:
    """The plan of a point, as `chosen` is the plan of the whole request."""
    shape = point.gpus, point.nodes
    for asked in (request, *pieces(request)):
        if (asked.cluster.gpus, asked.cluster.nodes) != shape:
            continue
        priced = price(request.model, asked.cluster, asked.workload, point.strategy)
        if priced.time.step_s == point.step_s:  # of hosts that differ, several have one shape
            parts = {"cluster": asked.cluster, "workload": asked.workload, "choice": priced}
            return chosen.model_copy(update={**parts, "variants": ()})
    raise ValueError(f"no part of the cluster has {point.label} as a plan of {point.gpus} GPUs")


def _point(rival: _Rival, *, chosen: bool) -> FrontPoint:
    """The point with its intervals."""
    request, strategy = rival.part.request, rival.candidate.strategy
    cluster, work = request.cluster, request.workload
    step = price(request.model, cluster, work, strategy).time.step_s
    return FrontPoint.model_construct(
        gpus=rival.gpus,
        nodes=cluster.nodes,
        strategy=strategy,
        label=strategy.label(),
        chosen=chosen,
        step_s=step,
        tokens_per_s=rate_of(work.tokens_per_step, step),
        gpu_s=rival.gpu_s,
        free_bytes=round(cluster.gpu.memory_bytes - rival.used_bytes),
        run=run_of(cluster, work, step=step),
    )
