"""The configurations that `gen` writes beside the choice: every ZeRO stage and offload, Megatron."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.errors import Problem
from dsforge.plan import Priced, Request, Variant, VariantName
from dsforge.planner.candidates import Offloads, base, batchings, families, layouts
from dsforge.planner.pricing import is_safe, missing_bytes, price
from dsforge.rules import check
from dsforge.strategy import Strategy, ZeroStage


class _Shape(NamedTuple):
    """What a DeepSpeed variant fixes."""

    stage: ZeroStage
    offloads: Offloads


SHAPES: dict[VariantName, _Shape] = {
    "zero1": _Shape(1, ("none", "none")),
    "zero2": _Shape(2, ("none", "none")),
    "zero3": _Shape(3, ("none", "none")),
    "zero2_offload": _Shape(2, ("cpu", "none")),
    "zero3_offload": _Shape(3, ("cpu", "cpu")),
    "zero3_nvme": _Shape(3, ("nvme", "nvme")),
}


def variants(request: Request) -> tuple[Variant, ...]:
    """Each variant with its best batching, or the rules that forbid it."""
    layout = next(iter(layouts(request, "deepspeed")))
    found = [
        _best(
            request,
            name,
            (base(request, "deepspeed", layout, stage=shape.stage, offloads=shape.offloads),),
        )
        for name, shape in SHAPES.items()
    ]
    return (*found, _best(request, "megatron", tuple(families(_free(request), "megatron"))))


def _free(request: Request) -> Request:
    """The request without what only concerns DeepSpeed."""
    fixed = request.constraints.model_copy(
        update={"zero_stage": None, "offload_optimizer": None, "offload_parameters": None}
    )
    return request.model_copy(update={"constraints": fixed})


def _best(request: Request, name: VariantName, bases: tuple[Strategy, ...]) -> Variant:
    """The fastest member that fits; else the one nearest to fitting; else the broken rules."""
    members: list[Priced] = []
    problems: list[Problem] = []
    for family in bases:
        broken = check(request.model, request.cluster, request.workload, family)
        problems += [problem for problem in broken if problem not in problems]
        if not broken:
            members += [
                price(request.model, request.cluster, request.workload, member)
                for member in batchings(request, family)
            ]
    if not members:
        return Variant(name=name, priced=None, problems=tuple(problems))
    fitting = [priced for priced in members if priced.fits]
    if not fitting:
        nearest = min(members, key=lambda p: missing_bytes(request.cluster, p.memory))
        return Variant(name=name, priced=nearest)
    best = min(fitting, key=lambda p: (not is_safe(request.cluster, p), p.time.step_s.likely))
    return Variant(name=name, priced=best)
