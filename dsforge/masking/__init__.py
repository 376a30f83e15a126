"""Masking: text and values from outside, with every secret in them replaced.

A log, a command line or an environment may hold passwords and tokens, and what dsforge prints goes
into tickets, CI logs and reports. So everything that is printed passes through here. A secret is
known by its name (`HF_TOKEN=`, `--api-key`, `Authorization:`) or by its shape (`hf_...`, a JWT, a
private key); what stays says which one it was: `HF_TOKEN=(set)`.

As much care goes into what is none: `pad_token`, `tokens_per_second=2048`, `NCCL_IB_HCA`,
checksums and paths of tokenizers are what a diagnosis lives on.
"""

from __future__ import annotations

from traceback import format_exception
from typing import Any

from dsforge.masking.hints import LONG_TEXT, groups, is_hinted
from dsforge.masking.names import SET, is_secret

__all__ = [
    "SET",
    "is_secret",
    "masked",
    "masked_document",
    "masked_traceback",
    "masked_value",
    "printable",
]


MOST_PASSES = 5  # broken quotes can hide a name behind another one's value


def masked_value(name: str, value: str) -> str:
    """The value of a name: `(set)` where the name is a secret's, else with its secrets masked."""
    if value and is_secret(name):
        from dsforge.masking.patterns import HARMLESS

        if not HARMLESS.fullmatch(value.strip()):
            return SET
    return masked(value)


def masked(text: str) -> str:
    """The text with every secret in it replaced; the same text again where there is none."""
    if len(text) <= LONG_TEXT:
        return _replaced(text) if is_hinted(text) else text
    lines = text.split("\n")
    parts, at = [], 0
    for begin, end in groups(lines):
        parts += lines[at:begin]
        parts.append(_replaced("\n".join(lines[begin:end])))
        at = end
    return "\n".join((*parts, *lines[at:]))


def printable(text: str) -> str:
    """Text from outside without secrets, and without characters that drive the terminal."""
    shown = masked(text)
    if shown.isprintable():
        return shown
    return "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in shown
    )


def _replaced(text: str) -> str:
    """The text without secrets; what one mask uncovers is looked at again."""
    from dsforge.masking.patterns import replaced  # 10 ms, which most commands need not pay

    for _ in range(MOST_PASSES):
        before, text = text, replaced(text)
        if text == before:
            break
    return text


def masked_traceback(error: BaseException) -> str:
    """The traceback of an exception, as Python prints it, without secrets."""
    return masked("".join(format_exception(error)))


def masked_document(value: Any, name: str = "") -> Any:
    """A JSON value with every secret in it replaced, its shape unchanged; `name` is its key."""
    if isinstance(value, str):
        return masked_value(name, value)
    if isinstance(value, dict):
        named = value.get("name") if isinstance(value.get("value"), str) else None
        return {
            masked(key) if isinstance(key, str) else key: masked_document(
                inner, str(named if named and key == "value" else key)
            )
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            masked_document(inner, key)
            for key, inner in zip(_options(value, name), value, strict=True)
        ]
    return value


def _options(values: Any, name: str) -> list[str]:
    """The name of each value of a list: that of the list, or the option in front of it."""
    names = [name] * len(values)
    for number, value in enumerate(values[:-1]):
        if isinstance(value, str) and value.startswith("-") and "=" not in value:
            names[number + 1] = value.lstrip("-")
    return names
