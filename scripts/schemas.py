"""Write the JSON schemas of files and documents into `schemas/`."""

from __future__ import annotations

from pathlib import Path

from dsforge.api.schemas import schema_texts

FOLDER = Path(__file__).resolve().parents[1] / "schemas"

if __name__ == "__main__":
    for name, text in schema_texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
