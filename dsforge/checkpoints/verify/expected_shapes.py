"""Comparison of the shapes that a model needs with those in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dsforge.checkpoints.findings import error, listed
from dsforge.findings import Finding


class Wanted(NamedTuple):
    """What the model must have: a number of parameters, and shapes by name where they are known."""

    parameters: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def plain_name(name: str) -> str:
    """The name of a weight without what peft wraps around the model."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def shape_findings(
    place: str, held: Mapping[str, tuple[int, ...]], wanted: Wanted
) -> Iterator[Finding]:
    """The weights are the model's: names and shapes where those are known, else their number."""
    if wanted.shapes:
        lost = [name for name in wanted.shapes if name not in held]
        if lost:
            hint = "weights are missing, or belong to another model"
            yield error(
                "tensor-missing", place, f"the checkpoint lacks {listed(lost)} of the model", hint
            )
        both = ((name, held[name], shape) for name, shape in wanted.shapes.items() if name in held)
        other = [f"{name} is {own}, not {shape}" for name, own, shape in both if own != shape]
        if other:
            yield error("shape-other", place, listed(other), "the model was changed after the save")
        return
    total = sum(math.prod(shape) for shape in held.values())
    if wanted.parameters is not None and total != wanted.parameters:
        share = f"{total / wanted.parameters:.2%} of them"
        message = f"{total:,} parameters, the model has {wanted.parameters:,} ({share})"
        yield error(
            "parameters-lacking", place, message, "weights are missing, or belong to another model"
        )
