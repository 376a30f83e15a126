"""Words: the table of hosts and checks, the findings below it, and both as a document."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from dsforge.findings import Finding, Rule, worst_first
from dsforge.findings.writers import row
from dsforge.masking import masked_document, masked_value
from dsforge.preflight.case import COLUMNS, Case
from dsforge.preflight.registry import column_of

FOLDER_ROW = "run folder"
CELLS = {"error": "FAIL", "warning": "warn", "info": "ok"}
NOT_SEEN = "-"
LONGEST_VALUE = 60


def table(case: Case, found: tuple[Finding, ...]) -> list[str]:
    """One line for each host, one column for each kind of check."""
    hosts = [*dict.fromkeys(entry.address for entry in case.job.entries)]
    rows = [[host, *(_cell(case, found, host, column) for column in COLUMNS)] for host in hosts]
    if any(not finding.hosts for finding in found):
        rows.insert(0, [FOLDER_ROW, *(_folder_cell(found, column) for column in COLUMNS)])
    head = ["host", *COLUMNS]
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def _cell(case: Case, found: tuple[Finding, ...], host: str, column: str) -> str:
    """How a host does in one kind of check."""
    mine = [f for f in found if column_of(f) == column and host in f.hosts]
    if not mine and (host not in case.hosts or column == "config"):
        return NOT_SEEN
    return CELLS[worst_first(mine)[0].severity] if mine else CELLS["info"]


def _folder_cell(found: tuple[Finding, ...], column: str) -> str:
    """How the files of the run folder do."""
    mine = [f for f in found if column_of(f) == column and not f.hosts]
    return CELLS[worst_first(mine)[0].severity] if mine else NOT_SEEN


def exports(case: Case) -> list[str]:
    """What the launcher exports on every host, from where."""
    job = case.job
    if len(job.entries) == 1:
        return [
            "one host: the ranks inherit this shell; `.deepspeed_env` is not read by `deepspeed`"
        ]
    pairs = [
        f"{name}={masked_value(name, value)[:LONGEST_VALUE]} ({_origin(name, job.file_variables)})"
        for name, value in job.exported.items()
    ]
    return [f"exported to every rank: {', '.join(pairs) or 'nothing'}"]


def _origin(name: str, of_file: Container[str]) -> str:
    return "file" if name in of_file else "shell"


def document(case: Case, found: tuple[Finding, ...], seconds: float) -> dict[str, Any]:
    """Everything as JSON: findings, facts of each host, and what was measured between them.

    Values of secrets are not in it.
    """
    values = {
        "findings": [{"column": column_of(finding), **row(finding, "hosts")} for finding in found],
        "hosts": {host: facts.model_dump(mode="json") for host, facts in case.hosts.items()},
        "lost": dict(case.lost),
        "clocks": {host: clock._asdict() for host, clock in case.clocks.items()},
        "calls": {h: [c.model_dump(mode="json") for c in calls] for h, calls in case.calls.items()},
        "streams": {
            host: {"peer": stream.peer, "bytes_per_s": round(stream.bytes_per_s)}
            for host, stream in case.streams.items()
            if not stream.error
        },
        "exported": case.job.exported,
        "seconds": round(seconds, 2),
    }
    return dict(masked_document(values))


def explained(check: Rule[Case]) -> list[str]:
    """What is known about a check."""
    return [
        f"{check.id} ({check.severity}, column {check.scope[0]})",
        check.title,
        f"why: {check.why}",
    ]
