"""SkyPilot: a task that runs on each node of a cluster which SkyPilot rents."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.errors import RenderError
from dsforge.plan import Plan
from dsforge.targets.node_script import NodeContext, job_name
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

# Catalog name -> name in SkyPilot's catalogs (skypilot 0.14, `sky show-gpus --all`).
ACCELERATORS = {
    "a10-24gb": "A10",
    "a10g-24gb": "A10G",
    "a100-40gb": "A100",
    "a100-80gb": "A100-80GB",
    "a100-80gb-pcie": "A100-80GB",
    "b200-180gb": "B200",
    "b300-288gb": "B300",
    "gh200-96gb": "GH200",
    "h100-80gb": "H100",
    "h100-80gb-pcie": "H100",
    "h200-141gb": "H200",
    "l4-24gb": "L4",
    "l40s-48gb": "L40S",
    "mi300x": "MI300X",
    "rtx-4090": "RTX4090",
    "rtx-a6000-48gb": "RTXA6000",
    "t4-16gb": "T4",
    "v100-16gb": "V100",
    "v100-32gb": "V100-32GB",
}


class SkyContext(NamedTuple):
    """Fields of for/skypilot/task.yaml.j2."""

    name: str
    nodes: int
    accelerators: str | None  # `A100-80GB:8`; none: a machine without any
    cpu_cores: int
    fast_network: bool


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The task, and what each node runs. Raises RenderError for a card without a name there."""
    cluster = plan.cluster
    card = ACCELERATORS.get(cluster.gpu.name)
    if card is None and not cluster.gpu.is_cpu:
        names = ", ".join(ACCELERATORS)
        raise RenderError(f"SkyPilot has no accelerator {cluster.gpu.name}", f"use one of {names}")
    context = SkyContext(
        name=job_name(plan),
        nodes=cluster.nodes,
        accelerators=card and f"{card}:{cluster.gpus_per_node}",
        cpu_cores=cluster.cpu_cores,
        fast_network=cluster.nodes > 1 and cluster.inter_node.is_rdma,
    )
    return (
        TargetFile("task.yaml", context),
        TargetFile("node.sh", NodeContext(), executable=True),
    )


def lost(_: TrainingSetup) -> tuple[str, ...]:
    """The hosts: SkyPilot rents machines and writes their addresses itself."""
    return ("the hosts of the hostfile: SkyPilot rents nodes of its own",)


TARGET = Target(
    name="skypilot",
    label="SkyPilot",
    kind="launcher",
    summary="task for `sky launch` and `sky jobs launch`",
    files=files,
    lost=lost,
    starts="any engine",
    source="skypilot sky/task.py, Task.from_yaml",
    proof="parsed by its own code",
    proved_by="tests/targets/test_foreign_code.py: sky.Task.from_yaml of skypilot 0.14; "
    "tests/launch/test_targets_nodes.py starts node.sh with the variables of two nodes",
)
