"""How a DsforgeError is shown to a person: the one text for the command line and for every rank."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.errors import DsforgeError, LayoutError, RunError, SpecError
from dsforge.masking import printable

MAX_PROBLEMS = 200  # shown of one error: a wrong data file has a problem in every row


class Style(NamedTuple):
    """Terminal codes around the message and around rule ids; empty for plain text."""

    message: str = ""
    rule: str = ""
    end: str = ""


PLAIN, COLOURED = Style(), Style("\033[31m", "\033[2m", "\033[0m")


def error_report(error: DsforgeError, *, where: str = "", style: Style = PLAIN) -> str:
    """The message, one line for each problem, the last lines of a process, and the way out.

    `where` follows the word "error": the rank and host, for ranks beyond the first.
    """
    lines = [f"{style.message}error{where}: {printable(error.message)}{style.end}"]
    if isinstance(error, SpecError | LayoutError):
        lines += [
            f"  - {printable(str(problem))} {style.rule}[{problem.rule}]{style.end}"
            for problem in error.problems[:MAX_PROBLEMS]
        ]
        more = len(error.problems) - MAX_PROBLEMS
        lines += [f"  and {more:,} more"] if more > 0 else []
    if isinstance(error, RunError) and error.tail:
        lines += ["  last lines:", *(f"  | {printable(line)}" for line in error.tail.splitlines())]
    if error.hint:
        lines.append(f"  {printable(error.hint)}")
    return "\n".join(lines) + "\n"
