"""The published schemas: up to date, legal, and of the same mind as the readers."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

import dsforge
from dsforge.api.schemas import DOCUMENTS, FILES, schema_texts
from dsforge.plan import Plan, Request

TEXTS = schema_texts()
FILLERS = {"the", "a", "an", "of", "in", "its", "is", "for", "and", "or"}
ENDS = (".", ". ", "`.", ")", "1.", "%")
FOLDER = Path(__file__).resolve().parents[2] / "schemas"
ACCEPTED = {
    "cluster": {"nodes": 2, "gpu": "a100-80gb", "hosts": [{"address": "10.0.0.1", "slots": 8}]},
    "workload": {"tokens": "2b", "sequence_length": 4096, "method": "lora", "lora": {"rank": 8}},
    "spec": {"model": "7b", "cluster": {"gpu": "v100", "nodes": 2}, "strategy": {"zero_stage": 3}},
    "job": {"model": "m", "deepspeed_config": "d", "data": {"train": "t"}, "sequence_length": 8},
}


@pytest.mark.parametrize("name", TEXTS)
def test_published_schemas_are_up_to_date(name: str) -> None:
    """`python scripts/schemas.py` writes them."""
    assert (FOLDER / name).read_text(encoding="utf-8") == TEXTS[name]


def test_every_published_schema_is_generated() -> None:
    """No schema is left behind by a renamed type, and the table of schemas names each."""
    table = (FOLDER / "README.md").read_text(encoding="utf-8")

    assert {path.name for path in FOLDER.glob("*.schema.json")} == set(TEXTS)
    assert [name for name in TEXTS if f"`{name}`" not in table] == []


@pytest.mark.parametrize("kind", ACCEPTED)
def test_schemas_are_legal_and_refuse_unknown_keys(kind: str) -> None:
    """An editor would underline a misspelt key."""
    schema = json.loads(TEXTS[f"{kind}.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    assert not validator.is_valid({**ACCEPTED[kind], "misspelt": 1})
    assert validator.is_valid(ACCEPTED[kind])


PUBLIC = {
    kind.__name__: kind.model_json_schema(mode="serialization")
    for kind in (*FILES.values(), *DOCUMENTS.values(), Plan, Request)
}


def described(schema: Any) -> Iterator[tuple[str, str]]:
    """Each field of a type and of the types inside it: its name, and what is said of it."""
    for title, inner in ((schema["title"], schema), *schema.get("$defs", {}).items()):
        for name, value in inner.get("properties", {}).items():
            yield f"{title}.{name}", value.get("description", "")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_field_is_described(name: str) -> None:
    """A sentence of three words or more that says something which the name does not."""
    fields = dict(described(PUBLIC[name]))
    words = {field: set(re.findall(r"[a-z0-9]+", text.lower())) for field, text in fields.items()}
    names = {field: set(re.findall(r"[a-z0-9]+", field.partition(".")[2])) for field in fields}

    assert len(fields) > 3
    assert [field for field, text in fields.items() if len(text.split()) < 3] == []
    assert [field for field in fields if len(words[field] - names[field] - FILLERS) < 1] == []
    assert [field for field, text in fields.items() if not text.endswith(ENDS)] == []


RATES = ("_gb_s", "_per_s", "_mparams_s")
UNITS = {
    "_bytes": ("byte", "ram", "memory", "space", "read"),
    "_s": ("second", "time", " s"),
    "_gib": ("gib",),
    "_gb_s": ("gb/s", "bandwidth", "way", "copy"),
    "_us": ("microsecond",),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_quantity_names_its_unit(name: str) -> None:
    """A field whose name ends in a unit says it in words, or the description of its type does."""
    schema = PUBLIC[name]
    types = {schema["title"]: schema, **schema.get("$defs", {})}
    said = {title: inner.get("description", "").lower() for title, inner in types.items()}
    bare = [
        field
        for field, text in described(schema)
        for end, units in UNITS.items()
        if field.endswith(end) and not field.endswith(RATES)
        if not any(u in f"{text.lower()} {said[field.partition('.')[0]]} " for u in units)
    ]
    assert bare == []


WITH_TORCH = ("dsforge.train", "dsforge.probe.rank", "dsforge.rehearse")


def _types() -> dict[str, type[BaseModel]]:
    """Every pydantic model of the package; of rooms that need torch, those named here."""
    found = pkgutil.walk_packages(dsforge.__path__, "dsforge.")
    names = [
        m.name for m in found if not m.name.startswith(WITH_TORCH) and "__main__" not in m.name
    ]
    names += ["dsforge.train.checkpoints.note", "dsforge.train.checkpoints.run_identity"]
    names += ["dsforge.train.run.output_lock", "dsforge.measurement"]
    return {
        f"{name}.{kind.__name__}": kind
        for name in names
        for kind in vars(importlib.import_module(name)).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == name
    }


TYPES = _types()


def test_every_type_is_found() -> None:
    """The rooms whose types are in no published document are part of the enumeration."""
    rooms = {name.split(".")[1] for name in TYPES}

    assert {"preflight", "probe", "validate", "bench", "train"} <= rooms
    assert len(TYPES) > 100


@pytest.mark.parametrize("name", TYPES)
def test_every_field_of_every_type_is_described(name: str) -> None:
    """Also where no published document contains the type."""
    said = {field: info.description or "" for field, info in TYPES[name].model_fields.items()}

    assert [field for field, text in said.items() if len(text.split()) < 3] == []
    assert [field for field, text in said.items() if not text.endswith(ENDS)] == []
