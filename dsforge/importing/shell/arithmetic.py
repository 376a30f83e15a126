"""Arithmetic of a shell: whole numbers, `+ - * / % ( )`, and comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST = 80  # characters of an expression
LARGEST = 10**12
_TOKEN = re.compile(r"\s*(\d{1,15}|\*\*|<=|>=|==|!=|&&|\|\||[-+*/%()<>?:])")
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: a // b, "%": lambda a, b: a % b},
)


class _NotKnownError(ValueError):
    """An expression that is no arithmetic of known whole numbers."""


def computed(text: str) -> int | None:
    """The value of an expression; none where it is not one of known whole numbers."""
    if len(text) > LONGEST:
        return None
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s", "", text) or not tokens:
        return None
    try:
        value = _level(tokens, 0)
    except (_NotKnownError, ZeroDivisionError, IndexError):
        return None
    return None if tokens else value


def _level(tokens: list[str], level: int) -> int:
    """The value of the operators of a level and of those that bind tighter."""
    if level == len(_LEVELS):
        return _atom(tokens)
    value = _level(tokens, level + 1)
    while tokens and tokens[0] in _LEVELS[level]:
        value = _LEVELS[level][tokens.pop(0)](value, _level(tokens, level + 1))
        if abs(value) > LARGEST:
            raise _NotKnownError
    return value


def _atom(tokens: list[str]) -> int:
    """A number, or what stands in brackets."""
    if not tokens:
        raise _NotKnownError
    first = tokens.pop(0)
    if first == "-":
        return -_atom(tokens)
    if first == "(":
        value = _level(tokens, 0)
        if not tokens or tokens.pop(0) != ")":
            raise _NotKnownError
        return value
    if not first.isdigit():
        raise _NotKnownError
    return int(first)
