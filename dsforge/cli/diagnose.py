"""`dsforge diagnose`: the log of a failed run to its cause and a patch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from dsforge.api.results import DiagnoseResult

STDIN = "-"


@click.command()
@click.argument(
    "logs",
    nargs=-1,
    type=NamedPath(allow_dash=True),
    help="Logs of one run, folders of them (dmesg, sacct, flight recorder, too), or - for stdin.",
)
@click.option(
    "--plan",
    type=NamedPath(),
    help="plan.json of the run, to explain memory errors and slow steps with its figures.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the causes as JSON; empty if none was found."
)
@click.option(
    "--rules", "list_rules", is_flag=True, help="List the failures that can be recognised."
)
@click.option("--explain", metavar="RULE", help="Explain one rule: pattern, cause and fix.")
def diagnose(
    logs: tuple[Path, ...],
    *,
    plan: Path | None,
    as_json: bool,
    list_rules: bool,
    explain: str | None,
) -> None:
    """Find the cause of a failed run in its log, with evidence and a fix.

    The exit code is 0 if no cause was found, 3 if causes were found. A confidence below 0.5 means
    that the error was not recognised; the report then says where to start. A hint names what is
    noticeable in the log of a run that did not fail.
    """
    if list_rules or explain is not None:
        _show_rules(explain)
        return
    from dsforge.cli.show import note, show_json
    from dsforge.diagnose.report import described
    from dsforge.errors import EXIT_FINDINGS
    from dsforge.masking import printable

    found = _causes(logs, plan)
    if as_json:
        show_json(found.document.model_dump(mode="json"))
    elif found.causes:
        print("\n".join(printable(line) for line in described(found.causes)))
    else:
        note("no failure was found; for a run that hangs, give the logs of all ranks")
    if any(cause.kind == "cause" for cause in found.causes):
        sys.exit(EXIT_FINDINGS)


def _causes(logs: tuple[Path, ...], plan: Path | None) -> DiagnoseResult:
    """The causes in the logs, in the terms of the plan where one is given."""
    from dsforge.api.checking import diagnose as diagnosed
    from dsforge.errors import DsforgeError

    if any(str(path) == STDIN for path in logs) and len(logs) > 1:
        raise DsforgeError(
            "`-` cannot be combined with files", "give files, or pipe one log to stdin"
        )
    if not logs or str(logs[0]) == STDIN:
        return diagnosed(stream=_stdin(), plan=plan)
    return diagnosed(logs, plan=plan)


def _stdin() -> BinaryIO:
    """Standard input, as bytes."""
    from dsforge.cli.show import note
    from dsforge.errors import DsforgeError

    if sys.stdin is None:
        raise DsforgeError("stdin is closed", "give a log file")
    if sys.stdin.isatty():
        note("paste the log or traceback, then press Ctrl-D")
    return sys.stdin.buffer


def _show_rules(name: str | None) -> None:
    """The rule of that name, or a line for each. Raises DsforgeError, with the nearest one."""
    from dsforge.diagnose.report import explained
    from dsforge.diagnose.rulebook import rulebook
    from dsforge.findings.writers import check_known

    rules = rulebook(with_plan=True, in_words=True)
    if name is None:
        width = max(map(len, rules))
        print("\n".join(f"{rule.id:{width}}  {rule.cause}" for rule in rules.values()))
        return
    check_known((name,), rules, "dsforge diagnose")
    print("\n".join(explained(rules[name])))
