"""Candidates -> rules -> memory -> time -> ranking, with a reason for each choice.

Plans rank by predicted step time. Two preferences stand above the clock, because they cost users
more than a few per cent: a plan whose upper memory estimate fits comes before one that only likely
fits, and of plans within `SIMPLER_MARGIN` the simpler one wins (no offload before offload, ZeRO-2
before ZeRO-3, DeepSpeed before Megatron, which asks for another model and checkpoint format).
"""

from __future__ import annotations

from dsforge.planner.pricing import price
from dsforge.planner.search import appraise, choose, search

__all__ = ["appraise", "choose", "price", "search"]
