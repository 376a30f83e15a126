"""Findings: what is wrong with a checkpoint, by rule, so that people and programs can tell."""

from __future__ import annotations

from dsforge.findings import Finding


def error(rule: str, place: str, message: str, hint: str = "") -> Finding:
    """A finding that makes the checkpoint unusable as it is."""
    return Finding(rule, "error", message, hint, file=place)


def warning(rule: str, place: str, message: str, hint: str = "") -> Finding:
    """A finding that somebody should know of."""
    return Finding(rule, "warning", message, hint, file=place)


def listed(names: list[str], most: int = 4) -> str:
    """The first names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
