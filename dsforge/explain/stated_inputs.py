"""Numbers that a plan states and no formula gives: its inputs and decisions, as figures.

The documents print them beside the figures that are computed, so `explain` knows them by the same
names, with the description of their field as the source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from dsforge.explain.figures import Figure, Setting
from dsforge.plan import Plan
from dsforge.planner.pricing import missing_bytes
from dsforge.strategy import Strategy
from dsforge.units import Interval

GROUP = "stated in the plan"
LONGEST = 80  # letters of a setting
MARGIN = (
    "free memory per rank in the tightest place: its device, or its share of the node's RAM and "
    "disk; negative: missing"
)
UNITS = (("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"), ("_s", "s"), ("_w", "W"))


class _Stated(NamedTuple):
    """A number of a plan: its names from the outside in, and what it is."""

    path: tuple[str, ...]
    value: float
    source: str


def stated_figure(plan: Plan, name: str) -> Figure | None:
    """The number of a plan that a name means: a field, or a dotted path that ends with it."""
    wanted = tuple(re.findall(r"[a-z0-9_]+", name.lower()))
    if wanted[-1:] == ("margin_bytes",):
        margin = -missing_bytes(plan.cluster, plan.choice.memory)
        return _figure(_Stated(("margin_bytes",), float(margin), MARGIN))
    for end in range(len(wanted)):
        for stated in _numbers(plan, ()):
            if stated.path[-len(wanted[end:]) :] == wanted[end:]:
                return _figure(stated)
    return None


def stated_setting(plan: Plan, name: str) -> Setting | None:
    """What a setting that is no number says and means; none where a plan has no such field."""
    wanted = tuple(re.findall(r"[a-z0-9_]+", name.lower()))
    for end in range(len(wanted)):
        for path, value, description in _settings(plan, ()):
            if path[-len(wanted[end:]) :] == wanted[end:]:
                return Setting(name=".".join(path), value=_shown(value), meaning=description)
    return None


def _shown(value: object) -> str:
    """The value in a few words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        counts = Counter(value)
        many = (f"{times} x {each}" if times > 1 else str(each) for each, times in counts.items())
        return (", ".join(many) or "empty")[:LONGEST]
    return str(value)[:LONGEST]


def _settings(
    document: BaseModel, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object, str]]:
    """Every field of a document that holds no number, the outer ones first."""
    inner = []
    for name, field in type(document).model_fields.items():
        value, here = getattr(document, name), (*path, name)
        if isinstance(document, Strategy) and name == "execution":
            value = document.runs_as  # the engine's own, where a strategy states none
        is_words = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
        if value is None or is_words or isinstance(value, str | bool):
            yield here, value, str(field.description).removesuffix(".")
        elif isinstance(value, BaseModel) and not isinstance(value, Interval):
            inner.append((value, here))
    for value, here in inner:
        yield from _settings(value, here)


def _figure(stated: _Stated) -> Figure:
    name = stated.path[-1]
    unit = next((unit for ending, unit in UNITS if name.endswith(ending)), "")
    return Figure(
        group=GROUP,
        name=name,
        value=stated.value,
        unit=unit,
        formula="",
        inputs=(),
        source=f"stated in the plan as {'.'.join(stated.path)}: {stated.source}",
    )


def _numbers(document: BaseModel, path: tuple[str, ...]) -> Iterator[_Stated]:
    """Every number in a document, the outer ones first; of hosts and groups the first."""
    inner = []
    for name, field in type(document).model_fields.items():
        value, here = getattr(document, name), (*path, name)
        if isinstance(value, Interval):
            value = value.likely
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _Stated(here, float(value), str(field.description).removesuffix("."))
        elif isinstance(value, BaseModel):
            inner.append((value, here))
        elif isinstance(value, dict):
            what = str(field.description).removesuffix(".")
            numbers = ((k, v) for k, v in value.items() if isinstance(v, int | float))
            yield from (_Stated((*here, str(key)), float(v), what) for key, v in numbers)
    for value, here in inner:
        yield from _numbers(value, here)
