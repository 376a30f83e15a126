"""Messages and fixes with values of this log filled in.

    {name}          the value; where it is required and empty the line is left out
    {name|words}    the value, or the words where the log does not say it
    [[ ... ]]       a part that is left out where one of its values is empty

Nothing else is special, so JSON with its braces and shell commands are written as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

COMMAND = "$ "
_VALUE = re.compile(r"\{(?P<name>[a-z_][a-z_0-9]*)(?:\|(?P<default>[^{}\n]*))?\}")
_OPTIONAL = re.compile(r"\[\[(?P<part>(?:(?!\]\]).)*)\]\]")
_LAST = re.compile(r":\s+`?\{[a-z_][a-z_0-9]*\}`?\s*\Z")
_PLAIN = re.compile(r"~?[\w@%+=:,./-]*|<[\w ]+>")  # needs no quotes; <name> is ours to fill in


def filled(template: str, values: Mapping[str, str]) -> str:
    """One line of a template; parts whose values are missing are left out."""

    def part(found: re.Match[str]) -> str:
        return "" if _lacking(found["part"], values) else found["part"]

    text = _OPTIONAL.sub(part, template)
    return _VALUE.sub(lambda m: values.get(m["name"]) or m["default"] or "", text)


def filled_message(template: str, values: Mapping[str, str]) -> str:
    """A message as a sentence: single spaces, no space before punctuation."""
    text = " ".join(filled(template, values).split())
    for mark in (",", ";", ":", "."):
        text = text.replace(f" {mark} ", f"{mark} ")
    return text.rstrip(" ,;:")


def filled_fix(template: str, values: Mapping[str, str]) -> str:
    """The lines of a fix; in commands, which are copied into a shell, values are quoted."""
    quoted = {
        name: text if _PLAIN.fullmatch(text) else quote(text) for name, text in values.items()
    }
    return "\n".join(
        filled(line, quoted if line.startswith(COMMAND) else values)
        for line in template.split("\n")
        if not _lacking(_OPTIONAL.sub("", line), values)
    )


def shown(template: str) -> str:
    """A template for people: names of values in angle brackets, optional parts as they are."""
    text = template.replace("[[", "").replace("]]", "")
    return _VALUE.sub(lambda m: f"<{m['name']}>", text)


def without_values(template: str) -> str:
    """A template where no value is known: what may be left out is, names stand for the others.

    A value that ends it may be left out, too.
    """
    text = _OPTIONAL.sub(lambda m: "" if names(m["part"]) else m["part"], template)
    text = _LAST.sub("", text)
    return _VALUE.sub(lambda m: m["default"] or f"<{m['name']}>", text)


def required_names(template: str) -> set[str]:
    """The values without which a template says nothing."""
    return {m["name"] for m in _VALUE.finditer(_OPTIONAL.sub("", template)) if not m["default"]}


def names(template: str) -> set[str]:
    """All values that a template mentions."""
    return {m["name"] for m in _VALUE.finditer(template)}


def _lacking(text: str, values: Mapping[str, str]) -> bool:
    """Whether a required value of a text is empty."""
    return any(not values.get(m["name"]) and not m["default"] for m in _VALUE.finditer(text))
