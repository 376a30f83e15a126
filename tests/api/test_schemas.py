"""The published schemas: up to date, legal, and of the same mind as the readers."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from dsforge.reading import schemas

TEXTS = schemas.schema_texts()
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
    """No schema of an input file is left behind by a renamed type."""
    names = {path.name for path in FOLDER.glob("*.schema.json")}

    assert set(TEXTS) <= names


@pytest.mark.parametrize("kind", ACCEPTED)
def test_schemas_are_legal_and_refuse_unknown_keys(kind: str) -> None:
    """An editor would underline a misspelt key."""
    schema = json.loads(TEXTS[f"{kind}.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    assert not validator.is_valid({**ACCEPTED[kind], "misspelt": 1})
    assert validator.is_valid(ACCEPTED[kind])


@pytest.mark.parametrize("name", TEXTS)
def test_every_key_of_a_file_is_described(name: str) -> None:
    """Editors show the description; choices explain themselves."""
    properties = json.loads(TEXTS[name])["properties"]

    bare = [key for key, value in properties.items() if "description" not in value]
    assert not [key for key in bare if "enum" not in json.dumps(properties[key])]
