"""How errors, tables and JSON documents look. Output goes to stdout, messages to stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from dsforge.errors import DoesNotFitError, DsforgeError, LayoutError, RunError, SpecError
from dsforge.masking import masked_document, printable

if TYPE_CHECKING:
    from pathlib import Path

    from dsforge.plan import Request
    from dsforge.planner.remedies import Remedy

MOST_PROBLEMS = 200  # that are shown; nobody reads more, and a wrong file has one a line
RED, DIM, RESET = "\033[31m", "\033[2m", "\033[0m"


def show_error(error: DsforgeError) -> None:
    """The message in red, every problem on its own line, then the way out."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    red, dim, reset = (RED, DIM, RESET) if coloured else ("", "", "")
    lines = [f"{red}error: {printable(error.message)}{reset}"]
    if isinstance(error, (SpecError, LayoutError)):
        shown, count = error.problems[:MOST_PROBLEMS], len(error.problems)
        lines += [f"  - {printable(str(p))} {dim}[{p.rule}]{reset}" for p in shown]
        lines += [f"  and {count - MOST_PROBLEMS:,} more"] if count > MOST_PROBLEMS else []
    if isinstance(error, RunError) and error.tail:
        lines += ["  last lines:", *(f"  | {printable(line)}" for line in error.tail.splitlines())]
    if error.hint:
        lines.append(f"  {printable(error.hint)}")
    print("\n".join(lines), file=sys.stderr)


def show_json(document: dict[str, Any]) -> None:
    """A JSON document on stdout, without secrets."""
    print(json.dumps(masked_document(document), indent=2, ensure_ascii=False))


def show_nearest(request: Request, error: DoesNotFitError) -> None:
    """The strategy nearest to fitting as a JSON document, with what would make it fit."""
    from dsforge.api.planning import estimate
    from dsforge.document import MisfitDocument

    nearest = estimate(request).document
    document = MisfitDocument.model_construct(error=error.message, nearest=nearest)
    show_json(document.model_dump(mode="json"))


def numbered(found: tuple[Remedy, ...]) -> list[str]:
    """What would make it fit, cheapest first."""
    from dsforge.cli.text import wrapped

    return [
        line
        for number, remedy in enumerate(found, start=1)
        for line in wrapped(str(remedy), first=f"  {number}. ")
    ]


def save(path: Path, text: str) -> None:
    """Write a file that was asked for, whole or not. Raises DsforgeError where it cannot be."""
    from dsforge.artifacts.whole import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise DsforgeError(f"cannot write {path}: {error.strerror}") from error


def note(message: str) -> None:
    """A message for people, on stderr, after what stdout was told before: logs hold both."""
    sys.stdout.flush()
    print(printable(message), file=sys.stderr)
