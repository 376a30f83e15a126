"""DeepSpeed's own launcher without ssh, and under Slurm; with pdsh it is `launch/deepspeed.sh`."""

from __future__ import annotations

from dsforge.plan import Plan
from dsforge.targets.node_script import NodeContext, on_nodes
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup


def _no_ssh(plan: Plan) -> tuple[TargetFile, ...]:
    """One script, called on every host."""
    return (TargetFile("launch.sh", on_nodes(plan, "deepspeed --no_ssh"), executable=True),)


def _slurm(plan: Plan) -> tuple[TargetFile, ...]:
    """The script of the job, and the program that DeepSpeed's Slurm runner can start."""
    context = on_nodes(plan, "deepspeed --launcher slurm")
    batch = context.script.batch._replace(
        path="for/deepspeed-slurm/job.sbatch",
        tasks=context.script.slots,
        cores=max(1, context.script.batch.cores // context.script.slots),
        how="DeepSpeed calls srun: one task a rank.",
    )
    context = context._replace(script=context.script._replace(batch=batch))
    return (
        TargetFile("job.sbatch", context, executable=True),
        TargetFile("rank.py", NodeContext()),
    )


def _lost(_: TrainingSetup) -> tuple[str, ...]:
    """Nothing: the ranks are those of the plan."""
    return ()


NO_SSH = Target(
    name="deepspeed-no-ssh",
    label="deepspeed --no_ssh",
    kind="launcher",
    summary="script for every host, without ssh between them",
    files=_no_ssh,
    lost=_lost,
    starts="deepspeed",
    source="DeepSpeed launcher/runner.py, --no_ssh",
    proof="launches",
    proved_by="tests/launch/test_targets_mpi.py: two hosts (network namespaces)",
)
SLURM = Target(
    name="deepspeed-slurm",
    label="deepspeed --launcher slurm",
    kind="launcher",
    summary="sbatch script; DeepSpeed calls srun, one task a rank",
    files=_slurm,
    lost=_lost,
    starts="deepspeed",
    source="DeepSpeed launcher/multinode_runner.py, SlurmRunner",
    proof="launches",
    proved_by="tests/launch/test_targets_slurm.py: Slurm 22.05, one node, two ranks",
)
