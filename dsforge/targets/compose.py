"""Docker Compose on several hosts: the same file on each, which starts the ranks of that node."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.targets.node_script import refuse_selected, shared_memory_gib
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

GRACE_S = 660  # after SIGTERM: the ranks have DSFORGE_GRACE_S, 600 s, and then a minute to end


class ComposeContext(NamedTuple):
    """Fields of for/docker-compose/compose.yaml.j2."""

    multi_node: bool
    slots: int
    nvidia: bool
    amd: bool
    gaudi: bool
    rdma: bool
    shared_memory_gib: int
    grace_s: int


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """One file. Raises RenderError where the job may use chosen devices only."""
    refuse_selected(plan, "Docker Compose")
    cluster = plan.cluster
    library = cluster.gpu.collectives
    context = ComposeContext(
        multi_node=cluster.nodes > 1,
        slots=cluster.gpus_per_node,
        nvidia=library == "NCCL",
        amd=library == "RCCL",
        gaudi=cluster.gpu.is_gaudi,
        rdma=cluster.nodes > 1 and cluster.inter_node.is_rdma,
        shared_memory_gib=shared_memory_gib(plan),
        grace_s=GRACE_S,
    )
    return (TargetFile("compose.yaml", context),)


def lost(setup: TrainingSetup) -> tuple[str, ...]:
    """Compose knows one host: it does not start the others."""
    if (setup.nodes or 1) > 1:
        return (f"{setup.nodes} hosts at once: Compose starts one, so call it on each",)
    return ()


TARGET = Target(
    name="docker-compose",
    label="Docker Compose",
    kind="launcher",
    summary="compose file that each host starts",
    files=files,
    lost=lost,
    starts="any engine",
    source="compose-spec/compose-spec schema/compose-spec.json",
    proof="published schema",
    proved_by="tests/targets/test_target_schemas.py: schema of the Compose Specification; "
    "tests/launch/test_targets_nodes.py starts its command for two hosts",
)
