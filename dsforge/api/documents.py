"""Documents that commands print with `--json` and no other room has a type for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.plan import Plan
from dsforge.specs import FROZEN


class GenDocument(BaseModel):
    """What `dsforge gen --json` prints: the plan and the files, as paths in the run folder."""

    model_config = FROZEN

    out: str = Field(description="Run folder that was written.")
    created: tuple[str, ...] = Field(description="Files that did not exist before.")
    updated: tuple[str, ...] = Field(description="Files whose content changed.")
    unchanged: tuple[str, ...] = Field(description="Files that already had this content.")
    removed: tuple[str, ...] = Field(description="Files of an earlier plan that were removed.")
    merged: tuple[str, ...] = Field(
        description="Files that keep the edits of a person, merged with their new content."
    )
    plan: Plan = Field(description="The plan that was rendered, as in `plan.json`.")


class LintFinding(BaseModel):
    """One place in one file that breaks a rule."""

    model_config = FROZEN

    rule: str = Field(description="Id of the rule, which `--ignore` takes.")
    severity: str = Field(description="error, warning or info.")
    file: str = Field(description="Path of the file.")
    line: int = Field(description="Line in the file, from 1.")
    column: int = Field(description="Column in the line, from 1.")
    path: str = Field(description="Dotted path of the key; empty where it has none.")
    message: str = Field(description="What is wrong with which value.")
    fix: str = Field(description="What to do.")
    why: str = Field(description="Why the rule exists.")
    evidence: str = Field(description="Evidence for the rule: source code or measurement.")


class LintDocument(BaseModel):
    """What `dsforge lint --format json` prints."""

    model_config = FROZEN

    findings: tuple[LintFinding, ...] = Field(
        description="Findings by file and line; empty: no problems."
    )


class CauseEvidence(BaseModel):
    """A line of a log that proves a cause."""

    model_config = FROZEN

    file: str = Field(description="Log file of the line.")
    line: int = Field(description="Line in the log, from 1.")
    text: str = Field(description="Text of the line.")


class CauseDocument(BaseModel):
    """A cause of a failed run."""

    model_config = FROZEN

    rule: str = Field(description="Id of the rule that recognised it.")
    kind: Literal["cause", "hint"] = Field(
        description="`hint`: nothing failed, this is noticeable."
    )
    confidence: float = Field(description="How sure the rule is, 0 to 1.")
    message: str = Field(description="What went wrong, with its figures.")
    why: str = Field(description="Explanation of the cause.")
    evidence: tuple[CauseEvidence, ...] = Field(
        description="Lines of the logs that are the evidence."
    )
    fix: str = Field(description="What to do; may be a patch.")


class DiagnoseDocument(BaseModel):
    """What `dsforge diagnose --json` prints."""

    model_config = FROZEN

    causes: tuple[CauseDocument, ...] = Field(
        description="Causes, likeliest first; empty: none found."
    )
