"""Causes as text for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsforge.diagnose.ranking import Cause
from dsforge.diagnose.rule import ERRORS, Rule
from dsforge.diagnose.templates import shown
from dsforge.masking import masked

WIDTH = 240  # characters of a log line that are shown
CONFIDENT = 0.5  # from here on a cause is named without being asked for


def described(causes: Sequence[Cause]) -> list[str]:
    """The causes, likeliest first, each with its proof and its patch; hints say that they are."""
    lines = []
    for number, cause in enumerate(causes, start=1):
        sure = cause.kind if cause.confidence >= CONFIDENT else f"possible {cause.kind}"
        lines += [
            f"{sure} {number} of {len(causes)}: {cause.message}",
            f"  [{cause.rule}, confidence {cause.confidence:g}]",
            f"  because   {cause.why}",
            *(f"  {line.file}:{line.line}   {_shortened(line.text)}" for line in cause.evidence),
            "  fix",
            *(f"    {line}" for line in cause.fix.splitlines()),
        ]
    return lines


def shortly(causes: Sequence[Cause]) -> list[str]:
    """The first cause in a few lines, to stand under a failed run; nothing where none is sure.

    An error that no rule knows is named as that, with where to start.
    """
    if not causes:
        return []
    cause = causes[0]
    sure = cause.confidence >= CONFIDENT
    if not sure and cause.hits[0].rule.kind not in ERRORS:
        return []
    lines = [
        f"cause: {'' if sure else 'not known; '}{cause.message} [{cause.rule}]",
        *(f"  line {line.line}   {_shortened(line.text)}" for line in cause.evidence[:1]),
        *(f"  fix   {line}" for line in cause.fix.splitlines()),
    ]
    return [masked(line) for line in lines]


def document(causes: Sequence[Cause]) -> dict[str, Any]:
    """The JSON document: `causes`, best first, empty where nothing is wrong."""
    return {
        "causes": [
            {
                "rule": cause.rule,
                "kind": cause.kind,
                "confidence": cause.confidence,
                "message": cause.message,
                "why": cause.why,
                "evidence": [line._asdict() for line in cause.evidence],
                "fix": cause.fix,
            }
            for cause in causes
        ]
    }


def explained(rule: Rule) -> list[str]:
    """What a rule looks for and says; `<...>` stands for what it takes from the log."""
    return [
        f"{rule.id} ({rule.kind}, confidence {rule.confidence:g})",
        f"  says      {shown(rule.message)}",
        f"  because   {rule.cause}",
        f"  seen in   {'; '.join(rule.sources)}",
        *(f"  looks for {pattern}" for pattern in rule.all_patterns),
        "  fix",
        *(f"    {line}" for line in shown(rule.fix).splitlines()),
    ]


def _shortened(text: str) -> str:
    """The text without secrets, no longer than a few lines of a terminal."""
    text = masked(text)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}\N{HORIZONTAL ELLIPSIS}"
