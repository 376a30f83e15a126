"""The program that trains: asking for its files fixes what the planner may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsforge.errors import Problem, SpecError, quoted
from dsforge.execution import BackEnd
from dsforge.plan import Plan, Reason, Request
from dsforge.programs import BY_NAME, OWN, is_own

if TYPE_CHECKING:
    from dsforge.targets import Target

MOVED = "moved-lost"  # rule of the reasons that name what a move leaves behind
# What is fixed of a strategy, by the constraint of programs that it can break.
FIXED: dict[str, tuple[str, ...]] = {
    "program-engine": ("back_end", "trainer"),
    "program-zero": ("zero_stage", "hpz_partition_size"),
    "program-parallelism": (
        *("tensor_parallel_size", "pipeline_parallel_size"),
        *("context_parallel_size", "expert_parallel_size"),
    ),
    "program-interleaving": ("virtual_stages",),
    "program-offload": ("offload_optimizer", "offload_parameters"),
    "program-values": ("recompute",),
    "program-zero-plus": ("hpz_partition_size", "quantized_weights", "quantized_gradients"),
}


def check_names(names: tuple[str, ...]) -> None:
    """Raises SpecError for names that are none of targets, nor of plain torch."""
    from dsforge.targets import BY_NAME as TARGETS

    known = ", ".join((*OWN, *TARGETS))
    problems = tuple(
        Problem("target-name", f"target (={quoted(name)}) must be one of {known}")
        for name in names
        if name not in (*OWN, *TARGETS)
    )
    if problems:
        raise SpecError(problems)


def for_programs(request: Request, targets: tuple[str, ...]) -> Request:
    """The request with the program among some targets, on an engine that their launchers start.

    Raises SpecError where two programs are meant, and where a launcher cannot start what is fixed.
    """
    asked, back_end = request.constraints.program, request.constraints.back_end
    named = tuple(name for name in targets if name in BY_NAME)
    meant = tuple(dict.fromkeys((*named, *((asked,) if asked else ()))))
    if len(meant) > 1:
        message = f"a plan is for one trainer, not {' and '.join(meant)}"
        raise SpecError((Problem("target-engine", message, "call gen once for each of them"),))
    program = meant[0] if meant else None
    _check_launchers(program, back_end, targets)
    if back_end is None and program is None and _starters(targets):
        back_end = "deepspeed"
    if (program, back_end) == (asked, request.constraints.back_end):
        return request
    fixed = request.constraints.model_copy(update={"program": program, "back_end": back_end})
    return request.model_copy(update={"constraints": fixed})


def check_program(plan: Plan, targets: tuple[str, ...]) -> None:
    """Raises SpecError where some targets do not start or express a plan."""
    own = plan.strategy.runs_as.program
    for name in targets:
        if name in BY_NAME and name != own:
            made = "dsforge's own scripts" if own is None else own
            message = f"the plan was made for {made}, and cannot be written for {name}"
            hint = f'plan again with strategy={{"program": "{name}"}}'
            raise SpecError((Problem("target-engine", message, hint),))
    _check_launchers(own, plan.strategy.back_end, targets)


def _starters(targets: tuple[str, ...]) -> tuple[Target, ...]:
    """The launchers among some targets that start ranks of `dsforge train`."""
    from dsforge.targets import BY_NAME as TARGETS

    found = (TARGETS[name] for name in targets if name in TARGETS)
    return tuple(target for target in found if target.starts != "none")


def _check_launchers(
    program: str | None, back_end: BackEnd | None, targets: tuple[str, ...]
) -> None:
    """Raises SpecError for launchers that cannot start the ranks of what trains."""
    found = (_not_started(target, program, back_end) for target in _starters(targets))
    problems = tuple(problem for problem in found if problem is not None)
    if problems:
        raise SpecError(problems)


def _not_started(target: Target, program: str | None, back_end: BackEnd | None) -> Problem | None:
    """Why a launcher cannot start what trains, and the way out; none where it can."""
    from dsforge.targets import TARGETS

    name = target.name
    if not is_own(program):
        why = f"starts `dsforge train`, and cannot start {program}"
        hint = f"leave out {name} and start {program} as the files in for/{program}/ say, on the "
        hint += f"hosts that your scheduler gives you; or leave out {program}"
    elif program is None and back_end == "megatron":
        why = "starts `dsforge train`, and cannot start Megatron-LM"
        hint = "use megatron/pretrain.sh or launch/slurm.sbatch of the run folder, or plan for "
        hint += "DeepSpeed or torch"
    elif program is not None and target.starts == "deepspeed":
        why = f"starts ranks through DeepSpeed's launcher, and the plan for {program} needs none"
        able = ", ".join(each.name for each in TARGETS if each.starts == "any engine")
        hint = "use launch/torchrun.sh or launch/slurm.sbatch of the run folder, or one of "
        hint += able
    else:
        return None
    return Problem("target-launcher", f"{name} {why}", hint)


def without(request: Request, problems: tuple[Problem, ...]) -> Request | None:
    """The request with what a program cannot do left open, and each of these as a reason.

    None where nothing that is fixed of the strategy breaks a constraint of the program.
    """
    broken = [problem for problem in problems if problem.rule in FIXED]
    fields = {field for problem in broken for field in FIXED[problem.rule]}
    fixed = {f for f in fields if getattr(request.constraints, f) is not None}
    if not fixed:
        return None
    opened = request.constraints.model_copy(update=dict.fromkeys(fixed))
    lost = tuple(
        Reason(rule=MOVED, message=f"not moved, and chosen here: {problem.message}")
        for problem in broken
    )
    return request.model_copy(update={"constraints": opened, "reasons": (*request.reasons, *lost)})
