"""What a target is: another program that a plan is written for, beside dsforge's own scripts.

A target adds files to a run folder, in `for/NAME/`; the ds_config, the job and the hostfile of the
folder stay the one place of what they say. What a program cannot express is said, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from dsforge.plan import Plan
from dsforge.render.engine import Context
from dsforge.training_setup import TrainingSetup

Kind = Literal["launcher", "trainer"]
# Launchers: which runs of `dsforge train` they start; those of none start scripts of your own.
Starts = Literal["none", "any engine", "deepspeed"]
Proof = Literal["", "published schema", "parsed by its own code", "launches", "trains"]
FOLDER = "for"  # in the run folder, and below templates/


class TargetFile(NamedTuple):
    """One file of a target: its name in `for/NAME/`, as a rule that of its template without .j2."""

    name: str
    context: Context
    executable: bool = False
    template: str = ""  # in the folder of the target, without .j2; empty: as the file


class Unsaid(NamedTuple):
    """Fields of a setup for which the files of a program have no place at all."""

    fields: tuple[str, ...] = ()  # names in TrainingSetup
    reason: str = ""  # who says them instead

    @property
    def sentences(self) -> tuple[str, ...]:
        """One line for a person; none where the files say everything."""
        return (f"{', '.join(self.fields)}: {self.reason}",) if self.fields else ()


class Target(NamedTuple):
    """A program that a plan can be written for."""

    name: str  # of `gen --for`, and of its folders
    label: str  # as its project writes it
    kind: Kind  # starts ranks of the plan's engine, or trains by itself
    summary: str  # what the files are, in one line
    files: Callable[[Plan], tuple[TargetFile, ...]]
    lost: Callable[[TrainingSetup], tuple[str, ...]]  # what of a setup it cannot express
    unsaid: Unsaid = Unsaid()  # what of every setup its files leave to others
    starts: Starts = "none"  # ranks of `dsforge train`: on any engine, or on DeepSpeed alone
    engine: str | None = None  # of `engines.ENGINES`, by which a run there is priced; none: plan's
    source: str = ""  # the place in the program's source that reads the files
    proof: Proof = ""  # the most that a test has shown of the files
    proved_by: str = ""  # the test, and what it does not show
