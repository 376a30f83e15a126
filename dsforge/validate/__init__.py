"""Predictions against measurements: a table of published or own runs, and how far off we are.

`table` reads the CSV, `cases` turns a row into the values that the estimators take, `predict` asks
them, `score` judges. All of it is pure: the command line reads the file and shows the document.
"""

from __future__ import annotations

from dsforge.validate.document import ValidationDocument, validation
from dsforge.validate.table import Row, parse_table

__all__ = ["Row", "ValidationDocument", "parse_table", "validation"]
