"""Arithmetic as text: what a reader redoes by hand is what was computed.

A formula is a Python expression of names, numbers, `+ - * / // **` and five functions. It is
parsed, never run as code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil, log2
from typing import Any

FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max,
    "min": min,
    "ceil": ceil,
    "log2": log2,
    "round": round,
}
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def value_of(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula. Raises KeyError for a name without a value, ValueError for syntax."""
    return _value(_parsed(formula), values)


def names_in(formula: str) -> tuple[str, ...]:
    """The names that a formula needs values for, in their order."""
    nodes = sorted(
        (n for n in ast.walk(_parsed(formula)) if isinstance(n, ast.Name)),
        key=lambda node: node.col_offset,
    )
    return tuple(dict.fromkeys(node.id for node in nodes if node.id not in FUNCTIONS))


@lru_cache(maxsize=1024)
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=given) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(one, values) for one in given))
    raise ValueError(f"not arithmetic: {ast.unparse(node)}")
