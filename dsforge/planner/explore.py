"""Members of each family, weighed in plain numbers; each family at most once for a request.

Memory never falls as the micro batch grows, and recomputation never makes a step faster. So larger
micro batches stop at the first that does not fit, and recomputation is tried only where the plan
without it does not fit safely: what is left out is provably worse.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from dsforge.constraints import check, said_words
from dsforge.errors import Problem
from dsforge.estimate.cut import Stage, kinds_of
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.memory import device_bytes, footprints, fullest
from dsforge.estimate.peak import Footprint
from dsforge.estimate.time import StepCosts, step_costs
from dsforge.plan import Reason, Request
from dsforge.planner.back_ends import can_build, wanted
from dsforge.planner.candidates import families, interleavings
from dsforge.planner.pricing import device_room, missing_on_node
from dsforge.planner.ways import recomputations
from dsforge.specs import ClusterSpec
from dsforge.strategy import Batching, Recompute, Strategy


class Candidate(NamedTuple):
    """A member of a family with the figures that decide; `strategy` spells it out."""

    family: Strategy
    recompute: Recompute
    batching: Batching
    device_bytes: float  # likely, on the fullest rank
    missing_bytes: int
    excess_bytes: float  # of the upper end of the prediction beyond the device
    step_s: float  # likely; infinite where it does not fit, as nobody asked

    @property
    def safe(self) -> bool:
        """Whether it fits, and the device holds even the upper end of the prediction."""
        return self.missing_bytes <= 0 and self.excess_bytes <= 0

    @property
    def strategy(self) -> Strategy:
        """The whole strategy."""
        micro, steps, virtual = self.batching
        return self.family.model_copy(
            update={
                "micro_batch_size": micro,
                "gradient_accumulation_steps": steps,
                "virtual_stages": virtual,
                "recompute": self.recompute,
            }
        )


class Explored(NamedTuple):
    """One family: the rules it breaks, its members that fit, else the one nearest to fitting."""

    family: Strategy
    problems: tuple[Problem, ...]
    fitting: tuple[Candidate, ...]
    nearest: Candidate | None
    candidates: int


class _Way:
    """A family under one recomputation: prices of any batching, made where they are asked for."""

    def __init__(self, costs: FamilyCosts, member: Strategy) -> None:
        self.recompute, self._costs, self._member = member.recompute, costs, member
        self._cut: tuple[Stage, ...] = ()
        self._chunked: tuple[Footprint, ...] = ()

    @cached_property
    def stages(self) -> tuple[Footprint, ...]:
        """Memory of each kind of stage."""
        return footprints(self._costs, self._member)

    @cached_property
    def step_costs(self) -> StepCosts:
        """The step time: nobody asks for that of what does not fit."""
        return step_costs(self._costs, self._member)

    def cut_into(self, cut: tuple[Stage, ...]) -> tuple[Footprint, ...]:
        """Memory of each kind of stage with its layers in the chunks of a cut."""
        if cut is not self._cut:
            pairs = zip(self.stages, cut, strict=True)
            self._chunked = tuple(kept._replace(chunks=stage.chunks) for kept, stage in pairs)
            self._cut = cut
        return self._chunked


class _Headroom(NamedTuple):
    """What one rank finds."""

    cluster: ClusterSpec
    device_bytes: float
    missing_bytes: int  # of its share of the node; negative: headroom left


class _Costs(NamedTuple):
    """What members of a family share whose stages hold the same."""

    headroom: _Headroom
    ways: tuple[_Way, ...]  # lightest recomputation first

    def beyond(self, heavy: int) -> _Costs:
        """The same without the first ways."""
        return self._replace(ways=self.ways[heavy:]) if heavy else self


class Explorer:
    """The families of one request that were looked at so far."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._said = said_words(request.constraints)
        self._seen: dict[Strategy, Explored] = {}
        self._every: tuple[Explored, ...] | None = None

    def every(self) -> tuple[Explored, ...]:
        """All families of the back ends that are wanted; one of a back end that cannot build it."""
        if self._every is None:
            self._every = tuple(
                self.explore(family)
                for back_end in wanted(self.request)
                for family in islice(
                    families(self.request, back_end),
                    None if can_build(self.request, back_end) else 1,
                )
            )
        return self._every

    def because(self, reason: Reason) -> Explorer:
        """The same families for the same request on machines that are settled, with the reason."""
        return self._for_request({"reasons": (*self.request.reasons, reason), "others": ()})

    def beside(self, part_step_s: float) -> Explorer:
        """The same families where fewer machines take so many seconds a step."""
        return self._for_request({"part_step_s": part_step_s})

    def _for_request(self, update: dict[str, Any]) -> Explorer:
        """The same families for a request that prices them alike."""
        again = Explorer(self.request.model_copy(update=update))
        again._seen = self._seen
        return again

    def explore(self, family: Strategy) -> Explored:
        """Everything about a family that a choice needs."""
        known = self._seen.get(family)
        if known is None:
            known = self._seen[family] = self._explore(family)
        return known

    def _explore(self, family: Strategy) -> Explored:
        request = self.request
        inputs = request.model, request.cluster, request.workload
        broken = check(*inputs, family, said=self._said)
        if broken:
            return Explored(family, broken, (), None, 1)
        shared: dict[tuple[tuple[object, ...], ...], _Costs] = {}
        weighed: list[Candidate] = []
        candidates = 0
        for batchings in filter(None, interleavings(request, family)):
            virtual = {"virtual_stages": batchings[0].virtual_stages}
            member = (
                family.model_copy(update=virtual) if batchings[0].virtual_stages > 1 else family
            )
            cut = kinds_of(request.model, member)
            held = tuple(stage[:-1] for stage in cut)  # chunks bear on what is in flight alone
            if held not in shared:
                shared[held] = _costs(request, member)
            heavy = 0  # recomputations that a smaller micro batch has shown not to fit
            for batching in batchings:
                heavy = 0 if batching.steps == 1 else heavy  # whose gradients are freed at once
                members = _weighed(family, shared[held].beyond(heavy), cut, batching)
                weighed += members
                candidates += heavy + len(members)
                heavy += _heavier(members)
                if members[-1].missing_bytes > 0:
                    break
        fitting = tuple(found for found in weighed if found.missing_bytes <= 0)
        nearest = None if fitting or not weighed else min(weighed, key=_shortage)
        return Explored(family, (), fitting, nearest, candidates)


