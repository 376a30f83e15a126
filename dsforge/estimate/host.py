"""RAM of one node by phase, and the size of a checkpoint.

What kills offloaded runs is the kernel, not CUDA: every rank of a node loads, pins and saves at the
same time. Pinned buffers are counted as torch's host allocator makes them, rounded up to a power of
two (`CachingHostAllocator`), unless the ranks run on the CPU, where nothing is pinned.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.params import lora_parameters, parameters
from dsforge.estimate.states import States, optimizer_bytes_per_parameter
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.units import GIB, MIB

PROCESS_BYTES = 3 * GIB  # one rank's process beside its tensors: interpreter, CUDA, data loader
SHARD_BYTES = 5 * 10**9  # a file of a sharded checkpoint; under ZeRO-3 one rank reads one by one
CPU_PROCESS_BYTES = 256 * MIB  # of a CPU rank; its libraries are counted on the rank itself


class HostMemory(BaseModel):
    """Likely bytes of RAM on one node in each phase, all ranks of the node together."""

    model_config = FROZEN

    load: int = Field(description="Reading the weights: each rank its own copy, unless ZeRO-3.")
    init: int = Field(description="Building optimizer state and pinned buffers.")
    step: int = Field(description="Optimizer steps: offloaded states and gradients.")
    save: int = Field(description="Writing a checkpoint: one gathered copy of the weights more.")

    @property
    def peak_phase(self) -> str:
        """The phase that needs the most."""
        return max(self, key=lambda phase: int(phase[1]))[0]

    @property
    def peak(self) -> int:
        """Bytes in that phase: what a node must have."""
        return max(self.load, self.init, self.step, self.save)


def host_memory(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy, *, kept: States
) -> HostMemory:
    """RAM of one node in each phase."""
    ranks = cluster.gpus_per_node
    process = CPU_PROCESS_BYTES if cluster.gpu.is_cpu else PROCESS_BYTES
    idle = ranks * process
    weights = element_bytes(workload) * parameters(model)
    share = weights / (strategy.layout.model_ranks if strategy.engine.reads_own_part else 1)
    sharded = strategy.zero_stage == FULLY_SHARDED
    read = min(weights, SHARD_BYTES) if sharded else ranks * share
    if workload.in_4_bits:  # packed on the device, tensor by tensor
        read = ranks * min(weights, SHARD_BYTES)
    rounding = 0.0
    if not cluster.gpu.is_cpu:
        rounding = sum(pinned_bytes(wanted) - wanted for wanted in kept.pinned)
    offloaded = ranks * (kept.host + rounding)
    step = idle + offloaded
    return HostMemory.model_construct(
        load=round(idle + read),
        init=round(step + (read if offloaded else 0)),
        step=round(step),
        save=round(step + (weights if sharded else 0)),
    )


def checkpoint_bytes(model: ModelSpec, workload: Workload) -> int:
    """One checkpoint of all ranks: weights (QLoRA: of adapters), master weights and moments."""
    weights = trained = parameters(model)
    if workload.method == "lora" and workload.lora is not None:
        trained = lora_parameters(model, workload.lora)
        weights = trained + (0 if workload.in_4_bits else weights)
    size = element_bytes(workload)
    return size * weights + optimizer_bytes_per_parameter(workload) * trained


def pinned_bytes(wanted: float) -> float:
    """Page-locked bytes really taken: the next power of two."""
    whole = round(wanted)
    return float(1 << (whole - 1).bit_length()) if whole > MIB else wanted
