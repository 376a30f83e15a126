"""The machine as the cluster that predictions are made for, and what a record says of it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import dsforge
from dsforge.errors import DsforgeError
from dsforge.probe.detect import cluster_file
from dsforge.probe.node import probe
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import Source
from dsforge.specs import ClusterSpec
from dsforge.units import GIB

DRY_CARD_BYTES = GIB  # what a CPU rank may allocate in a dry run; more is "out of memory"
PACKAGES = ("torch", "deepspeed", "transformers", "peft", "pydantic", "numpy")
# Not where the machine stands in a network, nor its disks: results are for everybody.
PRIVATE = {"name": "", "hosts": (), "nodes": 1, "interface": None, "nvme": None}


def this_machine(gpus: int | None) -> ClusterSpec:
    """The GPUs of this machine, or the first so many. Raises DsforgeError where there are none."""
    facts = probe()
    if not facts.gpus:
        why = facts.gpu_note or "the driver lists none"
        hint = "run it where there is one; --dry-run proves the way on CPU ranks, --list shows it"
        raise DsforgeError(f"no NVIDIA GPU here: {why}", hint)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(facts.gpus) if shown is None else len([word for word in shown.split(",") if word])
    if not 1 <= (gpus or present) <= present:
        raise DsforgeError(f"--gpus (={gpus}) must lie in 1..{present}, the GPUs that are visible")
    found = facts.model_copy(update={"gpus": facts.gpus[: gpus or present]})
    return _cluster(cluster_file(found)[0].model_copy(update=PRIVATE))


def cpu_ranks(ranks: int | None) -> ClusterSpec:
    """CPU ranks with a little memory each, for a dry run."""
    facts = probe().model_copy(update={"gpus": (), "gpu_note": ""})
    file = cluster_file(facts)[0].model_copy(update=PRIVATE)
    cluster = _cluster(file)
    card = cluster.gpu.model_copy(update={"memory_bytes": DRY_CARD_BYTES})
    return cluster.model_copy(update={"gpu": card, "gpus_per_node": ranks or cluster.gpus_per_node})


def named_cluster(gpu: str, gpus: int | None) -> ClusterSpec:
    """One node of a card in the catalog. Raises SpecError for a name that is not there."""
    values = {"gpu": gpu, "gpus_per_node": gpus or 1, "nodes": 1}
    return cluster_of(Source("--gpu", values))[0]


def _cluster(file: Any) -> ClusterSpec:
    """The cluster that `dsforge plan --cluster` would read."""
    return cluster_of(Source("this machine", file.model_dump(mode="json", exclude_none=True)))[0]


def hardware_of(cluster: ClusterSpec) -> dict[str, Any]:
    """What a record says of the machine, in general words."""
    return {
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "cpu_cores": cluster.cpu_cores,
        "host_memory_gib": round(cluster.host_memory_bytes / GIB, 1),
        "kernel": platform.release().split("-")[0],
        "architecture": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Versions of everything that has a say in memory or time; `absent` where not installed."""
    found = {"python": platform.python_version(), "dsforge": dsforge.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def slug(cluster: ClusterSpec) -> str:
    """The machine in a file name: `h200-141gb-x1`."""
    words = "".join(c if c.isalnum() else "-" for c in cluster.gpu.name.lower())
    return f"{words}-x{cluster.gpus}"
