"""The documents of `dsforge report`: what is shown, and the data that it was made of."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.bench.report import Report as BenchReport
from dsforge.measurement import Measurement
from dsforge.plan import Plan
from dsforge.report.blocks import Report
from dsforge.report.run_sections import Record
from dsforge.specs import FROZEN


class SourceDocument(BaseModel):
    """The documents of one plan, run or comparison."""

    model_config = FROZEN

    name: str = Field(description="Path that was given, or `plan`.")
    plan: Plan | None = Field(default=None, description="As in `plan.json`.")
    measurement: Measurement | None = Field(
        default=None, description="As in `measurement.json` of the run."
    )
    metrics: tuple[Record, ...] = Field(
        default=(), description="Lines of `metrics.jsonl` that are complete and finite."
    )
    comparison: BenchReport | None = Field(
        default=None, description="As in `report.json` of `dsforge bench`."
    )


class ReportDocument(BaseModel):
    """What `dsforge report --json` prints."""

    model_config = FROZEN

    schema_version: Literal[1] = Field(
        default=1, description="Version of the shape of this document."
    )
    report: Report = Field(description="Sections, tables and files as the page shows them.")
    sources: tuple[SourceDocument, ...] = Field(description="Data of each source.")
