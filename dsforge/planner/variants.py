"""The configurations that `gen` writes beside the choice: ZeRO stages, offload, Megatron."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from dsforge.constraints.megatron import NO_ADAPTERS
from dsforge.errors import Problem
from dsforge.plan import Priced, Request, Variant, VariantName
from dsforge.planner.candidates import Offloads, base, families, layouts
from dsforge.planner.explore import Explorer
from dsforge.planner.preference import counted
from dsforge.planner.pricing import price
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


def variants(explorer: Explorer) -> tuple[Variant, ...]:
    """Each variant with its best batching, or the rules that forbid it.

    None for a program that trains by itself: its files show one strategy.
    """
    request = explorer.request
    if request.constraints.program is not None:
        return ()
    layout = next(iter(layouts(request, "deepspeed")))
    families_of: dict[VariantName, tuple[Strategy, ...]] = {
        name: (base(request, "deepspeed", layout, stage=shape.stage, offloads=shape.offloads),)
        for name, shape in SHAPES.items()
    }
    of_deepspeed = tuple(_best(explorer, name, bases) for name, bases in families_of.items())
    return (*of_deepspeed, _on_megatron(explorer))


def beside(every: tuple[Variant, ...], chosen: Priced) -> tuple[Variant, ...]:
    """The variants of one choice: where that is a plan of Megatron-LM, its files are the choice's.

    An easier plan than the fastest may be chosen, and `megatron/args.txt` holds one strategy.
    """
    if chosen.strategy.back_end != "megatron":
        return every
    own = {"priced": chosen, "problems": ()}
    return tuple(
        variant.model_copy(update=own) if variant.name == "megatron" and variant.priced else variant
        for variant in every
    )


def _on_megatron(explorer: Explorer) -> Variant:
    """The variant of Megatron-LM; adapters have a price there, but no files."""
    name: VariantName = "megatron"
    if explorer.request.workload.method == "lora":
        return Variant.model_construct(name=name, priced=None, problems=(NO_ADAPTERS,))
    return _best(explorer, name, tuple(families(_free(explorer.request), "megatron")))


def _free(request: Request) -> Request:
    """The request without what only concerns DeepSpeed."""
    fixed = request.constraints.model_copy(
        update={
            "zero_stage": None,
            "hpz_partition_size": None,
            "offload_optimizer": None,
            "offload_parameters": None,
        }
    )
    return request.model_copy(update={"constraints": fixed})


def _best(explorer: Explorer, name: VariantName, bases: tuple[Strategy, ...]) -> Variant:
    """The fastest member that fits; else the one nearest to fitting; else the broken rules."""
    explored = [explorer.explore(family) for family in bases]
    fitting = [candidate for found in explored for candidate in found.fitting]
    short = [found.nearest for found in explored if found.nearest is not None]
    if fitting or short:
        best = (
            min(counted(explorer.request, tuple(fitting)), key=attrgetter("step_s"))
            if fitting
            else min(short, key=attrgetter("missing_bytes"))
        )
        request = explorer.request
        priced = price(request.model, request.cluster, request.workload, best.strategy)
        return Variant.model_construct(name=name, priced=priced, problems=())
    problems: list[Problem] = []
    for found in explored:
        problems += [problem for problem in found.problems if problem not in problems]
    return Variant.model_construct(name=name, priced=None, problems=tuple(problems))
