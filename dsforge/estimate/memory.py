"""The memory ledger: named terms in bytes on the fullest rank, and host memory of one node."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN
from dsforge.units import Interval


class MemoryTerms(BaseModel):
    """Likely bytes on the fullest rank at the peak of a step, term by term."""

    model_config = FROZEN

    weights: int = Field(description="Parameters in the compute precision.")
    gradients: int = Field(description="Gradients, fp32 accumulation buffers included.")
    optimizer_state: int = Field(description="Master weights and optimizer moments.")
    activations: int = Field(description="Saved for backward, and the working set of one layer.")
    logits: int = Field(description="Logits, their fp32 copy and the gradient of the loss.")
    buffers: int = Field(description="ZeRO buckets, gathered and prefetched parameters.")
    framework: int = Field(description="Device context, NCCL, cuBLAS; not in torch's counters.")


class HostMemory(BaseModel):
    """Likely bytes of RAM on one node in each phase, all ranks of the node together."""

    model_config = FROZEN

    load: int
    init: int
    step: int
    save: int


class MemoryEstimate(BaseModel):
    """What one strategy needs, by the three counters that people read."""

    model_config = FROZEN

    terms: MemoryTerms
    allocated_bytes: Interval = Field(description="torch.cuda.max_memory_allocated.")
    reserved_bytes: Interval = Field(description="torch.cuda.max_memory_reserved.")
    device_bytes: Interval = Field(description="What nvidia-smi shows for the process.")
    host_bytes: HostMemory
    nvme_bytes: int = Field(description="Swapped state on one node's disk.")
    checkpoint_bytes: int = Field(description="One checkpoint with optimizer state, all ranks.")
