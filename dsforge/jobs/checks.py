"""What is checked before a start without asking any host: files, hostfile, earlier runs."""

from __future__ import annotations

from pathlib import Path

from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.jobs.progress import output_of
from dsforge.preflight.job_files import file_findings
from dsforge.reading.stored import read_plan
from dsforge.train.checkpoints.note import checkpoints, chosen_checkpoint, step_of


def check_files(run: Path) -> None:
    """Raise SpecError with every error that lint finds in the files of a run folder."""
    if not run.is_dir():
        raise DsforgeError(f"{run} is not a folder", "give a run folder of `dsforge gen`")
    if (run / ".dsforge-commit").exists():
        raise DsforgeError(f"the last dsforge gen in {run} was interrupted", "run it again")
    if (run / "plan.json").is_file():
        read_plan(run / "plan.json")  # raises where it cannot be read
    problems = tuple(
        Problem(finding.rule, finding.message, finding.fix) for finding in file_findings(run, None)
    )
    if problems:
        raise SpecError(problems, f"{run} would not start")


def check_beginning(run: Path, *, resume: bool) -> str:
    """Where the run begins, in words. Raises DsforgeError where that is not what was asked for."""
    folder = output_of(run) / "checkpoints"
    if not resume:
        if checkpoints(folder):
            message = f"{run} has checkpoints of an earlier start"
            raise DsforgeError(message, "use --resume, or remove its output folder")
        return "from the first step"
    newest = chosen_checkpoint("auto", folder)
    if newest is None:
        raise DsforgeError(f"{run} has no checkpoint to resume from", "leave out --resume")
    return f"from the checkpoint of step {step_of(newest)}"
