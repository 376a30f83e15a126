"""The three inputs of a plan: model, cluster, workload.

These are the resolved values: every choice is made, every name looked up, every quantity in its
base unit. What people write (GiB, names of cards and links, missing values) is read by
`reading` into them. They are frozen and travel inside `plan.json`, so a plan can be replayed
without the files it came from.
"""

from dsforge.specs.cluster import (
    SLURM_NAME,
    SLURM_TIME,
    Calibration,
    ClusterSpec,
    Collective,
    GpuSpec,
    Host,
    LinkKind,
    LinkSpec,
    MeasuredGpu,
    MeasuredLink,
    NvmeSpec,
    Pace,
    SlurmSpec,
    Transport,
)
from dsforge.specs.frozen import (
    FROZEN,
)
from dsforge.specs.model import (
    Kind,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    Norm,
    Position,
    RopeScaling,
    RouterSpec,
)
from dsforge.specs.workload import (
    ALL_LINEAR,
    QLORA_BITS,
    AdapterTarget,
    DataShape,
    DataSpec,
    FrozenBits,
    LoraSpec,
    Method,
    MethodName,
    Optimizer,
    Precision,
    SavedModule,
    Workload,
)

__all__ = [
    "ALL_LINEAR",
    "FROZEN",
    "QLORA_BITS",
    "SLURM_NAME",
    "SLURM_TIME",
    "AdapterTarget",
    "Calibration",
    "ClusterSpec",
    "Collective",
    "DataShape",
    "DataSpec",
    "FrozenBits",
    "GpuSpec",
    "Host",
    "Kind",
    "LinkKind",
    "LinkSpec",
    "LoraSpec",
    "MeasuredGpu",
    "MeasuredLink",
    "Method",
    "MethodName",
    "MlaSpec",
    "ModelSpec",
    "MoeSpec",
    "Norm",
    "NvmeSpec",
    "Optimizer",
    "Pace",
    "Position",
    "Precision",
    "RopeScaling",
    "RouterSpec",
    "SavedModule",
    "SlurmSpec",
    "Transport",
    "Workload",
]
