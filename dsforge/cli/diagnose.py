"""`dsforge diagnose`: the log of a failed run to its cause and a patch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dsforge.diagnose import Cause

STDIN = "-"


@click.command()
@click.argument(
    "logs",
    nargs=-1,
    type=click.Path(path_type=Path, allow_dash=True),
    help="Logs of one run, folders of logs, or - for standard input (the default).",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    help="plan.json of the run; explains memory errors and slow steps by its predictions.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print causes as JSON; an empty list if none was found."
)
@click.option(
    "--rules", "list_rules", is_flag=True, help="List the failures that can be recognised."
)
@click.option("--explain", metavar="RULE", help="Show what one rule looks for, says and advises.")
def diagnose(
    logs: tuple[Path, ...],
    *,
    plan: Path | None,
    as_json: bool,
    list_rules: bool,
    explain: str | None,
) -> None:
    """Name the cause of a failed run from its log, with evidence and a fix.

    Exit code 0 if no cause was found, 3 if causes were found. A confidence below 0.5 means that no
    rule knows the error; the answer then says where to start.
    """
    if list_rules or explain is not None:
        _show_rules(explain)
        return
    from dsforge.cli.show import note, show_json
    from dsforge.diagnose.report import described, document
    from dsforge.errors import EXIT_FINDINGS
    from dsforge.masking import printable

    found = _causes(logs, plan)
    if as_json:
        show_json(document(found))
    elif found:
        print("\n".join(printable(line) for line in described(found)))
    else:
        note("no sign of a failure was found; a run that hangs needs the logs of all ranks")
    if found:
        sys.exit(EXIT_FINDINGS)


def _causes(logs: tuple[Path, ...], plan: Path | None) -> tuple[Cause, ...]:
    """The causes in the logs; with a plan, explained by its predictions."""
    from dsforge.diagnose import diagnose_files, diagnose_stream
    from dsforge.errors import DsforgeError
    from dsforge.reading.stored import read_plan

    given = None if plan is None else read_plan(plan)
    if any(str(path) == STDIN for path in logs) and len(logs) > 1:
        raise DsforgeError("`-` cannot be combined with files", "name files, or pipe one log in")
    if not logs or str(logs[0]) == STDIN:
        return diagnose_stream(_stdin(), "stdin", given)
    return diagnose_files(logs, given)


def _stdin() -> Iterator[bytes]:
    """The bytes of standard input."""
    from dsforge.cli.show import note
    from dsforge.diagnose.log_sources import stream_chunks
    from dsforge.errors import DsforgeError

    if sys.stdin is None:
        raise DsforgeError("stdin is closed", "name a log")
    if sys.stdin.isatty():
        note("paste the log or traceback, then press Ctrl-D")
    return stream_chunks(sys.stdin.buffer)


def _show_rules(name: str | None) -> None:
    """The rule of that name, or a line for each. Raises DsforgeError, with the nearest one."""
    from dsforge.diagnose.report import explained
    from dsforge.diagnose.rulebook import rulebook
    from dsforge.findings.writers import check_known

    rules = rulebook(with_plan=True)
    if name is None:
        width = max(map(len, rules))
        print("\n".join(f"{rule.id:{width}}  {rule.cause}" for rule in rules.values()))
        return
    check_known((name,), rules, "dsforge diagnose")
    print("\n".join(explained(rules[name])))
