"""Slurm with requeue on the signal before the end, and with containers: srun and torchrun.

`launch/slurm.sbatch` of each run folder is the plain one; DeepSpeed's Slurm runner is another
target.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.launch import Script
from dsforge.targets.node_script import on_nodes
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup


class SlurmContext(NamedTuple):
    """Fields of for/slurm/job.sbatch.j2."""

    script: Script
    nvidia: bool
    amd: bool


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The script of the job."""
    library = plan.cluster.gpu.collectives
    script = on_nodes(plan, "Slurm").script
    batch = script.batch._replace(
        path="for/slurm/job.sbatch",
        signal="B:TERM@300",
        options=("--requeue", "--open-mode=append"),
    )
    script = script._replace(batch=batch)
    context = SlurmContext(script=script, nvidia=library == "NCCL", amd=library == "RCCL")
    return (TargetFile("job.sbatch", context, executable=True),)


def lost(_: TrainingSetup) -> tuple[str, ...]:
    """Nothing: Slurm chooses the hosts, as it does for launch/slurm.sbatch."""
    return ()


TARGET = Target(
    name="slurm",
    label="Slurm with requeue",
    kind="launcher",
    summary="sbatch script: requeue on the last signal, pyxis or apptainer",
    files=files,
    lost=lost,
    starts="any engine",
    source="man sbatch: --signal, --requeue; man scontrol: requeue",
    proof="launches",
    proved_by="tests/launch/test_targets_slurm.py: Slurm 22.05, one node, stopped and requeued; on "
    "DeepSpeed and plain torch; "
    "containers are not started there",
)
