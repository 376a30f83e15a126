"""Conditions of a script: `[ ... ]`, `[[ ... ]]`, `(( ... ))`; none where nobody knows."""

from __future__ import annotations

import re
from collections.abc import Callable

from dsforge.importing.shell.arithmetic import computed
from dsforge.importing.shell.expansion import is_unknown, without_unset

_OF_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_WHOLE = re.compile(r"-?\d{1,15}")
OPENING, CLOSING = ("[", "[[", "test"), ("]", "]]")


def is_test(words: list[str]) -> bool:
    """Whether a command is a condition."""
    return bool(words) and (words[0] in OPENING or words[0] in ("true", "false", ":"))


def holds(words: list[str]) -> bool | None:
    """Whether a condition holds; none where it depends on what is not known."""
    if words[0] in ("true", ":", "false"):
        return words[0] != "false"
    inner = [without_unset(word) for word in words[1:]]
    if inner and inner[-1] in CLOSING:
        inner.pop()
    return _any(inner)


def _any(words: list[str]) -> bool | None:
    """Parts that are joined by `||` or `-o`."""
    return _joined(words, ("||", "-o"), _every, stops=True)


def _every(words: list[str]) -> bool | None:
    """Parts that are joined by `&&` or `-a`."""
    return _joined(words, ("&&", "-a"), _one, stops=False)


def _joined(
    words: list[str],
    joints: tuple[str, ...],
    part: Callable[[list[str]], bool | None],
    *,
    stops: bool,
) -> bool | None:
    """Of parts one `stops` value decides; without it a part that is not known does."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in joints and parts[-1]:
            parts.append([])
        else:
            parts[-1].append(word)
    found = [part(each) for each in parts]
    if stops in found:
        return stops
    return None if None in found else not stops


def _one(words: list[str]) -> bool | None:  # noqa: PLR0911 - one for each form
    """One comparison."""
    if words[:1] == ["!"]:
        inner = _one(words[1:])
        return None if inner is None else not inner
    if len(words) == 1:
        return None if is_unknown(words[0]) else words[0] != ""
    if len(words) == 2:  # noqa: PLR2004 - an operator and its operand
        return _of_one(words[0], words[1])
    if len(words) != 3 or any(map(is_unknown, words)):  # noqa: PLR2004 - a comparison
        return None
    left, operator, right = words
    if operator in ("=", "=="):
        return _is_like(left, right)
    if operator == "!=":
        like = _is_like(left, right)
        return None if like is None else not like
    compare = _OF_NUMBERS.get(operator)
    if compare is None or not (_WHOLE.fullmatch(left) and _WHOLE.fullmatch(right)):
        return None
    return compare(int(left), int(right))


def _is_like(text: str, pattern: str) -> bool | None:
    """Equality, with a `*` at the ends of the pattern."""
    bare = pattern.strip("*")
    if any(mark in bare for mark in "*?["):
        return None
    if pattern.startswith("*") and pattern.endswith("*") and pattern:
        return bare in text
    if pattern.endswith("*"):
        return text.startswith(bare)
    return text.endswith(bare) if pattern.startswith("*") else text == pattern


def _of_one(operator: str, word: str) -> bool | None:
    """`-z` and `-n`; what asks the file system is not known."""
    if operator not in ("-z", "-n") or is_unknown(word):
        return None
    return (word == "") == (operator == "-z")


def arithmetic_holds(text: str) -> bool | None:
    """Whether `(( text ))` is not 0."""
    number = computed(text)
    return None if number is None else number != 0
