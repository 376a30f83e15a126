"""Reports of plans, runs and comparisons: one page, its Markdown and JSON twins, its pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from dsforge.errors import DsforgeError
from dsforge.masking import masked_document
from dsforge.plan import Plan
from dsforge.reading.source import path_of

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.api.report_documents import ReportDocument, SourceDocument
    from dsforge.report import Report, TextFile

MOST_SOURCES = 12


@dataclass(frozen=True, slots=True)
class ReportResult:
    """A report as a page, as Markdown, as pictures and as data.

    Examples:
        >>> import dsforge
        >>> made = dsforge.plan("gpt2", "v100-32gb").best
        >>> report = dsforge.report(made)
        >>> len(report.html) < 3_000_000, sorted(report.pictures)
        (True, ['memory.svg', 'step.svg', 'time.svg'])

    """

    page: Report
    document: ReportDocument

    @property
    def html(self) -> str:
        """The page: one text, which loads nothing from elsewhere. Raises DsforgeError over 3 MB."""
        from dsforge.report import html_page

        return html_page(self.page)

    @property
    def markdown(self) -> str:
        """The same as Markdown; it shows the pictures in the folder `figures`."""
        from dsforge.report import markdown_page

        return markdown_page(self.page)

    @property
    def pictures(self) -> dict[str, str]:
        """SVG text of each chart by file name."""
        from dsforge.report import pictures

        return pictures(self.page)

    @property
    def json_text(self) -> str:
        """The document as JSON text, without secrets."""
        document = masked_document(self.document.model_dump(mode="json"))
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    def write(self, folder: PathInput, *, force: bool = False) -> tuple[str, ...]:
        """Write report.html, report.md, report.json and figures/*.svg into a folder.

        Returns the paths. Raises EditedError where a person has changed one of them and `force` is
        not set, DsforgeError where the folder cannot be written.
        """
        from dsforge.artifacts import write_all
        from dsforge.report.pages import page_files

        files = page_files(self.page, self.json_text)
        write_all(files, path_of(folder, "folder"), force=force)
        return tuple(file.path for file in files)


def report(sources: Plan | PathInput | Sequence[Plan | PathInput]) -> ReportResult:
    """One report of plans, runs and comparisons.

    Args:
        sources: A plan; or the path of a `plan.json`, of a run folder, of an output folder of
            `dsforge train`, or of a folder of `dsforge bench`; or several of these.

    Returns:
        The report; the first source is its summary.

    Raises:
        DsforgeError: A source cannot be read, or is none of these.

    Examples:
        >>> import dsforge, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = dsforge.gen("gpt2", "v100-32gb", out=f"{folder}/run")
        ...     written = dsforge.report(f"{folder}/run").write(f"{folder}/report")
        >>> written[:3]
        ('report.html', 'report.md', 'report.json')

    """
    from dsforge.api.report_documents import ReportDocument
    from dsforge.report.combined import combined

    listed = [sources] if isinstance(sources, Plan | str | PathLike) else list(sources)
    if not 1 <= len(listed) <= MOST_SOURCES:
        message = f"a report takes 1 to {MOST_SOURCES} sources (got {len(listed)})"
        raise DsforgeError(message, "give plans, run folders or folders of `dsforge bench`")
    found = [_source(source) for source in listed]
    page = combined(tuple(each for each, _ in found))
    return ReportResult(page, ReportDocument(report=page, sources=tuple(d for _, d in found)))


def _source(source: Plan | PathInput) -> tuple[Report, SourceDocument]:
    """The report of one source and its documents. Raises DsforgeError."""
    from dsforge.api.report_documents import SourceDocument
    from dsforge.report.plan_sections import plan_report

    if isinstance(source, Plan):
        return plan_report(source, _rendered_files(source)), SourceDocument(
            name="plan", plan=source
        )
    path = path_of(source, "source")
    if not path.is_dir():
        from dsforge.reading.stored import read_plan

        plan = read_plan(path)
        return plan_report(plan, _rendered_files(plan)), SourceDocument(name=str(path), plan=plan)
    return _folder(path)


def _rendered_files(plan: Plan) -> tuple[TextFile, ...]:
    """The configs that `gen` writes for a plan."""
    from dsforge.render import render
    from dsforge.report.shown_files import shown_files

    return shown_files((file.path, file.text) for file in render(plan))


def _folder(folder: Path) -> tuple[Report, SourceDocument]:
    """The report of a comparison, a run folder or an output folder."""
    from dsforge.api.report_documents import SourceDocument
    from dsforge.bench.folder import find_report, read_bench_folder
    from dsforge.bench.pages import bench_page
    from dsforge.report.combined import run_report
    from dsforge.report.run_folder import read_run

    stored = find_report(folder)
    if stored is not None:
        found = read_bench_folder(stored, folder)
        page = bench_page(found.report, found.plan, found.files)
        return page, SourceDocument(name=str(folder), plan=found.plan, comparison=found.report)
    run = read_run(folder)
    ran = run.ran
    document = SourceDocument(
        name=str(folder),
        plan=run.plan,
        measurement=ran.measurement if ran else None,
        metrics=ran.metrics if ran else (),
    )
    return run_report(run), document
