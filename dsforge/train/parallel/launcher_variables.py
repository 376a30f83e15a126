"""The number of a rank that an MPI launcher or srun has started, in the variables of torchrun.

mpirun and srun start one process for each rank and tell each its number in variables of their own.
DeepSpeed asks mpi4py for them; without this every such rank would train alone on the whole data.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from dsforge.errors import DsforgeError


class Variables(NamedTuple):
    """Names in which a launcher tells rank, rank on the node, ranks of the job and of the node."""

    launcher: str
    rank: str
    local_rank: str
    world_size: str
    local_world_size: str


# MPICH: src/pm/hydra (`PMI_RANK`, `MPI_LOCALRANKID`), which Intel MPI's Hydra derives from. srun's
# are of a step: the batch script of a job has none of them.
LAUNCHERS = (
    Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Variables("MPICH", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    Variables(
        "srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"
    ),
)
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def adopt_launcher_variables() -> None:
    """Set RANK and its kin where an MPI launcher or srun started this process as one of several.

    Raises DsforgeError where the ranks would not know where to meet.
    """
    if any(name in os.environ for name in NAMES[:3]):
        return
    for known in LAUNCHERS:
        values = [os.environ.get(name, "") for name in known[1:]]
        if values[2].isdecimal() and int(values[2]) > 1:
            _check_meeting_place(known.launcher, values[2])
            values[3] = values[3].partition("(")[0]  # `2(x4)` of Slurm: 2 on each of 4 nodes
            os.environ.update(dict(zip(NAMES, values, strict=True)))
            return


def _check_meeting_place(launcher: str, ranks: str) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        message = f"{launcher} started {ranks[:9]} ranks without {' and '.join(missing)}"
        hint = "export the address of the first host and a free port to all ranks"
        raise DsforgeError(message, hint)
