"""Variables of a `.deepspeed_env`: lines `NAME=VALUE`, split as the launcher splits them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsforge.lint.reading.document import Document, Line


class Variable(NamedTuple):
    """One line `NAME=VALUE`."""

    name: str
    value: str
    line: Line


def variables(document: Document) -> Iterator[Variable]:
    """The variables of the file."""
    for line in document.lines:
        name, equals, value = line.text.rstrip("\r").partition("=")
        if equals and not name.lstrip().startswith("#"):
            yield Variable(name, value, line)
