"""Comparison of the shapes that a model needs with those in a checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dsforge.checkpoints.findings import error, listed
from dsforge.findings import Finding


class Wanted(NamedTuple):
    """What the model must have: a number of parameters, and shapes by name where they are known."""

    parameters: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})


SAVED = re.compile(r"\.modules_to_save\.[^.]+")  # peft's copies of modules that train as a whole
ADAPTER = re.compile(r"(?P<base>.+)\.lora_(?P<end>[AB])\.[^.]+\.weight")


def plain_name(name: str) -> str:
    """The name of a weight without what peft wraps around the model."""
    plain = SAVED.sub("", name.removeprefix("base_model.model."))
    return plain.replace(".base_layer.", ".").replace(".original_module.", ".")


def are_adapters_alone(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint holds adapters and not the frozen matrices that they adapt."""
    return any(".lora_" in name for name in shapes) and not any(
        ".base_layer." in name for name in shapes
    )


def adapter_findings(
    place: str, shapes: Mapping[str, tuple[int, ...]], wanted: Wanted
) -> Iterator[Finding]:
    """Adapters fit the matrices of the model, where its shapes are known.

    The first factor of an adapter is (rank, inputs), the second (outputs, rank); transformers
    stores some matrices as (inputs, outputs). Modules that train as a whole have the model's shape.
    """
    other = []
    for name, own in shapes.items() if wanted.shapes else ():
        match = ADAPTER.fullmatch(name)
        base = plain_name(f"{match['base']}.weight" if match else name)
        model = wanted.shapes.get(base)
        if model is None:
            other += [f"the model has no {base}"] if match else []
        elif match:
            side = own[-1] if match["end"] == "A" else own[0]
            other += [] if side in model else [f"{name} is {own}, {base} is {model}"]
        elif own != model:
            other.append(f"{name} is {own}, not {model}")
    if other:
        hint = "the adapters belong to another model"
        yield error("shape-other", place, listed(other), hint)


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
