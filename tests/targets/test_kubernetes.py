"""Manifests, read by the models of the published clients: no field is unknown or missing.

A model drops what it does not know, so what it gives back is compared with what was written.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from folders import CLUSTERS, plan_on, texts
from kubeflow.training import models as training
from kubeflow_trainer_api import models as trainer
from kubernetes import client

# Fields of MPIJob's spec beside the pods, v2beta1: kubeflow/mpi-operator,
# manifests/base/kubeflow.org_mpijobs.yaml at caa3c47 (Apache-2.0).
MPI_SPEC = {
    "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
    "mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
    "slotsPerWorker": int,
    "sshAuthMountPath": str,
    "runLauncherAsWorker": bool,
}
MPI_POLICY = {"cleanPodPolicy": {"None", "Running", "All"}, "backoffLimit": int}
NAMES = ("kubernetes", "pytorchjob", "kubeflow-trainer", "mpijob")


class Answer:
    """JSON as the client's reader takes it."""

    def __init__(self, document: Any) -> None:
        self.data = json.dumps(document)


def through(document: dict[str, Any], kind: str, models: Any = None) -> dict[str, Any]:
    """A document as the models of a generated client read it and write it again."""
    api = client.ApiClient()
    for name in dir(models or client):
        if name[0].isupper():
            setattr(client.models, name, getattr(models or client, name))
    read = api.deserialize(Answer(document), kind)
    found: dict[str, Any] = api.sanitize_for_serialization(read)
    return found


def pods(document: Any) -> list[dict[str, Any]]:
    """All pod templates in a document."""
    if isinstance(document, list):
        return [pod for each in document for pod in pods(each)]
    if not isinstance(document, dict):
        return []
    own = [document["template"]] if "containers" in str(document.get("template", "")) else []
    own = [each for each in own if "containers" in each.get("spec", {})]
    return own + [pod for value in document.values() for pod in pods(value)]


def documents(name: str, cluster: str) -> list[dict[str, Any]]:
    """The documents of a target's manifest."""
    return list(yaml.safe_load_all(texts(name, plan_on(CLUSTERS[cluster]))["job.yaml"]))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", NAMES)
def test_pods_are_those_of_kubernetes(name: str, cluster: str) -> None:
    """Each pod template is one of core/v1, and limits what its devices need."""
    found = pods(documents(name, cluster))

    assert found
    for pod in found:
        assert through(pod, "V1PodTemplateSpec") == pod
    with_memory = [pod for pod in found if "shm" in str(pod)]
    assert with_memory
    for pod in with_memory:
        (shm,) = [v for v in pod["spec"]["volumes"] if v["name"] == "shm"]
        assert shm["emptyDir"]["medium"] == "Memory"
        asked = pod["spec"]["containers"][0]["resources"].get("limits", {})
        assert bool(asked) != CLUSTERS[cluster].gpu.is_cpu


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_plain_job(cluster: str) -> None:
    """A headless service whose name the pods have as subdomain, and one pod a node."""
    service, job = documents("kubernetes", cluster)

    assert through(service, "V1Service") == service
    assert through(job, "V1Job") == job
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == CLUSTERS[cluster].nodes


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_pytorch_job(cluster: str) -> None:
    """A master and a worker for each further node."""
    (job,) = documents("pytorchjob", cluster)
    replicas = job["spec"]["pytorchReplicaSpecs"].values()

    assert through(job, "KubeflowOrgV1PyTorchJob", training) == job
    assert sum(each["replicas"] for each in replicas) == CLUSTERS[cluster].nodes


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_train_job(cluster: str) -> None:
    """The runtime and the job that names it."""
    runtime, job = documents("kubeflow-trainer", cluster)
    read = trainer.TrainerV1alpha1TrainingRuntime.from_dict(runtime)
    asked = trainer.TrainerV1alpha1TrainJob.from_dict(job)

    assert read is not None
    assert asked is not None
    assert read.to_dict() == runtime
    assert asked.to_dict() == job
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"]["numNodes"] == CLUSTERS[cluster].nodes


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_mpi_job(cluster: str) -> None:
    """Fields and values of the definition; as many ranks as the plan has."""
    (job,) = documents("mpijob", cluster)
    spec = dict(job["spec"])
    replicas = spec.pop("mpiReplicaSpecs")
    policy = spec.pop("runPolicy")
    on = CLUSTERS[cluster]
    command = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]

    assert job["apiVersion"] == "kubeflow.org/v2beta1"
    for values, known in ((spec, MPI_SPEC), (policy, MPI_POLICY)):
        for key, value in values.items():
            kind = known[key]
            assert value in kind if isinstance(kind, set) else type(value) is kind
    assert replicas.keys() == {"Launcher", "Worker"}
    assert replicas["Worker"]["replicas"] * spec["slotsPerWorker"] == on.gpus
    assert command[command.index("-n") + 1] == str(on.gpus)
