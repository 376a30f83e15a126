"""One probe, from its inputs to the cluster card: cluster, launch, findings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from dsforge.errors import DsforgeError
from dsforge.findings import Finding
from dsforge.hostfile import parse_hostfile
from dsforge.probe.card import card, card_yaml, described
from dsforge.probe.detect import cluster_file
from dsforge.probe.launch import Launcher, answered, usual_launcher
from dsforge.probe.messages import Answer, Question
from dsforge.probe.node import probe
from dsforge.probe.question import question_of, usual_question
from dsforge.probe.verdict import findings
from dsforge.reading.cluster import cluster_of
from dsforge.reading.files import ClusterFile, HostFile
from dsforge.reading.problems import validated
from dsforge.reading.source import parse_source, read_source, read_text
from dsforge.reading.stored import read_plan
from dsforge.specs import ClusterSpec


class ProbeJob(NamedTuple):
    """What is measured: a description, what it reads as, and for which plan."""

    name: str
    description: ClusterFile
    cluster: ClusterSpec
    question: Question
    folder: Path  # where the job is launched from


class Measured(NamedTuple):
    """A finished probe."""

    card: ClusterFile
    text: str
    findings: tuple[Finding, ...]


def probe_job(run: Path | None, *, hostfile: Path | None, cluster: Path | None) -> ProbeJob:
    """What the command line names; this machine where it names nothing. Raises DsforgeError."""
    if run is None:
        description = _description(hostfile, cluster)
        spec = _read(description)
        name = f"{spec.gpus} ranks on {spec.nodes} hosts" if hostfile or cluster else "this machine"
        return ProbeJob(name, description, spec, usual_question(spec), Path.cwd())
    if hostfile is not None:
        raise DsforgeError("a run folder has its own hostfile", "give the folder or `--hostfile`")
    plan = read_plan(run / "plan.json")
    description = described(plan.cluster)
    if cluster is not None:
        description = _without_measured(validated(ClusterFile, read_source(cluster)))
    return ProbeJob(str(run), description, _read(description), question_of(plan), run.resolve())


def measured(
    job: ProbeJob,
    *,
    launcher: Launcher | None,
    timeout_s: float,
    on_answer: Callable[[Answer], None],
) -> Measured:
    """The card of a cluster and what is wrong with it. Raises DsforgeError."""
    found = answered(
        job.cluster,
        job.question,
        job.folder,
        launcher=launcher or usual_launcher(job.cluster),
        timeout_s=timeout_s,
        on_answer=on_answer,
    )
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        file = card(job.description, job.cluster, found, taken)
    except ValidationError as error:
        what = (
            f"the measurements do not make a valid card ({error.error_count()} impossible values)"
        )
        raise DsforgeError(what, "measure again") from error
    return Measured(file, card_yaml(file), findings(_read(file), found))


def _description(hostfile: Path | None, cluster: Path | None) -> ClusterFile:
    """A cluster file, or this machine, on the hosts of a hostfile where one is given."""
    if cluster is not None:
        file = _without_measured(validated(ClusterFile, read_source(cluster)))
    else:
        file, _ = cluster_file(probe())
    if hostfile is None:
        return file
    hosts = parse_hostfile(read_text(hostfile), str(hostfile))
    listed = tuple(HostFile(address=host.address, slots=host.slots) for host in hosts)
    slots = min(host.slots for host in hosts)
    return file.model_copy(update={"hosts": listed, "nodes": None, "gpus_per_node": slots})


def _without_measured(file: ClusterFile) -> ClusterFile:
    """A description without the measured values of an older card."""
    return file.model_copy(update={"measured": None})


def _read(file: ClusterFile) -> ClusterSpec:
    """The cluster that a file means, read as `--cluster` will read it."""
    return cluster_of(parse_source(card_yaml(file), "card"))[0]
