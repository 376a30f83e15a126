"""Schemas: the shapes of the input files as JSON schema, for editors.

They come from the very types that read the files, so that an editor completes exactly what is
accepted. `scripts/schemas.py` writes them to `schemas/`; a test compares.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from dsforge.job import TrainJob
from dsforge.reading.files import ClusterFile, SpecFile, WorkloadFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("cluster", ClusterFile),
    ("workload", WorkloadFile),
    ("spec", SpecFile),
    ("job", TrainJob),
)


def schema_texts() -> dict[str, str]:
    """The text of each schema file by its name."""
    return {f"{name}.schema.json": _text(name, kind) for name, kind in KINDS}


def _text(name: str, kind: type[BaseModel]) -> str:
    """One schema as JSON text."""
    head: dict[str, Any] = {"$schema": DIALECT, "$id": f"dsforge/{name}.schema.json"}
    return json.dumps({**head, **kind.model_json_schema()}, indent=2, ensure_ascii=False) + "\n"
