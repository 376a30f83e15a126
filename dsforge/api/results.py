"""What the public functions answer: live values, and the document that a command prints.

`document` of a result is a frozen pydantic model: `document.model_dump(mode="json")` is what the
command prints with `--json`, and its JSON schema is published in `schemas/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsforge.api.documents import DiagnoseDocument, GenDocument, LintDocument
    from dsforge.artifacts import Artifact, Written
    from dsforge.diagnose import Cause
    from dsforge.document import EstimateDocument, InverseDocument, PlanDocument
    from dsforge.exact.fullest import ExactMemory
    from dsforge.findings import Finding
    from dsforge.plan import Plan, Request, Search
    from dsforge.planner.alternatives import Alternative
    from dsforge.planner.flips import Flip
    from dsforge.planner.front import FrontPoint
    from dsforge.planner.inverse import Answer
    from dsforge.planner.remedies import Remedy
    from dsforge.rehearse.report import RehearsalDocument
    from dsforge.rehearse.timeline import Timeline

MOST_BARS = 8  # alternatives in the charts of terms


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The ranking of all strategies for a job.

    Examples:
        >>> import dsforge
        >>> result = dsforge.plan("gpt2", "v100-32gb")
        >>> result.best == result.plans[0], result.best.choice.fits
        (True, True)
        >>> result.document.plans[0].fits
        True

    """

    request: Request
    search: Search
    alternatives: tuple[Alternative, ...]
    front: tuple[FrontPoint, ...] | None
    flips: tuple[Flip, ...] | None
    top: int

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that fit, the choice first."""
        return self.search.plans

    @property
    def best(self) -> Plan:
        """The plan that is chosen, which `gen` takes."""
        return self.search.plans[0]

    @property
    def document(self) -> PlanDocument:
        """The ranking of the best `top` plans, as `dsforge plan --json` prints it."""
        from dsforge.document import plan_document

        return plan_document(
            self.search, self.top, others=self.alternatives, front=self.front, flips=self.flips
        )

    def front_plans(self) -> tuple[Plan, ...]:
        """The plan of each point of `front`, on its part of the cluster; none without `front`."""
        from dsforge.planner.front import plan_of

        return tuple(plan_of(point, self.best, self.request) for point in self.front or ())

    def charts(self) -> dict[str, str]:
        """SVG charts by file name: memory and time by term; with `front`, that and the scaling."""
        from dsforge.explain.plots import Bars, front_plot, memory_plot, scaling_plot, time_plot
        from dsforge.planner import price

        plan = self.best
        rows = [Bars(plan.strategy.label(), plan.choice)]
        for other in self.alternatives[:MOST_BARS]:
            priced = price(plan.model, plan.cluster, plan.workload, other.strategy)
            rows.append(Bars(other.label, priced))
        found = {
            "memory.svg": memory_plot(plan, tuple(rows)),
            "time.svg": time_plot(plan, tuple(rows)),
        }
        if self.front:
            found["front.svg"] = front_plot(plan, self.front)
            found["scaling.svg"] = scaling_plot(plan, self.front)
        return found


@dataclass(frozen=True, slots=True)
class EstimateResult:
    """The predicted memory and time of one strategy, and what would make it fit.

    Examples:
        >>> import dsforge
        >>> result = dsforge.estimate("llama-2-7b", "v100-32gb", strategy={"zero_stage": 1})
        >>> result.fits
        False
        >>> len(result.remedies) > 0
        True

    """

    plan: Plan
    remedies: tuple[Remedy, ...]
    exact: ExactMemory | None

    @property
    def fits(self) -> bool:
        """Whether device, RAM and disk suffice."""
        return self.plan.choice.fits

    @property
    def document(self) -> EstimateDocument:
        """The estimate as `dsforge estimate --json` prints it."""
        from dsforge.document import estimate_document

        return estimate_document(self.plan, self.remedies, exact=self.exact)


@dataclass(frozen=True, slots=True)
class FindResult:
    """The answer to an inverse question, and the plan at its value.

    Examples:
        >>> import dsforge
        >>> result = dsforge.find("micro-batch", "gpt2", "v100-32gb")
        >>> result.answer.question, result.plan.choice.fits
        ('micro-batch', True)

    """

    answer: Answer
    plan: Plan

    @property
    def document(self) -> InverseDocument:
        """The answer as `dsforge estimate --find --json` prints it."""
        from dsforge.document import InverseDocument, estimate_document

        priced = estimate_document(self.plan)
        return InverseDocument.model_construct(answer=self.answer, estimate=priced)


@dataclass(frozen=True, slots=True)
class GenResult:
    """The plan that was chosen and the run folder that was written.

    Examples:
        >>> import dsforge, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = dsforge.gen("gpt2", "v100-32gb", out=f"{folder}/run")
        >>> "deepspeed/ds_config.json" in result.written.created
        True

    """

    out: Path
    plan: Plan
    artifacts: tuple[Artifact, ...]
    written: Written

    @property
    def lost(self) -> dict[str, tuple[str, ...]]:
        """By target what of the plan its files cannot express."""
        from dsforge.targets import lost_in, names_in

        return {name: lost_in(self.plan, name) for name in names_in(a.path for a in self.artifacts)}

    @property
    def document(self) -> GenDocument:
        """The plan and the files as `dsforge gen --json` prints them."""
        from dsforge.api.documents import GenDocument

        return GenDocument.model_construct(
            out=str(self.out),
            created=self.written.created,
            updated=self.written.updated,
            unchanged=self.written.unchanged,
            removed=self.written.removed,
            merged=self.written.merged,
            plan=self.plan,
        )


@dataclass(frozen=True, slots=True)
class LintResult:
    """What is wrong with the files that were checked.

    Examples:
        >>> import dsforge, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     config = Path(folder, "ds_config.json")
        ...     _ = config.write_text('{"zero_optimization": {"stage": 5}}')
        ...     result = dsforge.lint(config)
        >>> result.has_errors, result.files
        (True, 1)

    """

    findings: tuple[Finding, ...]
    files: int
    notes: tuple[str, ...]

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error: the run would fail or train wrongly."""
        from dsforge.findings import has_errors

        return has_errors(self.findings)

    @property
    def document(self) -> LintDocument:
        """The findings as `dsforge lint --format json` prints them."""
        from dsforge.api.documents import LintDocument
        from dsforge.findings.writers import as_json
        from dsforge.lint.check import BY_ID

        return LintDocument.model_validate_json(as_json(self.findings, BY_ID))


@dataclass(frozen=True, slots=True)
class DiagnoseResult:
    """The causes that the logs of a run show.

    Examples:
        >>> import dsforge
        >>> result = dsforge.diagnose(text="torch.OutOfMemoryError: CUDA out of memory.")
        >>> len(result.causes)
        1

    """

    causes: tuple[Cause, ...]

    @property
    def document(self) -> DiagnoseDocument:
        """The causes as `dsforge diagnose --json` prints them."""
        from dsforge.api.documents import DiagnoseDocument
        from dsforge.diagnose.report import document

        return DiagnoseDocument.model_validate(document(self.causes))


@dataclass(frozen=True, slots=True)
class RehearseResult:
    """The memory that the real engine held as one rank of the job.

    Examples:
        >>> import dsforge
        >>> dsforge.RehearseResult.__dataclass_fields__.keys() >= {"document", "timeline"}
        True

    """

    document: RehearsalDocument
    timeline: Timeline
