"""What the readers of text share: locations in a file, and a refusal of one place in it."""

from __future__ import annotations

from dsforge.errors import Problem, SpecError

Loc = tuple[str | int, ...]

MAX_PROBLEMS = 50  # one message stays readable


def refusal(rule: str, place: str, message: str, hint: str = "") -> SpecError:
    """A SpecError with one problem."""
    return SpecError((Problem(rule, message, hint, place),))
