"""What a rule looks at, and the words that rules share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from dsforge.errors import Problem
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Strategy


class Case(NamedTuple):
    """One combination of inputs and decision."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    strategy: Strategy

    @property
    def layout(self) -> Layout:
        """The parallel sizes of the strategy."""
        return self.strategy.layout

    @property
    def on_megatron(self) -> bool:
        """Whether Megatron runs it."""
        return self.strategy.back_end == "megatron"


LONGEST_LIST = 10

Rule = Callable[[Case], Problem | None]


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def listed(numbers: tuple[int, ...]) -> str:
    """`1, 2, 4 or 8`; a long list keeps its ends."""
    shown = numbers if len(numbers) <= LONGEST_LIST else (*numbers[:7], *numbers[-2:])
    words = [str(number) for number in shown]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
