"""Predictions against measurements: a table of published or own runs, and how far off we are.

`table` reads the CSV. Of a table of runs, `cases` turns a row into the values that the estimators
take, `document` asks them, `score` judges. Of a table of figures, `figures` says what a row asks
and `comparison` judges the answer beside that of `arithmetic`, which people compute on paper. All
of it is pure: the command line reads files and shows the document.
"""

from __future__ import annotations

from dsforge.validate.comparison import Asked, FiguresDocument, compared
from dsforge.validate.document import ValidationDocument, validation
from dsforge.validate.figures import Figure
from dsforge.validate.table import Row, holds_figures, parse_figures, parse_table

__all__ = [
    "Asked",
    "Figure",
    "FiguresDocument",
    "Row",
    "ValidationDocument",
    "compared",
    "holds_figures",
    "parse_figures",
    "parse_table",
    "validation",
]
