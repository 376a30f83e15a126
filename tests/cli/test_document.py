"""The JSON documents of `plan` and `estimate` agree with their published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from planning import DISK, ask, cluster, workload

from dsforge.document import (
    estimate_document,
    plan_document,
)
from dsforge.planner import appraise, search

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"


def written(name: str) -> Any:
    """A published schema."""
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", ["llama-2-7b", "mixtral-8x7b"])
def test_an_estimate_document_is_valid_and_says_what_the_contract_says(model: str) -> None:
    """All keys that scripts rely on, terms as numbers, totals as intervals."""
    request = ask(model, cluster(2, nvme=DISK), workload(), zero_stage=3)
    document = json.loads(json.dumps(estimate_document(appraise(request)).model_dump(mode="json")))

    Draft202012Validator(written("estimate")).validate(document)
    memory, time = document["memory"], document["time"]

    assert document["model"]["name"] == model
    assert {"fits", "strategy", "cluster", "reasons"} <= set(document)
    assert set(memory["device_bytes"]) == {"low", "likely", "high"}
    assert set(memory["host_bytes"]) == {"load", "init", "step", "save"}
    assert all(isinstance(value, int) for value in memory["terms"].values())
    assert time["step_s"]["likely"] == pytest.approx(sum(time["terms"].values()))


def test_a_plan_document_is_valid_and_keeps_the_best_plans() -> None:
    """`--top 3` keeps three; losers carry strategy, rule and message."""
    found = search(ask("llama-2-13b", cluster(), workload()))
    document = json.loads(json.dumps(plan_document(found, 3).model_dump(mode="json")))

    Draft202012Validator(written("plan")).validate(document)

    assert len(document["plans"]) == 3
    assert set(document["rejected"][0]) == {"strategy", "rule", "message"}
    assert set(document["search"]) == {"candidates", "seconds"}
