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
from dsforge.specs.lora import (
    ALL_LINEAR,
    BITSANDBYTES,
    BITSANDBYTES_4_BIT,
    QLORA_BITS,
    AdapterTarget,
    BaseFormat,
    FrozenBits,
    LoraSpec,
    QuantStorage,
    SavedModule,
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
    LOW_BIT,
    DataShape,
    DataSpec,
    Method,
    MethodName,
    Optimizer,
    OptimizerStates,
    Precision,
    Workload,
)

__all__ = [
    "ALL_LINEAR",
    "BITSANDBYTES",
    "BITSANDBYTES_4_BIT",
    "FROZEN",
    "LOW_BIT",
    "QLORA_BITS",
    "SLURM_NAME",
    "SLURM_TIME",
    "AdapterTarget",
    "BaseFormat",
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
    "OptimizerStates",
    "Pace",
    "Position",
    "Precision",
    "QuantStorage",
    "RopeScaling",
    "RouterSpec",
    "SavedModule",
    "SlurmSpec",
    "Transport",
    "Workload",
]
