"""MPI as a launcher: Open MPI and MPICH by their mpirun, Intel MPI through `deepspeed --launcher`.

With mpirun itself no DeepSpeed is needed, so these scripts start plain torch too. DeepSpeed would
start MPICH's ranks through `launcher_helper.py`, which ends with code 0 however a rank has ended
(0.19.8); a failed run would count as finished.
"""

from __future__ import annotations

from dsforge.plan import Plan
from dsforge.targets.node_script import on_nodes
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup


def _lost(_: TrainingSetup) -> tuple[str, ...]:
    """Nothing: the ranks are those of the plan, on the hosts of the hostfile."""
    return ()


def _openmpi(plan: Plan) -> tuple[TargetFile, ...]:
    """One script, called on the first host."""
    return (TargetFile("launch.sh", on_nodes(plan, "OpenMPI"), executable=True),)


def _mpich(plan: Plan) -> tuple[TargetFile, ...]:
    """One script, called on the first host."""
    return (TargetFile("launch.sh", on_nodes(plan, "MPICH"), executable=True),)


def _intel(plan: Plan) -> tuple[TargetFile, ...]:
    """One script, called on the first host."""
    return (TargetFile("launch.sh", on_nodes(plan, "Intel MPI"), executable=True),)


OPENMPI = Target(
    name="openmpi",
    label="OpenMPI",
    kind="launcher",
    summary="script with `mpirun` of Open MPI",
    files=_openmpi,
    lost=_lost,
    starts="any engine",
    source="Open MPI's man mpirun: --hostfile, -x; OMPI_COMM_WORLD_RANK",
    proof="launches",
    proved_by="tests/launch/test_targets_mpi.py: Open MPI 4.1 on one host, and on two by ssh; on "
    "DeepSpeed and plain torch",
)
MPICH = Target(
    name="mpich",
    label="MPICH",
    kind="launcher",
    summary="script with `mpirun` of MPICH",
    files=_mpich,
    lost=_lost,
    starts="any engine",
    source="MPICH's Hydra: PMI_RANK, MPI_LOCALRANKID",
    proof="launches",
    proved_by="tests/launch/test_targets_mpi.py: MPICH 4.0 on one host, and on two by ssh; on "
    "DeepSpeed and plain torch",
)
INTEL = Target(
    name="intel-mpi",
    label="Intel MPI",
    kind="launcher",
    summary="script with `deepspeed --launcher impi`",
    files=_intel,
    lost=_lost,
    starts="deepspeed",
    source="DeepSpeed launcher/multinode_runner.py, IMPIRunner",
    proved_by="tests/launch/test_targets_mpi.py: ranks are started by MPICH's mpirun, which takes "
    "the same words; Intel's own was not at hand",
)
