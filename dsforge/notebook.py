"""Plans and reports in a notebook, as the page of `dsforge report` shows them.

>>> import dsforge, dsforge.notebook
>>> shown = dsforge.notebook.show(dsforge.plan("gpt2", "v100-32gb"))
>>> shown._repr_html_().startswith("<iframe")
True

Jupyter, VS Code and Colab display a value by its `_repr_html_`; nothing of theirs is imported.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from dsforge.api.reporting import ReportResult, report
from dsforge.api.results import EstimateResult, GenResult, PlanResult

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.plan import Plan

HEIGHT = 720  # pixels of the frame


class Shown:
    """A report in a frame of its own: its styles and scripts do not meet those of the notebook."""

    def __init__(self, made: ReportResult, height: int) -> None:
        self.report = made
        self.height = height

    def _repr_html_(self) -> str:
        """The frame, which may run the script of the report and nothing else."""
        page, title = escape(self.report.html), escape(self.report.page.title)
        style = "width:100%;border:1px solid #8888;border-radius:8px"
        return (
            f'<iframe title="{title}" sandbox="allow-scripts allow-modals" height="{self.height}" '
            f'style="{style}" srcdoc="{page}"></iframe>'
        )

    def __repr__(self) -> str:
        page = self.report.page
        return f"{page.title}: {page.choice} ({page.verdict})"


def show(
    source: Plan | PlanResult | EstimateResult | GenResult | PathInput, *, height: int = HEIGHT
) -> Shown:
    """What a notebook displays of a plan, a result of the API, a run folder or a comparison.

    Args:
        source: As for `dsforge.report`; or what `plan`, `estimate` and `gen` return.
        height: Height of the frame in pixels.

    Returns:
        A value that the notebook displays; its `report` can be written to a folder.

    Raises:
        DsforgeError: A source cannot be read, or is none of these.

    """
    return Shown(report(_source(source)), height)


def _source(given: Plan | PlanResult | EstimateResult | GenResult | PathInput) -> Plan | PathInput:
    if isinstance(given, PlanResult):
        return given.best
    if isinstance(given, EstimateResult):
        return given.plan
    return given.out if isinstance(given, GenResult) else given
