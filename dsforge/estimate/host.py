"""RAM of one node by phase, and the size of a checkpoint.

What kills offloaded runs is the kernel, not CUDA: every rank of a node loads, pins and saves at the
same time. Pinned buffers are counted as torch's host allocator makes them, rounded up to a power of
two (`CachingHostAllocator`), unless the ranks run on the CPU, where nothing is pinned.
"""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, Field

from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.estimate.optimizer_bytes import optimizer_bytes_per_parameter
from dsforge.estimate.params import parameters, trained_parameters
from dsforge.estimate.quantised import quantised_elements, stored_bytes
from dsforge.estimate.states import States, shares
from dsforge.estimate.vision import frozen_parameters, trained_beside_adapters
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.traced import WholeConstant, maximum, minimum, named, next_power_of_two
from dsforge.units import GIB, MIB

PROCESS_BYTES = WholeConstant(
    3 * GIB,
    "process_bytes",
    "bytes",
    "estimate/host.py: process of a rank without its tensors: interpreter, CUDA, data loader",
)
SHARD_BYTES = WholeConstant(
    5 * 10**9, "shard_file_bytes", "bytes", "estimate/host.py: a file of a sharded checkpoint"
)
READING = "ZeRO-3 loads file by file, QLoRA tensor by tensor; otherwise each rank loads a copy"
PINNED = "states of all ranks of a node in RAM; page-locked buffers are powers of two"
CPU_PROCESS_BYTES = WholeConstant(
    256 * MIB,
    "process_bytes",
    "bytes",
    "estimate/host.py: of a CPU rank; its libraries are counted as device memory",
)


class HostMemory(BaseModel):
    """Likely bytes of RAM on one node in each phase, all ranks of the node together."""

    model_config = FROZEN

    load: int = Field(description="Loading the weights: one copy per rank, except under ZeRO-3.")
    init: int = Field(description="Building optimizer state and pinned buffers.")
    step: int = Field(description="Optimizer steps: offloaded states and gradients.")
    save: int = Field(
        description="Writing a checkpoint: under ZeRO-3 dsforge's config gathers a further copy "
        "of the weights; DeepSpeed's default saves shards."
    )

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
    ranks, idle = cluster.gpus_per_node, idle_bytes(cluster)
    weights = named(element_bytes(workload) * parameters(model), "weights_file_bytes", "bytes")
    own = strategy.runs_as.is_ours
    part = strategy.engine.reads_own_part or not own  # who cuts a model himself reads his part
    share = weights / (strategy.layout.model_ranks if part else 1)
    sharded = strategy.zero_stage == FULLY_SHARDED
    models = 2 if workload.has_reference_model else 1
    read = minimum(weights, SHARD_BYTES) if sharded else models * ranks * share
    if workload.is_quantised:  # packed tensor by tensor, on the device or for its shards in RAM
        packed = _packed_model_bytes(model, workload, strategy) if sharded else 0.0
        read = ranks * (minimum(weights, SHARD_BYTES) + packed)
    read = named(read, "read_bytes", "bytes", READING)
    rounding = 0.0 if cluster.gpu.is_cpu else _rounding(model, workload, strategy, kept)
    offloaded = named(ranks * (kept.host + rounding), "offloaded_to_host", "bytes", PINNED)
    step = idle + offloaded
    init = step + (read if offloaded else 0)
    if workload.is_quantised and sharded:  # a matrix leaves RAM as its shards come
        init = maximum(step, idle + read)
    saved = 0.0 if workload.is_quantised or not sharded else weights
    return HostMemory.model_construct(
        load=round(idle + read),
        init=round(init),
        step=round(step),
        save=round(step + (saved if own else 0)),
    )


def _packed_model_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes of a model whose matrices are quantised: each rank packs a whole one, then shards it.

    transformers does not build quantised models in ZeRO-3 partitions (`get_init_context`).
    """
    size, apart = element_bytes(workload), strategy.runs_as.expert_modules
    packed = quantised_elements(model, expert_modules=apart)
    whole = size * (parameters(model) - packed) + stored_bytes(workload) * packed
    return named(whole, "packed_model_bytes", "bytes")


def idle_bytes(cluster: ClusterSpec) -> int:
    """RAM of one node for each rank's process beside its tensors."""
    process = CPU_PROCESS_BYTES if cluster.gpu.is_cpu else PROCESS_BYTES
    return named(cluster.gpus_per_node * process, "idle_bytes", "bytes")


def load_copies_bytes(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> int:
    """RAM of one node that a trainer may hold more while it loads: a float32 model on each rank.

    Hugging Face builds the model on every rank before anything is sharded, in float32 unless a
    type is given, beside the weights of the file (`from_pretrained`); counters of a node show
    that. It is not asked where the config is dsforge's own, whose trainer loads as `load` says.
    """
    if workload.is_quantised or strategy.engine.reads_own_part:
        return 0
    copy = (FLOAT_BYTES + element_bytes(workload)) * parameters(model)
    copies = cluster.gpus_per_node * copy
    return round(named(copies, "load_copies_bytes", "bytes"))


def _rounding(model: ModelSpec, workload: Workload, strategy: Strategy, kept: States) -> float:
    """Bytes that page-locked buffers of a rank take beyond their contents."""
    if not kept.pinned:
        return 0.0
    if strategy.engine.states == "fp32_shards":
        return _pinned_rounding(_units(model, workload, strategy, kept.pinned[0]))
    return _pinned_rounding(kept.pinned) if strategy.runs_as.is_ours else 0.0  # off by default


def _units(
    model: ModelSpec, workload: Workload, strategy: Strategy, shards: float
) -> tuple[float, ...]:
    """Page-locked shards of FSDP: one for each layer and one for what is outside of them.

    FSDP1 pins a gradient beside each (torch distributed/fsdp/_flat_param.py,
    `init_flat_param_attributes`), FSDP2 the shards (_fully_shard/_fsdp_param.py).
    """
    size = FLOAT_BYTES if workload.trains_head else element_bytes(workload)
    outer = size * model.end_elements / shares(strategy).shared
    outer = minimum(shards, outer)
    units = (*(((shards - outer) / model.depth,) * model.depth), outer)
    return units * 2 if strategy.has_flat_parameters else units


def _pinned_rounding(pinned: tuple[float, ...]) -> float:
    """Bytes that rounding page-locked buffers up to powers of two costs one rank."""
    sizes = Counter(pinned)
    rounding = sum(often * (pinned_bytes(size) - size) for size, often in sizes.items())
    return named(rounding, "pinned_rounding_bytes", "bytes")


def checkpoint_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> int:
    """One checkpoint of all ranks: weights that train, their master weights and moments.

    Frozen weights stay in the model's own files, and dsforge and transformers save adapters alone.
    """
    trained = parameters(model) - frozen_parameters(model, workload)
    if workload.method == "lora" and workload.lora is not None:
        trained = trained_parameters(model, workload.lora)
        trained += trained_beside_adapters(model, workload)
    each = element_bytes(workload) + optimizer_bytes_per_parameter(workload, strategy)
    return round(each * trained)


def pinned_bytes(wanted: float) -> float:
    """Page-locked bytes really taken: the next power of two."""
    whole = round(wanted)
    return next_power_of_two(whole) if whole > MIB else wanted
