"""How a tensor that activation checkpointing computed again differs from the first one."""

from __future__ import annotations

from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.sizes import numbers


def recomputed(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """How a tensor that checkpointing computed again differs, and which remedies that leaves."""
    shown = [hit.values for hit in hits]
    first = next((values for values in shown if values.get("first")), {})
    again = next((values for values in shown if values.get("again")), {})
    one, other = list(numbers(first.get("first", ""))), list(numbers(again.get("again", "")))
    types = (first.get("type", ""), again.get("again_type", ""))
    kind = _kind(one, other, types)
    said = {
        "released": "a weight was released (shape [0]) when it was needed again",
        "grown": f"a dimension grew from {one} to {other}, as a cache of keys and values does",
        "cast": f"the type was {types[0]}, then {types[1]}",
        "chosen": f"{one} became {other}: the forward chose by data or by chance",
    }
    remedies = {
        "reentrant": kind in ("released", ""),
        "cache": kind in ("grown", ""),
        "cast": kind in ("cast", ""),
        "routing": kind in ("chosen", ""),
    }
    marks = {name: "where" if not kind else "here:" for name, there in remedies.items() if there}
    return {"difference": said.get(kind, ""), **dict.fromkeys(remedies, ""), **marks}


def _kind(one: list[int], other: list[int], types: tuple[str, str]) -> str:
    """What sort of difference there is; empty where the log does not show one."""
    if other == [0] and one != [0]:
        return "released"
    differing = _differing(one, other)
    if len(differing) == 1:
        return "grown" if other[differing[0]] >= 2 * one[differing[0]] else "chosen"
    return "cast" if not differing and all(types) and types[0] != types[1] else ""


def _differing(one: list[int], other: list[int]) -> list[int]:
    """The places in which two shapes of equal length differ."""
    if len(one) != len(other):
        return []
    return [place for place, sizes in enumerate(zip(one, other, strict=True)) if len({*sizes}) > 1]
