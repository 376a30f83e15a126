"""Plans that tests write for trainers: each program on each of its engines, by each method."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import dsforge
from dsforge.plan import Plan
from dsforge.programs import PROGRAMS

CLUSTER = {"gpu": "h100-80gb", "nodes": 2, "gpus_per_node": 8, "inter_node": "ib-ndr"}
WORK = {"sequence_length": 4096, "global_batch_size": 64, "tokens": "100m"}


class TargetCase(NamedTuple):
    """A plan of a program, by what is fixed."""

    program: str
    fixed: tuple[tuple[str, Any], ...]
    method: str = "full"
    model: str = "llama-3.1-8b"

    @property
    def id(self) -> str:
        """Its name in the output of pytest."""
        words = [f"{key}={value}" for key, value in self.fixed]
        return "-".join((self.program, self.method, *words))

    @property
    def strategy(self) -> dict[str, Any]:
        """What is fixed."""
        return {"program": self.program, **dict(self.fixed)}


def _engines() -> list[TargetCase]:
    """Each program on each engine by each method."""
    return [
        TargetCase(program.name, _engine(way.execution.trainer), method)
        for program in PROGRAMS
        if not program.is_own
        for way in program.ways
        for method in way.methods
    ]


def _engine(name: str) -> tuple[tuple[str, Any], ...]:
    return (("back_end", name),) if name == "megatron" else (("trainer", name),)


SPLIT: list[TargetCase] = [
    TargetCase("accelerate-fsdp", (("tensor_parallel_size", 2), ("context_parallel_size", 2))),
    TargetCase("axolotl", (("trainer", "fsdp"), ("tensor_parallel_size", 2))),
    TargetCase("lightning", (("trainer", "fsdp"), ("tensor_parallel_size", 4))),
    TargetCase("torchtitan", (("tensor_parallel_size", 2), ("pipeline_parallel_size", 2))),
    TargetCase("torchtitan", (("context_parallel_size", 2), ("recompute", "full"))),
    TargetCase("torchtune", (("tensor_parallel_size", 2),)),
    TargetCase("transformers", (("zero_stage", 3), ("offload_optimizer", "cpu"))),
    TargetCase("trl", (("zero_stage", 3), ("recompute", "full"))),
    TargetCase("megatron-deepspeed", (("pipeline_parallel_size", 2), ("zero_stage", 1))),
    TargetCase("gpt-neox", (("pipeline_parallel_size", 2), ("tensor_parallel_size", 2))),
    TargetCase("megatron-bridge", (("pipeline_parallel_size", 2), ("recompute", "full"))),
    TargetCase("colossalai", (("zero_stage", 3),)),
    TargetCase("colossalai", (("zero_stage", 1), ("tensor_parallel_size", 1))),
    TargetCase("colossalai", (("tensor_parallel_size", 2), ("pipeline_parallel_size", 2))),
    TargetCase("ms-swift", (("back_end", "megatron"), ("tensor_parallel_size", 2))),
    TargetCase("ms-swift", (("trainer", "deepspeed"), ("context_parallel_size", 2))),
]
CASES = [*_engines(), *SPLIT]


@cache
def plan_of(case: TargetCase) -> Plan:
    """The plan of a case."""
    work = {**WORK, "method": case.method}
    return dsforge.estimate(case.model, CLUSTER, work, strategy=case.strategy).plan


def written(case: TargetCase, folder: Path) -> Path:
    """The folder of the program's files of a case."""
    dsforge.gen(plan_of(case), out=folder)
    return folder / "for" / case.program


def cases_of(*programs: str) -> list[TargetCase]:
    """The cases of some programs."""
    return [case for case in CASES if case.program in programs]
