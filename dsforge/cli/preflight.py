"""`dsforge preflight`: this job on these hosts, looked at before anything starts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.paths import NamedPath
from dsforge.errors import EXIT_FINDINGS, DsforgeError

if TYPE_CHECKING:
    from dsforge.findings import Finding
    from dsforge.preflight.case import Case


@click.command()
@click.argument(
    "run",
    type=NamedPath(),
    default=Path(),
    help="Run folder of `dsforge gen` (default: current folder).",
)
@click.option(
    "--hostfile",
    type=NamedPath(),
    help="DeepSpeed hostfile (default: that of the run folder).",
)
@click.option("--local", is_flag=True, help="Check this machine only, without SSH.")
@click.option("--fix", is_flag=True, help="Remove build locks that no process holds.")
@click.option(
    "--no-bandwidth", is_flag=True, help="Skip the bandwidth test between hosts (1 s per pair)."
)
@click.option("--ignore", multiple=True, metavar="RULE", help="Check to ignore; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print findings and facts as JSON.")
@click.option("--rules", "list_rules", is_flag=True, help="List all checks.")
@click.option("--explain", metavar="RULE", help="Explain one check.")
def preflight(
    *,
    run: Path,
    hostfile: Path | None,
    local: bool,
    fix: bool,
    no_bandwidth: bool,
    ignore: tuple[str, ...],
    as_json: bool,
    list_rules: bool,
    explain: str | None,
) -> None:
    """Check all hosts and the network between them before launch.

    Connects to all hosts at once over the launcher's SSH; dsforge need not be installed there.
    Inside a Slurm job without a hostfile, the hosts are those of the job. With --local, only this
    machine is checked, for pods without SSH. The exit code is 3 if an error was found.
    """
    _check_rules((*ignore, *([explain] if explain else ())))
    if list_rules or explain:
        print("\n".join(_explanation(explain)))
        return
    from dsforge.cli.show import note, show_json
    from dsforge.findings import has_errors
    from dsforge.preflight.report import document

    begin = time.monotonic()
    case, found = _checked_run(run, hostfile, local=local, fix=fix, measure=not no_bandwidth)
    found = tuple(finding for finding in found if finding.rule not in ignore)
    seconds = time.monotonic() - begin
    if as_json:
        show_json(document(case, found, seconds))
    else:
        _show(case, found)
    seen = f"{len(case.hosts)} of {len(case.job.entries)} hosts checked in {seconds:.1f} s"
    note(f"{seen}: {_counted(found)}")
    if has_errors(found):
        sys.exit(EXIT_FINDINGS)


def _counted(found: tuple[Finding, ...]) -> str:
    """`1 error, 0 warnings`."""
    from dsforge.findings.writers import counted

    severities = [finding.severity for finding in found]
    return ", ".join(counted(severities.count(name), name) for name in ("error", "warning"))


def _checked_run(
    run: Path, hostfile: Path | None, *, local: bool, fix: bool, measure: bool
) -> tuple[Case, tuple[Finding, ...]]:
    """The case and what is wrong in it. Raises DsforgeError where there is no run to look at."""
    from dsforge.cli.alive import alive
    from dsforge.preflight.collect import collect
    from dsforge.preflight.job_files import file_findings, read_job
    from dsforge.preflight.registry import findings

    if not run.is_dir():
        raise DsforgeError(f"`RUN` (={run}) is not a folder", "give the run folder")
    if hostfile is not None and not hostfile.is_file():
        raise DsforgeError(f"`--hostfile` (={hostfile}) is not a file")
    job = read_job(run, hostfile=hostfile, local=local)
    with alive("waiting for the hosts"):
        case = collect(job, fix=fix, measure=measure)
    return case, (*file_findings(run, hostfile), *findings(case))


def _show(case: Case, found: tuple[Finding, ...]) -> None:
    """The table, each finding with its fix, and what the launcher exports."""
    from dsforge.findings.writers import as_lines
    from dsforge.masking import printable
    from dsforge.preflight.report import FOLDER_ROW, exports, table

    described = as_lines(found, nowhere=FOLDER_ROW)
    lines = [*table(case, found), "", *described, *([""] if found else []), *exports(case)]
    print("\n".join(printable(line) for line in lines))


def _explanation(name: str | None) -> list[str]:
    """One check in full, or a line for each."""
    from dsforge.preflight.registry import BY_ID, CHECKS
    from dsforge.preflight.report import explained

    if name is not None:
        return explained(BY_ID[name])
    width = max(len(check.id) for check in CHECKS)
    return [f"{c.id:{width}}  {c.severity:7}  {c.scope[0]:7}  {c.title}" for c in CHECKS]


def _check_rules(names: tuple[str, ...]) -> None:
    """Raise DsforgeError where a check does not exist."""
    if names:
        from dsforge.findings.writers import check_known
        from dsforge.preflight.registry import BY_ID

        check_known(names, BY_ID, "dsforge preflight")
