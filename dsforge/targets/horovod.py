"""Horovod: a launch line for a script of your own. Each rank holds the whole model."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.launch import SSH_PORT
from dsforge.targets.node_script import addresses, refuse_selected
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup


class HorovodContext(NamedTuple):
    """Fields of for/horovod/launch.sh.j2."""

    ranks: int
    hosts: str  # `10.0.0.1:8,10.0.0.2:8`
    interface: str | None
    ssh_port: int | None  # none: the usual one
    one_node: bool
    lost: tuple[str, ...]


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """One script, called on the first host."""
    from dsforge.training_setup import setup_of

    refuse_selected(plan, "Horovod")
    slots = plan.cluster.gpus_per_node
    context = HorovodContext(
        ranks=plan.cluster.gpus,
        hosts=",".join(f"{host}:{slots}" for host in addresses(plan)),
        interface=plan.cluster.interface,
        ssh_port=None if plan.cluster.ssh_port == SSH_PORT else plan.cluster.ssh_port,
        one_node=plan.cluster.nodes == 1,
        lost=lost(setup_of(plan)),
    )
    return (TargetFile("launch.sh", context, executable=True),)


def lost(setup: TrainingSetup) -> tuple[str, ...]:
    """All but data parallelism on whole replicas."""
    found = {
        f"ZeRO stage {setup.zero_stage}: each rank holds all states": bool(setup.zero_stage),
        f"tensor_parallel_size {setup.tensor_parallel_size}": setup.tensor_parallel_size > 1,
        f"pipeline_parallel_size {setup.pipeline_parallel_size}": setup.pipeline_parallel_size > 1,
        f"context_parallel_size {setup.context_parallel_size}": setup.context_parallel_size > 1,
        f"expert_parallel_size {setup.expert_parallel_size}": setup.expert_parallel_size > 1,
        f"offload of optimizer states to {setup.offload_optimizer}": (
            setup.offload_optimizer != "none"
        ),
        f"offload of parameters to {setup.offload_parameters}": setup.offload_parameters != "none",
        "batch sizes, precision and optimizer: your script sets them": True,
    }
    return tuple(what for what, present in found.items() if present)


TARGET = Target(
    name="horovod",
    label="Horovod",
    kind="launcher",
    summary="`horovodrun` line for a Horovod script of your own",
    files=files,
    lost=lost,
    source="horovod/runner/launch.py; Horovod has no sharding of states",
    proved_by="shellcheck alone: horovodrun was not at hand",
)
