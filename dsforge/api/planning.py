"""Plans of a job, the best first, and the run folder of one."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING

from dsforge.api.folder import rendered, written_folder
from dsforge.api.inputs import (
    ClusterInput,
    Inputs,
    JobInput,
    PathInput,
    StrategyInput,
    WorkloadInput,
    request_of,
)
from dsforge.api.programs import check_names, check_program, for_programs
from dsforge.api.results import GenResult, PlanResult
from dsforge.errors import Problem, SpecError, quoted
from dsforge.plan import Plan, Request
from dsforge.reading.refusals import refusal
from dsforge.reading.source import path_of

if TYPE_CHECKING:
    from dsforge.planner.explore import Explorer
    from dsforge.planner.flips import Flip
    from dsforge.planner.objectives import Objective

TOP = 10  # plans of a ranking that are shown
OF_OTHERS = Problem(
    "software-files",
    "software=others is priced and not written: dsforge writes files for its own scripts",
    "use `--reference precomputed` or LoRA with dpo; leave out `software`, other preferences and "
    "models with a vision tower, or use `dsforge estimate`",
)


def plan(
    model: JobInput | None,
    cluster: ClusterInput | None = None,
    workload: WorkloadInput | None = None,
    *,
    strategy: StrategyInput | None = None,
    objective: Objective | None = None,
    deadline_days: float | None = None,
    budget: float | None = None,
    prefer: float | None = None,
    risk: bool = False,
    top: int = TOP,
    front: bool = False,
    flips: bool = False,
) -> PlanResult:
    """Every strategy for a job, ranked, with reasons.

    Args:
        model: As for `load_model`; or a request of `load_request` instead of all inputs.
        cluster: As for `load_cluster`.
        workload: As for `load_workload`.
        strategy: What is fixed, such as `{"zero_stage": 3}`; the rest is chosen.
        objective: `fastest`, `cheapest` or `fewest-gpus`: on a part of the cluster, too.
        deadline_days: Days that the run may take.
        budget: Price that the run may have, at the cluster's `gpu_hour_price`.
        prefer: Easier plans count up to this factor of the fastest step; 1: never.
        risk: Plans that likely fit count, not only those that surely do.
        top: Plans in the document.
        front: Also the plans that no other beats in time, GPUs, price and memory.
        flips: Also the changes after which another kind of plan is chosen: up to thirty searches.

    Returns:
        The ranking; `best` is the choice.

    Raises:
        SpecError: The input is wrong.
        LayoutError: No combination is legal.
        DoesNotFitError: Nothing fits; `estimate` prices what comes nearest.

    Examples:
        >>> import dsforge
        >>> result = dsforge.plan(
        ...     "llama-2-7b", {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8}
        ... )
        >>> result.best.strategy.layout.world_size
        16
        >>> result.best.choice.time.step_s.likely > 0
        True

    """
    from dsforge.planner import search
    from dsforge.planner.alternatives import alternatives
    from dsforge.planner.explore import Explorer
    from dsforge.planner.front import front as front_of
    from dsforge.planner.parts import parts, settled
    from dsforge.planner.pieces import fitting

    _check_numbers(top=top)
    asked = request_of(Inputs(model, cluster, workload, strategy))
    started = perf_counter()
    wished = _aimed_request(asked, objective, deadline_days, budget, prefer=prefer, risk=risk)
    explorer = settled(Explorer(wished))
    request = explorer.request
    found = search(request, explorer=explorer, started=started)
    return PlanResult(
        request=request,
        search=found,
        alternatives=alternatives(request, found.plans[0].choice, fitting(explorer)),
        front=front_of(tuple(parts(request, explorer))) if front else None,
        flips=_flips(request, explorer) if flips else None,
        top=top,
    )


def gen(
    model: JobInput | Plan | None,
    cluster: ClusterInput | None = None,
    workload: WorkloadInput | None = None,
    *,
    out: PathInput,
    strategy: StrategyInput | None = None,
    templates: PathInput | None = None,
    targets: tuple[str, ...] = (),
    force: bool = False,
    objective: Objective | None = None,
    deadline_days: float | None = None,
    budget: float | None = None,
    prefer: float | None = None,
    risk: bool = False,
) -> GenResult:
    """The best plan for a job and its run folder: configs, launch scripts, environment, PLAN.md.

    Args:
        model: As for `load_model`; or a request of `load_request`, or a plan of `plan`, instead of
            all inputs.
        cluster: As for `load_cluster`.
        workload: As for `load_workload`.
        out: Run folder to write: all of its files, or none.
        strategy: What is fixed, such as `{"zero_stage": 3}`; the rest is chosen.
        templates: Folder that is searched before our templates.
        targets: Other programs to write files for, such as `accelerate`, below `for/`.
        force: Overwrite files that a person has edited; without it, edits are merged.
        objective: As for `plan`.
        deadline_days: As for `plan`.
        budget: As for `plan`.
        prefer: As for `plan`.
        risk: As for `plan`.

    Returns:
        The plan, and what was written.

    Raises:
        SpecError: The input is wrong; the first rows of the data, where they are here, count as
            input.
        LayoutError: No combination is legal.
        DoesNotFitError: Nothing fits.
        EditedError: A file was edited where its new content differs, too; nothing is changed.
        RenderError: A template of `templates` is wrong.

    Examples:
        >>> import dsforge, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = dsforge.gen(
        ...         "llama-2-7b", {"gpu": "a100-80gb", "gpus_per_node": 8}, out=f"{folder}/run"
        ...     )
        ...     (result.out / "PLAN.md").exists()
        True

    """
    from dsforge.api.training_data import check_rows

    folder = path_of(out, "out")
    check_names(targets)
    if isinstance(model, Plan):
        check_program(model, targets)
        beside = (cluster, workload, strategy, objective, deadline_days, budget, prefer)
        if risk or any(value is not None for value in beside):
            raise refusal(
                "inputs-clash", "", "a Plan cannot be combined with other inputs of the job"
            )
        job: Request | Plan = model
    else:
        asked = for_programs(request_of(Inputs(model, cluster, workload, strategy)), targets)
        if asked.constraints.software == "others":
            raise SpecError((OF_OTHERS,))
        job = _aimed_request(asked, objective, deadline_days, budget, prefer=prefer, risk=risk)
    made, artifacts = rendered(job, folder, templates, targets)
    check_rows(made, folder)
    written = written_folder(artifacts, folder, templates, force=force)
    return GenResult(folder, made, artifacts, written)


def pack(
    request: Request,
    *,
    out: str = "run",
    objective: Objective | None = None,
    deadline_days: float | None = None,
    budget: float | None = None,
    prefer: float | None = None,
    risk: bool = False,
) -> bytes:
    """The run folder that `gen` writes, as a zip file: for a browser, which has no disk.

    Args:
        request: A request of `load_request`.
        out: Name of the run folder in the archive.
        objective: As for `plan`.
        deadline_days: As for `plan`.
        budget: As for `plan`.
        prefer: As for `plan`.
        risk: As for `plan`.

    Returns:
        The bytes of the zip file; the same for the same request.

    Raises:
        DoesNotFitError: Nothing fits.

    """
    from dsforge.artifacts.packed import packed

    job = _aimed_request(request, objective, deadline_days, budget, prefer=prefer, risk=risk)
    return packed(rendered(job, path_of(out, "out"), None)[1], out)


def _aimed_request(
    request: Request,
    objective: Objective | None,
    deadline_days: float | None,
    budget: float | None,
    *,
    prefer: float | None,
    risk: bool,
) -> Request:
    """The request on the part of the cluster that fulfils a wish. Raises as `aimed` does."""
    from dsforge.planner.objectives import OBJECTIVES, Aim, aimed

    if objective is not None and objective not in OBJECTIVES:
        message = f"`objective` (={quoted(objective)}) must be one of {', '.join(OBJECTIVES)}"
        raise SpecError((Problem("value-choice", message),))
    _check_numbers(deadline_days=deadline_days, budget=budget, prefer=prefer)
    asked: dict[str, object] = {"risk": risk or request.risk}
    if prefer is not None:
        if prefer < 1:
            raise SpecError((Problem("value-range", f"`prefer` (={prefer:g}) must be at least 1"),))
        asked["prefer"] = prefer
    return aimed(request.model_copy(update=asked), Aim(objective, deadline_days, budget))


def _check_numbers(**values: object) -> None:
    """Raise SpecError for what is no finite number above 0; None stands for no value."""
    problems = tuple(
        Problem("value-range", f"`{name}` (={quoted(value)}) must be a finite number above 0")
        for name, value in values.items()
        if value is not None and not _is_above_0(value)
    )
    if problems:
        raise SpecError(problems)


def _is_above_0(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf  # type: ignore[operator]  # it is a number


def _flips(request: Request, explorer: Explorer) -> tuple[Flip, ...]:
    """What would flip the choice: a search for each change, up to thirty."""
    from dsforge import catalog
    from dsforge.planner.flips import Known, flips
    from dsforge.planner.pieces import fitting
    from dsforge.planner.preference import choice

    known = Known(
        tuple(catalog.link(name) for name in catalog.link_names()),
        tuple(catalog.gpu(name) for name in catalog.gpu_names()),
    )
    return flips(request, choice(request, fitting(explorer)), known)
