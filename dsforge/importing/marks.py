"""Marks and flaws: where values stand in a text, and what its reader found wrong with it."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.findings import Edit, Severity

Loc = tuple[str | int, ...]


class Mark(NamedTuple):
    """Where one value stands: offsets of its key (equal where it has none) and of itself."""

    key_start: int
    key_end: int
    start: int
    end: int


class Flaw(NamedTuple):
    """What reading itself found: the rule, the offset, and what is wrong."""

    rule: str
    offset: int
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    severity: Severity | None = None  # where it is another than the rule's
