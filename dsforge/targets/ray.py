"""Ray: a cluster config of the hosts, and a script with Ray Train that starts each node's ranks.

One worker of Ray Train stands for a node and starts `launch/torchrun.sh`: the ranks need a process
each, with signal handlers of their own, and Ray runs a training function in a thread.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.targets.node_script import addresses, job_name, refuse_selected
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

FAILURES = 3  # how often Ray starts the workers again; each start resumes


class RayContext(NamedTuple):
    """Fields of the files of for/ray."""

    name: str
    nodes: int
    slots: int
    gpu: bool
    failures: int
    head: str
    workers: tuple[str, ...]
    worker_count: int
    ssh_user: str


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The cluster and the script."""
    refuse_selected(plan, "Ray")
    cluster, (head, *workers) = plan.cluster, addresses(plan)
    context = RayContext(
        name=job_name(plan),
        nodes=cluster.nodes,
        slots=cluster.gpus_per_node,
        gpu=not cluster.gpu.is_cpu,
        failures=FAILURES,
        head=head,
        workers=tuple(workers),
        worker_count=cluster.nodes - 1,
        ssh_user=cluster.ssh_user or "root",
    )
    return (TargetFile("cluster.yaml", context), TargetFile("start.py", context))


def lost(_: TrainingSetup) -> tuple[str, ...]:
    """Nothing: Ray's workers start the ranks of the plan."""
    return ()


TARGET = Target(
    name="ray",
    label="Ray Train",
    kind="launcher",
    summary="cluster config for `ray up`, and a script for `ray job submit`",
    files=files,
    lost=lost,
    starts="any engine",
    source="ray python/ray/autoscaler/ray-schema.json; ray.train.torch.TorchTrainer",
    proof="launches",
    proved_by="tests/launch/test_targets_nodes.py: start.py with two ranks on one host, Ray 2.60; "
    "tests/targets/test_foreign_code.py: its own check of cluster.yaml",
)
