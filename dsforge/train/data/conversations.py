"""Conversations in rows of data: what a row holds, and whether its messages are ones.

A row of preferences has two conversations, which share their beginning and differ in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsforge.errors import Problem

MAX_MESSAGES = 2_000  # in a row: each answer is rendered with all that stands before it
ROLES = {"system", "user", "assistant", "tool"}
SPEAKERS = {"human": "user", "gpt": "assistant", "system": "system", "tool": "tool"}  # of ShareGPT
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as text: plain `text`, or a conversation that ends with the answer.

    `rejected` is the conversation with the worse answer of a pair, `messages` that with the chosen
    one; no answer among the first `given` messages is counted.
    """

    place: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    rejected: tuple[Message, ...] = ()
    given: int = 0


def conversation(place: str, key: str, messages: Any) -> tuple[Message, ...] | Problem:
    """The messages of a field, which end with an answer; or what is wrong with them."""
    if not isinstance(messages, list) or not messages:
        return Problem("row-field", f"`{key}` must be a list and not empty", place=place)
    if len(messages) > MAX_MESSAGES:
        text = f"`{key}` must have at most {MAX_MESSAGES:,} entries"
        return Problem("row-field", text, place=place)
    messages = [_of_sharegpt(message) for message in messages]
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not _is_role(message.get("role")):
            roles = ", ".join(sorted(ROLES))
            text = f"`{key}[{number}].role` must be one of {roles}"
            return Problem("row-role", text, place=place)
        if not isinstance(message.get("content"), str):
            return Problem("row-field", f"`{key}[{number}].content` must be text", place=place)
    answer = messages[-1]
    if answer["role"] != "assistant" or is_blank(answer["content"]):
        text = "the last message must be an answer (role assistant) that is not empty"
        return Problem("row-answer", text, place=place)
    return tuple({"role": m["role"], "content": m["content"]} for m in messages)


def is_blank(value: Any) -> bool:
    """Whether a value is no text, or holds nothing but white space."""
    return not isinstance(value, str) or not value.strip()


def _is_role(value: Any) -> bool:
    return isinstance(value, str) and value in ROLES


def _of_sharegpt(message: Any) -> Any:
    """A message with `role` and `content`; of `from` and `value` where it is ShareGPT's."""
    if not isinstance(message, dict) or "role" in message or "from" not in message:
        return message
    speaker = message["from"]
    role = SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": message.get("value")}
