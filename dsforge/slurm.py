"""What a Slurm job is asked for beside its size: account, partition, time limit.

The values become `#SBATCH` lines of a script, so each is a word that no shell could read otherwise.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

SLURM_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,+@-]*$"
# The formats of `man sbatch`, `--time`.
SLURM_TIME = r"^([0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED)$"


class SlurmSpec(BaseModel):
    """What sbatch is told beside the size of the job; none: the default of the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    account: str | None = Field(
        default=None,
        pattern=SLURM_NAME,
        max_length=100,
        description="Account that `sbatch --account` is given.",
    )
    partition: str | None = Field(
        default=None, pattern=SLURM_NAME, max_length=200, description="`--partition`: one, or a,b."
    )
    time: str | None = Field(
        default=None,
        pattern=SLURM_TIME,
        max_length=20,
        description="`--time`, the limit: minutes, H:M:S, or D-H:M:S.",
    )
