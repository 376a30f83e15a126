"""How errors, tables and JSON documents look. Output goes to stdout, messages to stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from dsforge.error_report import COLOURED, PLAIN, error_report
from dsforge.errors import DoesNotFitError, DsforgeError
from dsforge.masking import masked_document, printable

if TYPE_CHECKING:
    from pathlib import Path

    from dsforge.plan import Request
    from dsforge.planner.remedies import Remedy


def show_error(error: DsforgeError) -> None:
    """The report on stderr; in colour on a terminal, unless NO_COLOR is set."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(error_report(error, style=COLOURED if coloured else PLAIN))


def show_json(document: dict[str, Any]) -> None:
    """A JSON document on stdout, without secrets."""
    print(json.dumps(masked_document(document), indent=2, ensure_ascii=False))


def show_nearest(request: Request, error: DoesNotFitError) -> None:
    """The strategy nearest to fitting as a JSON document, with what would make it fit."""
    from dsforge.api.pricing import nearest
    from dsforge.document import MisfitDocument

    found = nearest(request).document
    document = MisfitDocument.model_construct(error=error.message, nearest=found)
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
