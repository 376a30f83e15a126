"""Printed formulas of an explanation, redone by Python itself from the printed inputs."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, isclose, log2
from typing import Any


def next_power_of_two(value: float) -> int:
    """The smallest power of two that is not smaller than a whole number."""
    power = 1
    while power < value:
        power *= 2
    return power


FUNCTIONS = {
    "max": max,
    "min": min,
    "ceil": ceil,
    "floor": floor,
    "round": round,
    "log2": log2,
    "next_power_of_two": next_power_of_two,
}


def is_redone(figure: Mapping[str, Any]) -> bool:
    """Whether the formula of a figure gives its value."""
    inputs = {given["name"]: given["value"] for given in figure["inputs"]}
    redone = eval(figure["formula"], {"__builtins__": {}}, {**FUNCTIONS, **inputs})  # noqa: S307
    return isclose(redone, figure["value"], rel_tol=1e-12)
