"""Rows of preferences: a prompt with a chosen and a rejected answer, as TRL's data sets hold them.

`chosen` and `rejected` are texts, the messages that follow `prompt`, or whole conversations, which
begin with a message of the user or the system. Answers before the first difference of two
conversations belong to the prompt.
"""

from __future__ import annotations

from typing import Any

from dsforge.errors import Problem
from dsforge.train.data.conversations import Message, Row, conversation, is_blank

SIDES = ("chosen", "rejected")
HINT = "a row of preferences has `prompt`, `chosen` and `rejected`"


def is_pair(value: dict[str, Any]) -> bool:
    """Whether a row has both answers of a pair."""
    return all(side in value for side in SIDES)


def pair_row(place: str, value: dict[str, Any]) -> Row | Problem:
    """The two conversations of a row, or what is wrong with it."""
    sides = []
    for side in SIDES:
        if side not in value:
            return Problem("row-pair", f"has no `{side}`", HINT, place)
        found = _side(place, side, value)
        if isinstance(found, Problem):
            return found
        sides.append(found)
    chosen, rejected = sides
    if chosen == rejected:
        text = "`chosen` and `rejected` are the same: such a pair teaches nothing"
        return Problem("row-pair", text, "remove the row", place)
    given = _shared(chosen, rejected)
    if given == 0:
        text = "`chosen` and `rejected` must begin with the same message"
        return Problem("row-pair", text, HINT, place)
    return Row(place, messages=chosen, rejected=rejected, given=given)


def _side(place: str, side: str, value: dict[str, Any]) -> tuple[Message, ...] | Problem:
    """The whole conversation that ends with one of the answers."""
    answer, prompt = value[side], value.get("prompt")
    if isinstance(answer, list):
        found = conversation(place, side, answer)
        if isinstance(found, Problem) or found[0]["role"] != "assistant":
            return found
        answer = list(found)
    elif is_blank(answer):
        text = f"`{side}` must be text that is not empty, or a list of messages"
        return Problem("row-field", text, place=place)
    else:
        answer = [{"role": "assistant", "content": answer}]
    if isinstance(prompt, list) and prompt:
        return conversation(place, f"prompt + {side}", [*prompt, *answer])
    if is_blank(prompt):
        text = "`prompt` must be text that is not empty, or a list of messages"
        return Problem("row-field", text, HINT, place)
    return ({"role": "user", "content": str(prompt)}, *answer)


def _shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> int:
    """Messages at the beginning that two conversations have in common."""
    both = zip(chosen, rejected, strict=False)
    most = min(len(chosen), len(rejected)) - 1  # each ends with an answer of its own
    differing = (at for at, (one, other) in enumerate(both) if one != other)
    return min(next(differing, most), most)
