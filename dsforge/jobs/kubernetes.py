"""Kubernetes: kubectl apply, get, logs and delete, on the manifest of `gen --for kubernetes`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from dsforge import process
from dsforge.errors import DsforgeError
from dsforge.jobs.job import MOST_BYTES, Job, State
from dsforge.jobs.place import Death, Part, Place, Seen, Wish, script_of
from dsforge.outside import UnreadableError, json_value, read_text

MANIFESTS = (
    "for/kubernetes/job.yaml",
    "for/kubeflow-trainer/job.yaml",
    "for/pytorchjob/job.yaml",
    "for/mpijob/job.yaml",
)
LIMIT_S = 60.0
MOST_LOG_BYTES = 10 << 20
# Kind -> resource of kubectl, and the label of its pods that has the name of the job.
RESOURCES = {
    "Job": ("job.batch", "job-name"),
    "TrainJob": ("trainjob.trainer.kubeflow.org", "jobset.sigs.k8s.io/jobset-name"),
    "PyTorchJob": ("pytorchjob.kubeflow.org", "training.kubeflow.org/job-name"),
    "MPIJob": ("mpijob.kubeflow.org", "training.kubeflow.org/job-name"),
}
# Reasons of a pod that its node ended (Kubernetes docs, "Disruptions", "Node-pressure Eviction").
LOST = {"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"}
ENDED: dict[str, State] = {  # by the type of a condition that is true
    "Complete": "finished",
    "Succeeded": "finished",
    "Failed": "failed",
}


def _kubectl(job_namespace: str | None, *words: str) -> process.Completed:
    if shutil.which("kubectl") is None:
        message = "`kubectl` is not on PATH"
        raise DsforgeError(message, "install it, and set a context (kubectl config use-context)")
    place = ("--namespace", job_namespace) if job_namespace else ()
    limit = f"--request-timeout={LIMIT_S:.0f}s"
    return process.run(("kubectl", limit, *place, *words), timeout_s=2 * LIMIT_S)


def _named(run: Path, manifest: str) -> tuple[str, str]:
    """Kind and name of the job in a manifest. Raises DsforgeError."""
    try:
        text = read_text(run / manifest, MOST_BYTES, pipes=False)
        documents = list(yaml.safe_load_all(text))
    except (UnreadableError, yaml.YAMLError, RecursionError) as error:
        raise DsforgeError(f"{run / manifest} cannot be read: {error}") from error
    for each in documents:
        if isinstance(each, dict) and each.get("kind") in RESOURCES:
            name = each["metadata"]["name"] if isinstance(each.get("metadata"), dict) else None
            if isinstance(name, str):
                return each["kind"], name
    raise DsforgeError(f"{run / manifest} has no job", f"one of {', '.join(RESOURCES)}")


def submit(run: Path, wish: Wish) -> Job:
    """Apply the manifest."""
    manifest = script_of(run, *MANIFESTS)
    _, name = _named(run, manifest)
    job = Job(
        place="kubernetes",
        id=name,
        script=manifest,
        submitted_at=time.time(),
        retries=wish.retries,
        attempt=wish.attempt,
        namespace=wish.namespace,
    )
    _remove_ended(run, job)
    _kubectl(job.namespace, "apply", "-f", str(run / manifest)).check("kubectl apply")
    return job


def _remove_ended(run: Path, job: Job) -> None:
    """Delete an earlier job of this name that has ended: what is applied again would not start.

    Raises DsforgeError where it has not ended.
    """
    seen = look(run, job)
    if seen.state == "cancelled":  # there is none
        return
    if seen.state not in ENDED.values():
        message = f"job {job.id} is {seen.state} in the cluster already"
        raise DsforgeError(message, f"kubectl delete -f {run / job.script}, or wait for its end")
    words = ("delete", _resource(run, job)[0], job.id, "--ignore-not-found", "--cascade=foreground")
    _kubectl(job.namespace, *words).check("kubectl delete")


def _resource(run: Path, job: Job) -> tuple[str, str]:
    """The resource of a job and the label of its pods."""
    if job.script not in MANIFESTS:
        raise DsforgeError(f"{job.script} is no manifest of dsforge", "submit the run again")
    return RESOURCES[_named(run, job.script)[0]]


def _document(done: process.Completed) -> Any:
    """The JSON document that kubectl printed. Raises DsforgeError where there is none."""
    try:
        return json_value(done.output[done.output.index("{") :])
    except (UnreadableError, ValueError) as error:
        raise DsforgeError(f"kubectl gave no JSON, but {done.output[:200]!a}") from error


def look(run: Path, job: Job) -> Seen:
    """The conditions of the job, and how many of its pods are active."""
    resource, _ = _resource(run, job)
    done = _kubectl(job.namespace, "get", resource, job.id, "--output=json")
    if done.code and "NotFound" in done.output:
        return Seen("cancelled", "the job was deleted")
    found = _document(done.check("kubectl get"))
    status = found.get("status") if isinstance(found, dict) else None
    seen = _seen(status if isinstance(status, dict) else {})
    return seen._replace(attempt=job.attempt)


def death(run: Path, job: Job) -> Death:
    """How the containers of its pods ended: by a node that was lost, by memory, or by a code."""
    _, label = _resource(run, job)
    words = ("get", "pods", f"--selector={label}={job.id}", "--output=json")
    found = _document(_kubectl(job.namespace, *words).check("kubectl get pods"))
    return _death([pod["status"] for pod in _records(found, "items") if "status" in pod])


def _death(statuses: list[Any]) -> Death:
    """What the statuses of the pods of a job mean together."""
    known = [status for status in statuses if isinstance(status, dict)]
    lost = {str(status.get("reason")) for status in known} & LOST
    for status in known:
        disrupted = [c for c in _records(status, "conditions") if c.get("status") == "True"]
        lost |= {str(c.get("reason")) for c in disrupted if c.get("type") == "DisruptionTarget"}
    states = [
        container["state"]["terminated"]
        for status in known
        for container in _records(status, "containerStatuses")
        if isinstance(container.get("state"), dict)
        and isinstance(container["state"].get("terminated"), dict)
    ]
    if any(state.get("reason") == "OOMKilled" for state in states):
        return Death(hopeless="OOMKilled: host memory; ask for more, or plan for less")
    if lost:
        return Death(lost=f"pod lost: {', '.join(sorted(lost))[:200]}")
    codes = [state.get("exitCode") for state in states]
    return Death(code=max((code for code in codes if isinstance(code, int)), default=1) or 1)


def _records(holder: object, key: str) -> list[dict[str, Any]]:
    """The records in a list of a document; empty where it has no such list."""
    listed = holder.get(key) if isinstance(holder, dict) else None
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _seen(status: dict[str, Any]) -> Seen:
    """What a status of Kubernetes means."""
    conditions = _records(status, "conditions")
    true = {str(c.get("type")): c for c in conditions if c.get("status") == "True"}
    for name, state in ENDED.items():
        if name in true:
            said = str(true[name].get("message") or true[name].get("reason") or "")
            return Seen(state, said[:300] if state == "failed" else "")
    if status.get("active") or "Running" in true:
        return Seen("running")
    return Seen("queued", "no pod is active")


def read(run: Path, job: Job, offset: int) -> Part:
    """The logs of all pods of the job, each line with its pod."""
    _, label = _resource(run, job)
    words = ("--tail=-1", "--prefix", "--max-log-requests=1000", "--ignore-errors")
    limit = f"--limit-bytes={MOST_LOG_BYTES}"
    done = _kubectl(job.namespace, "logs", f"--selector={label}={job.id}", *words, limit)
    text = done.output if done.code == 0 else ""
    begin = max(len(text) + offset, 0) if offset < 0 else offset
    return Part(text[begin:], max(len(text), begin))


def cancel(run: Path, job: Job) -> None:
    """Delete what was applied; pods get SIGTERM and their grace period."""
    _resource(run, job)
    words = ("delete", "--ignore-not-found", "--wait=false", "-f", str(run / job.script))
    _kubectl(job.namespace, *words).check("kubectl delete")


PLACE = Place("kubernetes", submit, look, read, cancel, death)
