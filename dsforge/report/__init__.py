"""Reports: sections of a plan, of its run and of comparisons, as HTML, Markdown and SVG pictures.

A report is made of the documents that commands write (`plan.json`, `measurement.json`,
`metrics.jsonl`, `report.json`); no figure in it is computed elsewhere.
"""

from dsforge.report.blocks import Chart, Column, Gauge, Report, Section, Stat, Table, TextFile
from dsforge.report.pages import html_page, markdown_page, pictures

__all__ = [
    "Chart",
    "Column",
    "Gauge",
    "Report",
    "Section",
    "Stat",
    "Table",
    "TextFile",
    "html_page",
    "markdown_page",
    "pictures",
]
