"""Every constraint of the engines, declared once: an id, a title, its source and one function.

A constraint returns a Problem or None. `broken` returns all problems of a case at once, before any
GPU is rented: the engines find most of them only after every rank is up. The planner asks with all
that it knows (`check`), `train` and `rehearse` with a config and a loaded model, `lint` with what
a file says; whatever is unknown breaks nothing.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from dsforge.constraints import (
    checkpoints,
    deepspeed,
    inputs,
    layers,
    megatron,
    preference,
    programs,
    quantised,
    sizes,
    torch,
    trainer,
    ulysses,
    words,
)
from dsforge.constraints.case import (
    Case,
    Constraint,
    ModelShape,
    case_of,
    case_of_config,
    divisors,
    listed,
    shape_of,
)
from dsforge.constraints.sizes import batch_product, tensor_sizes
from dsforge.constraints.words import Words, lacks, said_words
from dsforge.errors import Problem

if TYPE_CHECKING:
    from dsforge.ds_config import Batch
    from dsforge.specs import ClusterSpec, ModelSpec, Workload
    from dsforge.strategy import Strategy

__all__ = [
    "CONSTRAINTS",
    "Case",
    "Constraint",
    "ModelShape",
    "allows",
    "batch_problem",
    "broken",
    "case_of",
    "case_of_config",
    "check",
    "divisors",
    "lacks",
    "listed",
    "said_words",
    "shape_of",
    "tensor_sizes",
]


def _declared_in(module: ModuleType) -> tuple[Constraint, ...]:
    """The constraints of a module, as they stand in it."""
    return tuple(found for found in vars(module).values() if isinstance(found, Constraint))


CONSTRAINTS: tuple[Constraint, ...] = tuple(
    found
    for module in (
        inputs,
        layers,
        quantised,
        sizes,
        deepspeed,
        checkpoints,
        trainer,
        preference,
        ulysses,
        megatron,
        programs,
        torch,
        words,
    )
    for found in _declared_in(module)
)


def check(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    said: Words = (),
) -> tuple[Problem, ...]:
    """All constraints that a strategy breaks, or what a person said of it; empty: it is legal."""
    return broken(case_of(model, cluster, workload, strategy)._replace(words=said))


def broken(case: Case) -> tuple[Problem, ...]:
    """All constraints that a case is known to break."""
    return tuple(
        Problem(each.id, *found)
        for each in CONSTRAINTS
        if not (case.by_others and each.ours) and (found := each.judge(case)) is not None
    )


def batch_problem(batch: Batch, replicas: int) -> Problem | None:
    """Why so many data-parallel ranks do not make a global batch; none where they do."""
    sizes = Case(
        global_batch_size=batch.total,
        micro_batch_size=batch.micro,
        gradient_accumulation_steps=batch.steps,
        data_parallel_size=replicas,
    )
    return batch_product(sizes)


def allows(case: Case, *constraints: Constraint) -> bool:
    """Whether a case breaks none of some constraints."""
    return all(constraint(case) is None for constraint in constraints)
