"""Constraints of programs that train by themselves: what each can do stands in `programs/`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsforge.constraints.case import Broken, Case, constraint

if TYPE_CHECKING:  # their tables are not needed to lint a file
    from dsforge.programs import Program, Way

SOURCE = "dsforge/programs: each way of a program names the files of its source"


def _way(case: Case) -> Way | None:
    """The way in which the program of a case runs it; none: no program, or one without."""
    if case.program is None:
        return None
    from dsforge.programs import way_of

    return way_of(case.program, case.trainer, case.back_end)


def _program(name: str) -> Program:
    """What a program can do."""
    from dsforge.programs import BY_NAME

    return BY_NAME[name]


def _label(case: Case) -> str:
    """The program, as its project writes it."""
    return _program(case.program).label if case.program else ""


def _listed(values: Iterable[object]) -> str:
    """`1, 2 or 3`."""
    words = [str(value) for value in values]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


@constraint("program-engine", source=SOURCE, ours=False)
def runs_on(case: Case) -> Broken | None:
    """An engine that the program does not run on."""
    if case.program is None or _way(case) is not None:
        return None
    known = _listed(way.execution.trainer for way in _program(case.program).ways)
    return Broken(f"{_label(case)} does not run on {case.trainer or case.back_end}", f"use {known}")


@constraint("program-zero", source=SOURCE, ours=False)
def shards(case: Case) -> Broken | None:
    """A ZeRO stage, or sharding that does the same, that the program does not have."""
    way, stage = _way(case), case.zero_stage
    if way is None or stage is None or stage in way.stages:
        return None
    return Broken(
        f"{_label(case)} has no sharding like ZeRO stage {stage}",
        f"use stage {_listed(way.stages)} (3 is FSDP's full sharding)",
    )


@constraint("program-parallelism", source=SOURCE, ours=False)
def splits(case: Case) -> Broken | None:
    """Ways to split a model that the program does not have, or does not combine."""
    way = _way(case)
    if way is None:
        return None
    sizes = {
        "tensor": (case.tensor_parallel_size, way.tensor),
        "pipeline": (case.pipeline_parallel_size, way.pipeline),
        "context": (case.context_parallel_size, way.context),
        "expert": (case.expert_parallel_size, way.expert),
    }
    missing = [f"{name} ({size})" for name, (size, has) in sizes.items() if size > 1 and not has]
    if missing:
        return Broken(
            f"{_label(case)} has no {' and '.join(missing)} parallelism", "use a size of 1"
        )
    if case.adapters and not way.splits_adapters:
        split = max(case.tensor_parallel_size, case.pipeline_parallel_size)
        if split > 1:
            said = f"{_label(case)} does not train adapters with model parallelism ({split})"
            return Broken(said, "use tensor and pipeline sizes of 1")
    used = [f"{name} ({size})" for name, (size, _) in sizes.items() if size > 1]
    used = [each for each in used if not each.startswith("expert")]
    if way.combines or len(used) <= 1:
        return None
    return Broken(f"{_label(case)} cannot combine {' and '.join(used)} parallelism", "use one")


@constraint("program-interleaving", source=SOURCE, ours=False)
def interleaves(case: Case) -> Broken | None:
    """Virtual pipeline stages in a program that has none."""
    way = _way(case)
    if way is None or way.virtual_stages or case.virtual_stages == 1:
        return None
    return Broken(f"{_label(case)} has no virtual stages ({case.virtual_stages})", "use 1")


@constraint("program-offload", source=SOURCE, ours=False)
def offloads(case: Case) -> Broken | None:
    """Offload that the program does not have."""
    way = _way(case)
    if way is None:
        return None
    optimizer, parameters = case.offload_optimizer, case.offload_parameters
    named = (
        ("optimizer", optimizer, way.offload_optimizer),
        ("parameter", parameters, way.offload_parameters),
    )
    for name, place, known in named:
        if place is not None and place not in known:
            said = f"{_label(case)} has no {name} offload to {place}"
            return Broken(said, f"use {_listed(known)}")
    if not way.offloads_together or None in (optimizer, parameters) or optimizer == parameters:
        return None
    return Broken(
        f"{_label(case)} offloads parameters and optimizer together (got {parameters} and "
        f"{optimizer})",
        "use the same place for both",
    )


@constraint("program-method", source=SOURCE, ours=False)
def trains(case: Case) -> Broken | None:
    """A training method, or a format of the frozen matrices, that the program does not have."""
    way = _way(case)
    if way is None:
        return None
    method = ("qlora" if case.base else "lora") if case.adapters else "full"
    if method not in way.methods:
        return Broken(f"{_label(case)} has no {method} training", f"use {_listed(way.methods)}")
    if case.base is None or case.base in way.bases:
        return None
    return Broken(f"{_label(case)} does not train on {case.base}", f"use {_listed(way.bases)}")


@constraint("program-values", source=SOURCE, ours=False)
def knows(case: Case) -> Broken | None:
    """A precision, optimizer or recomputation that the program does not have."""
    way = _way(case)
    if way is None:
        return None
    named: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
        ("precision", case.precision, way.precisions),
        ("optimizer", case.optimizer, way.optimizers),
        ("recompute", case.recompute, way.recompute),
    )
    for name, value, known in named:
        if value is not None and value not in known:
            return Broken(f"{_label(case)} has no {name} {value[:60]}", f"use {_listed(known)}")
    return None


@constraint("program-activations", source=SOURCE, ours=False)
def spares_activations(case: Case) -> Broken | None:
    """Checkpoints in RAM or tiled MLPs in a program that does not have them."""
    way = _way(case)
    if way is None:
        return None
    words = {
        "offload_activations": case.offload_activations and not way.activations_in_ram,
        "tiled_mlp": case.tiled_mlp and not way.tiled_mlp,
    }
    missing = [name for name, lacks in words.items() if lacks]
    if not missing:
        return None
    return Broken(f"{_label(case)} has no {' and '.join(missing)}", "leave it out")


@constraint("program-zero-plus", source=SOURCE, ours=False)
def compresses(case: Case) -> Broken | None:
    """ZeRO++ in a program that does not have it."""
    way = _way(case)
    if way is None:
        return None
    if case.hpz_partition_size > 1 and not way.hpz:
        size = case.hpz_partition_size
        return Broken(f"{_label(case)} has no hpZ partition size ({size})", "leave it out")
    if case.quantized_weights and not way.zero_plus:
        return Broken(f"{_label(case)} has no quantized_weights", "leave it out")
    return None


@constraint("program-model", source=SOURCE, ours=False)
def builds(case: Case) -> Broken | None:
    """A kind of model that the program does not build."""
    way, kind = _way(case), case.shape and case.shape.model_type
    if way is None or kind is None or not way.kinds or kind in way.kinds:
        return None
    return Broken(
        f"{_label(case)} does not build models of type {kind}",
        f"it builds {_listed(way.kinds)}; use a program on transformers, such as --for trl",
    )
