"""Hugging Face accelerate: `accelerate launch --config_file`, with the run folder's ds_config.

accelerate refuses to repeat what a `deepspeed_config_file` says (`mixed_precision`, ZeRO stage,
accumulation), so the file holds machines and ports only. Without DeepSpeed it starts the ranks with
torchrun, and train.yaml has the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.job import DS_CONFIG
from dsforge.targets.node_script import addresses
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup
from dsforge.zero_stages import FULLY_SHARDED


class AccelerateContext(NamedTuple):
    """Fields of for/accelerate/accelerate.yaml.j2."""

    ds_config: str | None  # none: DeepSpeed does not train
    nodes: int
    multi_node: bool
    ranks: int
    gathered_at_load: bool
    address: str


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The one config of accelerate."""
    cluster = plan.cluster
    context = AccelerateContext(
        ds_config=DS_CONFIG if plan.strategy.engine.has_zero_stages else None,
        nodes=cluster.nodes,
        multi_node=cluster.nodes > 1,
        ranks=cluster.nodes * cluster.gpus_per_node,
        gathered_at_load=plan.strategy.zero_stage == FULLY_SHARDED,
        address=addresses(plan)[0] if cluster.nodes > 1 else "127.0.0.1",
    )
    return (TargetFile("accelerate.yaml", context),)


def lost(setup: TrainingSetup) -> tuple[str, ...]:
    """What a script of your own has not under accelerate; `dsforge train` has all."""
    if setup.pipeline_parallel_size > 1:
        size = setup.pipeline_parallel_size
        return (f"pipeline_parallel_size {size}: scripts of your own have no pipeline there",)
    return ()


TARGET = Target(
    name="accelerate",
    label="Hugging Face accelerate",
    kind="launcher",
    summary="config of `accelerate launch`",
    files=files,
    lost=lost,
    starts="any engine",
    source="accelerate commands/config/config_args.py, ClusterConfig",
    proof="launches",
    proved_by="tests/launch/test_targets_mpi.py: accelerate 1.15, two ranks on one host, on "
    "DeepSpeed and plain torch",
)