def _heavier(members: list[Candidate]) -> int:
    """How many of some members, heaviest first, come before the first that fits."""
    return next((at for at, member in enumerate(members) if member.missing_bytes <= 0), 0)


def _shortage(candidate: Candidate) -> tuple[int, float]:
    return candidate.missing_bytes, candidate.device_bytes


def _costs(request: Request, member: Strategy) -> _Costs:
    """The costs of a member and of all of its family whose stages hold the same."""
    costs = family_costs(request.model, request.cluster, request.workload, member)
    ways = tuple(
        _Way(costs, member.model_copy(update={"recompute": recompute}))
        for recompute in recomputations(request, member)
    )
    return _Costs(_headroom(costs), ways)


def _headroom(costs: FamilyCosts) -> _Headroom:
    """What a rank of a family has: the same for all its members."""
    cluster, host = costs.cluster, costs.host
    short = missing_on_node(cluster, host, costs.nvme_bytes)
    return _Headroom(cluster, device_room(cluster, host), max(short.values()))


def _weighed(
    family: Strategy, costs: _Costs, cut: tuple[Stage, ...], batching: Batching
) -> list[Candidate]:
    """Members of one batching up to the first that fits safely."""
    found: list[Candidate] = []
    headroom = costs.headroom
    for way in costs.ways:
        device = device_bytes(fullest(way.cut_into(cut), batching), headroom.cluster)
        short = max(round(device.likely - headroom.device_bytes), headroom.missing_bytes)
        step_s = way.step_costs.at(batching).step_s if short <= 0 else inf
        excess = (
            0.0 if headroom.cluster.gpu.is_cpu else max(0.0, device.high - headroom.device_bytes)
        )
        found.append(
            Candidate(family, way.recompute, batching, device.likely, short, excess, step_s)
        )
        if found[-1].safe:
            break
    return found
