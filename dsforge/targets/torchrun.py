"""torchrun with its elastic agent: nodes may leave and come back while the global batch is kept.

A restarted run of `dsforge train` keeps the global batch and changes the accumulation, which needs
a batch that the ranks divide. torchrun has one range of nodes, so the range is the longest one
below the planned number in which every count divides it.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from dsforge.constraints import listed
from dsforge.plan import Plan
from dsforge.render.launch import Script
from dsforge.targets.node_script import job_name, on_nodes
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup, setup_of

RESTARTS = 10  # lost hosts in one run; torchrun's own default is 0; MAX_RESTARTS replaces it


class ElasticContext(NamedTuple):
    """Fields of for/torchrun-elastic/launch.sh.j2."""

    script: Script
    nodes: str  # `1:4`
    listed: str
    batch: int
    restarts: int
    name: str  # of the rendezvous


def whole_counts(setup: TrainingSetup) -> tuple[int, ...]:
    """Numbers of nodes up to the planned one on which whole groups share the global batch."""
    nodes, each, batch = setup.nodes, setup.gpus_per_node, setup.effective_batch_size
    if nodes is None or each is None or batch is None:
        return ()
    model_ranks = (
        setup.tensor_parallel_size * setup.pipeline_parallel_size * setup.context_parallel_size
    )
    groups = lcm(setup.shard_group or 1, setup.expert_parallel_size)  # whole ones of replicas
    return tuple(
        count
        for count in range(1, nodes + 1)
        if count * each % (model_ranks * groups) == 0 and batch % (count * each // model_ranks) == 0
    )


def _range(setup: TrainingSetup) -> tuple[int, ...]:
    """The longest run of such counts that ends with the planned one."""
    whole = set(whole_counts(setup))
    last = setup.nodes or 1
    first = last
    while first - 1 in whole:
        first -= 1
    return tuple(range(first, last + 1))


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """One script, called on every host."""
    setup, start = setup_of(plan), on_nodes(plan, "torchrun")
    counts = _range(setup)
    context = ElasticContext(
        script=start.script,
        nodes=f"{counts[0]}:{counts[-1]}",
        listed=listed(counts),
        batch=plan.strategy.global_batch_size,
        restarts=RESTARTS,
        name=job_name(plan),
    )
    return (TargetFile("launch.sh", context, executable=True),)


def lost(setup: TrainingSetup) -> tuple[str, ...]:
    """Numbers of nodes that would break the global batch, or lie behind one that does."""
    left_out = tuple(n for n in range(1, setup.nodes or 1) if n not in _range(setup))
    if not left_out:
        return ()
    batch = setup.effective_batch_size
    reason = (
        f"the range of torchrun has no gaps, and a global batch of {batch} and the groups of ranks "
        "that share a model stay whole in it"
    )
    return (f"{listed(left_out)} of {setup.nodes} nodes: {reason}",)


TARGET = Target(
    name="torchrun-elastic",
    label="torchrun, elastic",
    kind="launcher",
    summary="script with `torchrun --nnodes MIN:MAX --rdzv-backend c10d`",
    files=files,
    lost=lost,
    starts="any engine",
    source="torch/distributed/run.py, torch.distributed.elastic",
    proof="launches",
    proved_by="tests/launch/test_targets_elastic.py: two agents, one is killed and joins again, on "
    "FSDP2, DDP, ZeRO-1 of torch and DeepSpeed",
)
