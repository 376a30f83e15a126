"""Files of launchers against published schemas: Compose, SageMaker's service model."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml
from botocore.session import Session
from botocore.validate import ParamValidator
from folders import CLUSTERS, plan_on, texts

COMPOSE = json.loads(
    (files("check_jsonschema.builtin_schemas") / "vendor/compose-spec.json").read_text()
)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_compose(cluster: str) -> None:
    """Valid for the schema; shared memory, pinned memory and devices are asked for."""
    on = CLUSTERS[cluster]
    document = yaml.safe_load(texts("docker-compose", plan_on(on))["compose.yaml"])
    service = document["services"]["train"]
    jsonschema.validate(document, COMPOSE)
    (memory,) = [service["shm_size"]]

    assert memory == f"{on.gpus_per_node}gb"
    assert service["ulimits"]["memlock"] == -1
    assert ("NODE_RANK" in service["environment"]) == (on.nodes > 1)
    assert ("deploy" in service) == (on.gpu.collectives == "NCCL")


def test_the_schema_refuses_what_compose_does_not_know() -> None:
    """The schema is one that can fail."""
    document = yaml.safe_load(
        texts("docker-compose", plan_on(CLUSTERS["infiniband"]))["compose.yaml"]
    )
    document["services"]["train"]["shm_sise"] = "1gb"

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, COMPOSE)


def report_of(document: dict[str, Any]) -> str:
    """What botocore says of a CreateTrainingJob request before it is sent; empty: nothing."""
    model = Session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    said: str = ParamValidator().validate(document, model.input_shape).generate_report()
    types = model.input_shape.members["ResourceConfig"].members["InstanceType"].enum
    kind = document["ResourceConfig"]["InstanceType"]
    return said + ("" if kind in types else f"unknown instance {kind}")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_sagemaker(cluster: str) -> None:
    """Botocore takes the request; a card without an instance is refused with those there are."""
    found = texts("sagemaker", plan_on(CLUSTERS[cluster]))
    if CLUSTERS[cluster].gpu.name in {"cpu", "mi300x", "gaudi-2"} or cluster == "many":
        assert found == {}
        return
    document = json.loads(found["training_job.json"])

    assert report_of(document) == ""
    assert document["ResourceConfig"]["InstanceCount"] == CLUSTERS[cluster].nodes


def test_every_instance_of_the_table_exists() -> None:
    """Each row is an instance type that the service model has."""
    from dsforge.targets.sagemaker import INSTANCES

    document = json.loads(texts("sagemaker", plan_on(CLUSTERS["no-hosts"]))["training_job.json"])
    for kind in INSTANCES.values():
        document["ResourceConfig"]["InstanceType"] = kind
        assert report_of(document) == ""
