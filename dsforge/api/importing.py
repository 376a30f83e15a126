"""Configs and scripts of other programs: what they say, what is wrong, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from dsforge.api.documents import LintFinding
from dsforge.api.inputs import ClusterInput, Inputs, ModelInput, PathInput, asked_of
from dsforge.errors import DoesNotFitError, DsforgeError, LayoutError
from dsforge.importing.read import ImportedSetup, read_files
from dsforge.plan import Plan, Request
from dsforge.reading.source import path_of
from dsforge.specs import FROZEN
from dsforge.training_setup import TrainingSetup, setup_of

if TYPE_CHECKING:
    from dsforge.findings import Finding
    from dsforge.reading.request import Asked

NOT_COMPARED = ("model", "engine", "lora_rank", "lora_alpha", "learning_rate")


class Change(BaseModel):
    """One setting that another plan has otherwise."""

    model_config = FROZEN

    field: str = Field(description="Name in the schema of the setup.")
    before: str = Field(description="Its value in the files.")
    after: str = Field(description="Its value in the other plan.")


class ImportDocument(BaseModel):
    """What `dsforge import --json` prints."""

    model_config = FROZEN

    imported: ImportedSetup = Field(description="What the files say, with the place of each value.")
    findings: tuple[LintFinding, ...] = Field(description="Findings of lint on the files.")
    plan: Plan | None = Field(
        description="The setup as a priced plan; none where model or cluster is not known."
    )
    better: Plan | None = Field(
        description="The plan that `dsforge plan` chooses for the same job; none where that is it."
    )
    changes: tuple[Change, ...] = Field(description="Settings in which the better plan differs.")
    not_priced: str = Field(description="Why there is no plan; empty: there is one.")


@dataclass(frozen=True, slots=True)
class ImportResult:
    r"""What files of other programs say, and what that costs.

    Examples:
        >>> import dsforge, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "qlora.yml")
        ...     _ = file.write_text("base_model: gpt2\nadapter: qlora\nmicro_batch_size: 2\n")
        ...     result = dsforge.import_config(file)
        >>> result.setup.adapter, result.setup.micro_batch_size
        ('qlora', 2)

    """

    imported: ImportedSetup
    findings: tuple[Finding, ...]
    plan: Plan | None
    better: Plan | None
    not_priced: str

    @property
    def setup(self) -> TrainingSetup:
        """The setup of the files."""
        return self.imported.setup

    @property
    def changes(self) -> tuple[Change, ...]:
        """Settings in which the better plan differs from that of the files."""
        if self.plan is None or self.better is None:
            return ()
        before, after = setup_of(self.plan).model_dump(), setup_of(self.better).model_dump()
        return tuple(
            Change(field=name, before=str(before[name]), after=str(after[name]))
            for name in before
            if before[name] != after[name] and name not in NOT_COMPARED
        )

    @property
    def document(self) -> ImportDocument:
        """What `dsforge import --json` prints."""
        from dsforge.lint.check import BY_ID

        return ImportDocument(
            imported=self.imported,
            findings=tuple(
                LintFinding(
                    **{name: getattr(finding, name) for name in _OF_FINDING},
                    why=BY_ID[finding.rule].why,
                    evidence=BY_ID[finding.rule].evidence,
                )
                for finding in self.findings
            ),
            plan=self.plan,
            better=self.better,
            changes=self.changes,
            not_priced=self.not_priced,
        )


_OF_FINDING = ("rule", "severity", "file", "line", "column", "path", "message", "fix")


def import_config(
    files: PathInput | Sequence[PathInput],
    *,
    model: ModelInput | None = None,
    cluster: ClusterInput | None = None,
    program: str | None = None,
) -> ImportResult:
    r"""What configs and scripts of other programs say: setup, findings, price and a better plan.

    Args:
        files: Paths of one run's files: YAML, JSON, TOML, shell, Slurm or Python. What they refer
            to is read where it is given, too, or lies in their folders. Nothing is run.
        model: As for `load_model`; the one that the files name without it.
        cluster: As for `load_cluster`; nodes and devices are those of the files where it has none.
        program: Whose files they are, where their keys do not tell: `transformers`, `axolotl`.

    Returns:
        The setup with the place of each value, what is lost, findings of lint, and the plan where
        model and cluster are known.

    Raises:
        SpecError: A file cannot be read, or is of no known program.

    Examples:
        >>> import dsforge, tempfile
        >>> from pathlib import Path
        >>> text = "#!/bin/bash\ntorchrun --nproc_per_node 8 train.py \\\n"
        >>> text += "  --per_device_train_batch_size 2 --output_dir out --bf16\n"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     script = Path(folder, "run.sh")
        ...     _ = script.write_text(text)
        ...     result = dsforge.import_config(script, model="gpt2", cluster="a100-80gb")
        >>> result.setup.global_batch_size, result.plan.choice.fits
        (16, True)

    """
    paths = _paths(files)
    return explained(paths, asked_of(Inputs(model, cluster))._replace(by_name=True), program)


def explained(paths: Sequence[Path], asked: Asked, program: str | None = None) -> ImportResult:
    """What files say, priced under what else was asked for. Raises SpecError."""
    from dsforge.api.checking import lint
    from dsforge.importing.request import imported_request

    imported = read_files(paths, program)
    findings = lint(tuple(paths), ignore=("kind-unknown",)).findings
    try:
        request = imported_request(asked, imported)
        made, better = _priced(request)
    except (DsforgeError, LayoutError) as error:
        problems = getattr(error, "problems", ())
        why = "; ".join(map(str, problems)) or error.message
        return ImportResult(imported, findings, None, None, why)
    return ImportResult(imported, findings, made, better, "")


def _priced(request: Request) -> tuple[Plan, Plan | None]:
    """The setup as a plan, and the one that is chosen where only the engine is fixed."""
    from dsforge.planner import appraise, search
    from dsforge.strategy import Constraints

    made = appraise(request)
    free = Constraints(back_end=request.constraints.back_end)  # no conversion of the model
    try:
        best = search(request.model_copy(update={"constraints": free})).plans[0]
    except (DoesNotFitError, LayoutError):
        return made, None
    faster = best.choice.time.step_s.likely < made.choice.time.step_s.likely
    return made, best if faster or not made.choice.fits else None


def _paths(files: PathInput | Sequence[PathInput]) -> tuple[Path, ...]:
    """One path or several. Raises SpecError for what is none."""
    if isinstance(files, Sequence) and not isinstance(files, str | bytes):
        return tuple(path_of(path, "path") for path in files)
    return (path_of(files, "path"),)
