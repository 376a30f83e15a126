"""JSON schemas of a ds_config: what they refuse lint refuses, and what lint refuses of a type."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from lint_scoring import cases

from dsforge.lint.files import Against, checked, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.json_schema import ds_config_schema, minor_releases
from dsforge.lint.schemas.key_texts import key_texts
from dsforge.lint.schemas.releases import frozen

OF_SHAPE = {  # rules about keys and the types of their values
    *("key-unknown", "key-too-new", "key-removed", "key-deprecated", "loss-scale-in-bf16"),
    *("value-type", "value-fraction", "value-range", "value-choice", "value-quoted"),
    *("value-truthy", "block-type", "number-as-text", "batch-positive", "zero-boolean"),
    *("fp16-scale-value", "fp16-scale-floor", "communication-type"),
}
CONFIGS = [
    (case.name, case.row["text"])
    for case in cases()
    if case.kind == "ds_config" and case.row["text"].startswith("{")
]


@cache
def validator(release: str) -> Draft202012Validator:
    """The validator of a release."""
    schema = ds_config_schema(release)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("release", minor_releases())
def test_public_configs_are_judged_alike(release: str) -> None:
    """A file that the schema refuses has a finding of lint about the key or the type."""
    against = Against(*release_named(release))
    for name, text in CONFIGS:
        try:
            root: Any = json.loads(text)
        except ValueError:
            continue
        rules = {f.rule for f in checked(document_of(name, text, "ds_config"), against)}
        errors = [error.message for error in validator(release).iter_errors(root)]
        assert not errors or rules & OF_SHAPE, (name, errors, rules)
        if "key-unknown" in rules:
            assert errors, name


def test_every_sentence_is_about_a_key() -> None:
    """No text is left over, and each is one line that ends with a full stop."""
    blocks = frozen().blocks
    for path, text in key_texts().items():
        block, _, key = path.rpartition(".")
        assert key in blocks[block].keys, path
        assert text.endswith((".", "off.")), path


def test_an_editor_completes_the_keys_of_its_release() -> None:
    """Keys come and go with releases."""
    old = ds_config_schema("0.16.0")["properties"]["zero_optimization"]["anyOf"][0]["properties"]
    new = ds_config_schema("0.19")["properties"]["zero_optimization"]["anyOf"][0]["properties"]

    assert "leaf_module" not in old
    assert "leaf_module" in new
