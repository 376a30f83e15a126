"""JSON schemas of the files that people write and of the documents that commands print.

They come from the very types that read and write them: an editor completes what is accepted, and a
script can rely on what is printed. `scripts/schemas.py` writes them to `schemas/`; a test compares.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel

from dsforge.api.documents import DiagnoseDocument, GenDocument, LintDocument
from dsforge.api.importing import ImportDocument
from dsforge.api.jobs import JobDocument, StatusDocument
from dsforge.api.report_documents import ReportDocument
from dsforge.bench.report import Report
from dsforge.document import EstimateDocument, InverseDocument, MisfitDocument, PlanDocument
from dsforge.explain.explanation import Explanation
from dsforge.job import TrainJob
from dsforge.lint.schemas.json_schema import ds_config_schema, minor_releases
from dsforge.reading.files import ClusterFile, SpecFile, WorkloadFile
from dsforge.rehearse.report import RehearsalDocument
from dsforge.validate.calibration import CalibrationDocument
from dsforge.validate.document import ValidationDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES: dict[str, type[BaseModel]] = {
    "cluster": ClusterFile,
    "workload": WorkloadFile,
    "spec": SpecFile,
    "job": TrainJob,
}
DOCUMENTS: dict[str, type[BaseModel]] = {
    "plan": PlanDocument,
    "estimate": EstimateDocument,
    "inverse": InverseDocument,
    "misfit": MisfitDocument,
    "explanation": Explanation,
    "gen": GenDocument,
    "rehearsal": RehearsalDocument,
    "bench": Report,
    "report": ReportDocument,
    "import": ImportDocument,
    "lint": LintDocument,
    "diagnosis": DiagnoseDocument,
    "calibration": CalibrationDocument,
    "validation": ValidationDocument,
    "job-started": JobDocument,
    "job-status": StatusDocument,
}


def schema_texts() -> dict[str, str]:
    """The text of each schema file by its name."""
    files = {f"{name}.schema.json": _text(name, kind, "validation") for name, kind in FILES.items()}
    documents = {
        f"{name}.schema.json": _text(name, kind, "serialization")
        for name, kind in DOCUMENTS.items()
    }
    return files | documents | _of_ds_configs()


def _of_ds_configs() -> dict[str, str]:
    """The schema of a ds_config for each minor release of DeepSpeed."""
    texts: dict[str, str] = {}
    for release in minor_releases():
        name = f"ds_config-{release}"
        head = {"$schema": DIALECT, "$id": f"dsforge/{name}.schema.json"}
        title = {"title": f"ds_config of DeepSpeed {release}"}
        schema = {**head, **title, **ds_config_schema(release)}
        texts[f"{name}.schema.json"] = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    return texts


def _text(name: str, kind: type[BaseModel], mode: Literal["validation", "serialization"]) -> str:
    """One schema as JSON text."""
    head: dict[str, Any] = {"$schema": DIALECT, "$id": f"dsforge/{name}.schema.json"}
    schema = kind.model_json_schema(mode=mode)
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"
