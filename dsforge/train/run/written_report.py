"""The report of a run: output/report.html, written anew when a run ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsforge.artifacts.whole import write_whole
from dsforge.errors import DsforgeError
from dsforge.outside import UnreadableError, read_text

REPORT = "report.html"
MOST_BYTES = 8 << 20


def write_report(output: Path) -> Iterator[str]:
    """Write the report of an output folder; what is said of it.

    A finished run does not fail because its report cannot be written: that is said, too.
    """
    from dsforge.report import html_page
    from dsforge.report.combined import run_report
    from dsforge.report.run_folder import read_run

    path = output / REPORT
    if path.exists() and not _is_report(path):
        yield f"{path} was not written by dsforge and is kept; move it to get a report"
        return
    try:
        write_whole(path, html_page(run_report(read_run(output))), over_links=True)
    except DsforgeError as error:
        yield f"no report was written: {error.message}"
    except OSError as error:
        yield f"no report was written: {path}: {error.strerror}"
    else:
        yield f"report: {path}"


def _is_report(path: Path) -> bool:
    """Whether a file is a report of dsforge, which may be replaced."""
    from dsforge.report.pages import GENERATOR

    try:
        return f'name="generator" content="{GENERATOR} ' in read_text(path, MOST_BYTES, pipes=False)
    except UnreadableError:
        return False
