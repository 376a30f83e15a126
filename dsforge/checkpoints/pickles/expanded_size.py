"""How large and how deep nested values are once every shared part is counted where it is used.

A pickle of 1 kB can describe a list of lists of lists, each shared ten times, that has 10^40
elements when it is walked, compared or shown. Values within these limits can be handled freely.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dsforge.checkpoints.pickles.values import Foreign, Name

MAX_DEPTH = 200
MAX_ELEMENTS = 10_000_000  # of nested values, shared ones counted at each use
MAX_PATH = 2_000  # characters of all keys on the way to a value
MAX_PATH_TOTAL = 500_000_000  # of all values together
CONTAINERS = frozenset((dict, list, tuple, set, frozenset))  # a tensor is none of these


class Extent(NamedTuple):
    """Elements, depth, and characters of the longest path of a nested value."""

    elements: int
    depth: int
    path: int


def check_extent(value: Any, foreign: Iterable[Foreign]) -> None:
    """Raises ValueError where values, or the arguments and states of objects, are too large."""
    done: dict[int, Extent] = {}
    for each in foreign:
        for part in (each.arguments, each.state, each.items):
            _measure(part, done)
    _measure(value, done)


def _measure(root: Any, done: dict[int, Extent]) -> None:
    """Measure a value and all in it, each object once; innermost first."""
    waiting: list[Any] = [root]
    begun: set[int] = set()
    while waiting:
        value = waiting[-1]
        if id(value) in done or type(value) not in CONTAINERS:
            waiting.pop()
            continue
        inner = [part for part in _parts(value) if type(part) in CONTAINERS]
        if id(value) in begun:
            done[id(value)] = _extent(value, [done[id(part)] for part in inner])
            begun.remove(id(value))
            waiting.pop()
        elif any(id(part) in begun for part in inner) or any(part is value for part in inner):
            raise ValueError("a value that contains itself")
        else:
            begun.add(id(value))
            if len(begun) > MAX_DEPTH:
                raise ValueError(f"values nested more than {MAX_DEPTH} deep")
            waiting += [part for part in inner if id(part) not in done]


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _extent(value: Any, inner: list[Extent]) -> Extent:
    """The extent of a value from those of the containers in it. Raises ValueError."""
    key = 8  # characters of a number
    if isinstance(value, dict):
        key = max((len(k) for k in value if isinstance(k, str)), default=key)
    own = Extent(
        len(value) + sum(part.elements for part in inner),
        1 + max((part.depth for part in inner), default=0),
        1 + key + max((part.path for part in inner), default=0),
    )
    if own.elements > MAX_ELEMENTS:
        raise ValueError(f"more than {MAX_ELEMENTS:,} nested values")
    if own.path > MAX_PATH or own.path * own.elements > MAX_PATH_TOTAL:
        raise ValueError("names that are too long")
    return own


def names_in(values: Iterable[Any]) -> frozenset[str]:
    """The names that nested values hold; each object is looked at once."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [*values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Name):
            found.add(value.path)
        elif type(value) in CONTAINERS and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                waiting += value.keys()
            waiting += _parts(value)
    return frozenset(found)
