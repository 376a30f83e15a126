"""The search does not repeat what cannot differ, and tells the seconds that it took."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest
from planning import ask, cluster, workload

import dsforge
from dsforge.planner import explore, parts
from dsforge.planner.explore import Explorer

WAIT_S = 0.3


def test_seconds_are_those_of_the_whole_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what is spent on the choice of machines, before the plans are ranked."""
    settled = parts.settled

    def slowly(explorer: Explorer) -> Explorer:
        sleep(WAIT_S)
        return settled(explorer)

    monkeypatch.setattr(parts, "settled", slowly)

    assert dsforge.plan("gpt2", "v100-32gb").search.seconds >= WAIT_S


def test_interleavings_of_the_same_stages_share_their_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """48 equal layers are cut into chunks in many ways; each stage holds the same in all of them.

    And what does not fit has no step time: nobody asks for it.
    """
    made: dict[str, int] = {"family_costs": 0, "step_costs": 0}
    for name in made:
        monkeypatch.setattr(explore, name, _counting(name, getattr(explore, name), made))
    on = cluster(2, gpu="h100-80gb", intra="nvlink-4", inter="infiniband-400")
    found = Explorer(ask("qwen3-30b-a3b", on, workload(4096, 64), back_end="megatron")).every()
    legal = [one for one in found if not one.problems]
    fitting = [one for one in legal if one.fitting]

    assert sum(len({c.batching.virtual_stages for c in one.fitting}) for one in fitting) > len(
        legal
    )
    assert made["family_costs"] == len(legal)
    assert made["step_costs"] <= 2 * len(fitting)


def _counting(name: str, function: Any, made: dict[str, int]) -> Any:
    """The function, which counts its calls."""

    def counted(*given: Any) -> Any:
        made[name] += 1
        return function(*given)

    return counted
