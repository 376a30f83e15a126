"""Which of many cases of one kind are tried at every commit.

The others are slow tests: `make test-all` tries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

SLOW = [pytest.mark.slow]


def each(step: int, values: Iterable[Any], name: Callable[[Any], str] | None = None) -> list[Any]:
    """All values as parameters, each with its name; but for one of every `step`, slow ones."""
    return [
        pytest.param(value, id=name(value) if name else None, marks=SLOW if place % step else [])
        for place, value in enumerate(values)
    ]
