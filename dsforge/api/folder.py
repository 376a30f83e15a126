"""The run folder of a job: its plan, with paths as they are seen from there, and its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dsforge.api.inputs import load_plan
from dsforge.errors import DsforgeError, EditedError
from dsforge.plan import Plan, Request
from dsforge.reading.refusals import refusal
from dsforge.reading.source import path_of

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.artifacts import Artifact, Written

Job = TypeVar("Job", Request, Plan)


def rendered(
    job: Request | Plan,
    folder: Path,
    templates: PathInput | None,
    targets: tuple[str, ...] = (),
) -> tuple[Plan, tuple[Artifact, ...]]:
    """The plan of a job for a run folder, and the files of that folder; nothing is written."""
    from dsforge.planner import choose

    made = _seen_from(folder, job) if isinstance(job, Plan) else choose(_seen_from(folder, job))
    _check_written(made)
    program = made.strategy.runs_as.program
    own = () if program is None else (program,)
    return made, files_of(made, templates, (*own, *targets))


def files_of(
    plan: Plan, templates: PathInput | None, targets: tuple[str, ...] = ()
) -> tuple[Artifact, ...]:
    """The files of a plan's run folder, its report and those for other programs among them."""
    from dsforge.artifacts import Artifact
    from dsforge.render import render
    from dsforge.report import html_page
    from dsforge.report.plan_sections import plan_report
    from dsforge.report.shown_files import shown_files
    from dsforge.targets import BY_NAME, files_for

    own = render(plan, None if templates is None else path_of(templates, "templates"))
    files = (*own, *files_for(plan, (name for name in targets if name in BY_NAME)))
    page = html_page(plan_report(plan, shown_files((a.path, a.text) for a in files)))
    return (*files, Artifact("report.html", page))


def _seen_from(out: Path, job: Job) -> Job:
    """The job with its paths as the run folder sees them: that is where train.yaml is read."""
    out = Path(os.path.realpath(out))  # `..` leads out of where a link leads, not of the link

    def moved(path: str) -> str:
        return path if Path(path).is_absolute() else os.path.relpath(path, out)

    model, workload = job.model, job.workload
    if model.path is not None:
        model = model.model_copy(update={"path": os.path.relpath(model.path, out)})
    if workload.data is not None:
        data, held_out = workload.data, workload.data.validation
        paths = {"train": moved(data.train), "validation": held_out and moved(held_out)}
        workload = workload.model_copy(update={"data": data.model_copy(update=paths)})
    return job.model_copy(update={"model": model, "workload": workload})


def written_folder(
    artifacts: tuple[Artifact, ...], folder: Path, templates: PathInput | None, *, force: bool
) -> Written:
    """The run folder, written; what a person has edited since is merged. Raises EditedError."""
    from dsforge.artifacts import write_all
    from dsforge.targets import names_in

    try:
        return write_all(artifacts, folder, force=force)
    except EditedError:
        bases = _last_generated(folder, templates, names_in(a.path for a in artifacts))
        return write_all(artifacts, folder, force=force, bases=bases)


def _last_generated(
    folder: Path, templates: PathInput | None, targets: tuple[str, ...]
) -> dict[str, str]:
    """Texts that the plan in a run folder was rendered to; none where it is not readable now."""
    try:
        return {a.path: a.text for a in files_of(load_plan(folder), templates, targets)}
    except DsforgeError:
        return {}


def _check_written(plan: Plan) -> None:
    """Refuse what can be predicted but not written: other trainers, kernels of other packages."""
    how = plan.strategy.runs_as
    if how.program is not None:
        return  # what a program can do is checked by the planner, and `targets` writes it
    if how.trainer != plan.strategy.back_end:
        message = f"files are written for DeepSpeed and Megatron-LM (got trainer={how.trainer})"
        hint = "remove the trainer, name a program on it (`--for`), or use `dsforge estimate`"
        raise refusal("trainer-files", "", message, hint)
    if plan.strategy.back_end == "megatron" and how.gradients == "compute":
        message = "pretrain_gpt.py sums gradients in fp32 (got gradient_type=compute)"
        raise refusal("trainer-files", "", message, "remove it, or use `dsforge estimate`")
    if how.trainer == "deepspeed" and how.kernels == "fused":
        message = "`dsforge train` has no fused kernels (got kernels=fused)"
        raise refusal("trainer-files", "", message, "use kernels=eager, or `dsforge estimate`")
