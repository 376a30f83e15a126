"""Write the JSON schemas of the input files into `schemas/`."""

from __future__ import annotations

from pathlib import Path

from dsforge.reading.schemas import schema_texts

FOLDER = Path(__file__).resolve().parents[1] / "schemas"

if __name__ == "__main__":
    for name, text in schema_texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
