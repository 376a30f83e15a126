"""Batchings of one family, priced; each family at most once for a request.

Memory never falls as the micro batch grows, and recomputation never makes a step faster. So larger
micro batches stop at the first that does not fit, and recomputation is tried only where the plan
without it does not fit safely: what is left out is provably worse.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.errors import Problem
from dsforge.estimate.memory import estimate_memory
from dsforge.plan import Priced, Request
from dsforge.planner.candidates import micro_batches, recomputations
from dsforge.planner.pricing import is_safe, missing_bytes, price
from dsforge.rules import check
from dsforge.strategy import Strategy


class Explored(NamedTuple):
    """One family: the rules it breaks, its members that fit, else the one nearest to fitting."""

    family: Strategy
    problems: tuple[Problem, ...]
    fitting: tuple[Priced, ...]
    nearest: Priced | None
    candidates: int


class Explorer:
    """The families of one request that were looked at so far."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._seen: dict[Strategy, Explored] = {}

    def explore(self, family: Strategy) -> Explored:
        """Everything about a family that a choice needs."""
        known = self._seen.get(family)
        if known is None:
            known = self._seen[family] = self._explore(family)
        return known

    def _explore(self, family: Strategy) -> Explored:
        request = self.request
        broken = check(request.model, request.cluster, request.workload, family)
        if broken:
            return Explored(family, broken, (), None, 1)
        fitting: list[Priced] = []
        nearest: tuple[int, Strategy] | None = None
        looked = 0
        for micro, steps in micro_batches(request, family):
            members, short = self._fitting(family, micro, steps)
            looked += 1
            fitting += members
            if nearest is None or short[0] < nearest[0]:
                nearest = short
            if not members:
                break
        lightest = self._price(nearest[1]) if nearest and not fitting else None
        return Explored(family, (), tuple(fitting), lightest, looked)

    def _fitting(
        self, family: Strategy, micro: int, steps: int
    ) -> tuple[list[Priced], tuple[int, Strategy]]:
        """Members of one micro batch that fit, and the smallest shortage with its member."""
        request, found = self.request, []
        shortages: list[tuple[int, float, Strategy]] = []
        for recompute in recomputations(request, family):
            batching = {"micro_batch_size": micro, "gradient_accumulation_steps": steps}
            member = family.model_copy(update={**batching, "recompute": recompute})
            memory = estimate_memory(request.model, request.cluster, request.workload, member)
            short = missing_bytes(request.cluster, memory)
            shortages.append((short, memory.device_bytes.likely, member))
            if short <= 0:
                found.append(self._price(member))
                if is_safe(request.cluster, found[-1]):
                    break
        short, _, nearest = min(shortages, key=lambda entry: entry[:2])
        return found, (short, nearest)

    def _price(self, member: Strategy) -> Priced:
        request = self.request
        return price(request.model, request.cluster, request.workload, member)
