"""Candidates -> rules -> memory -> time -> ranking, with a reason for each choice.

Plans rank by predicted step time. Of those that fit as surely and are nearly as fast as the best,
the easiest is chosen: `preference.py` states the rule in three sentences, and what follows from it.
"""

from __future__ import annotations

from dsforge.planner.pricing import price
from dsforge.planner.search import appraise, choose, search

__all__ = ["appraise", "choose", "price", "search"]
