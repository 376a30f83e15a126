"""The memory ledger: named terms in bytes on the fullest rank, and host memory of one node.

The peak is the fullest of four moments of a step: at the loss, with a layer at work, at the end of
backward, at the optimizer's step. Each part is counted from the source of the engines: saved
tensors (`activations.py`), states (`states.py`), stages (`shard.py`). The few constants below were
fitted on published peaks; `benchmarks/published/memory.md` shows the error by source, and a test
holds it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from dsforge.engines import Held
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.host import HostMemory
from dsforge.estimate.loss import NO_HEAD, head_bytes, least_head_bytes
from dsforge.estimate.peak import Footprint, Peak
from dsforge.estimate.quantised import dequantised_bytes, unpacked_layer_bytes
from dsforge.estimate.stage_activations import (
    saved_token_bytes,
    waiting_token_bytes,
    working_token_bytes,
)
from dsforge.estimate.states import Load
from dsforge.estimate.step_blocks import step_block_bytes
from dsforge.estimate.unmeasured import errors_of
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Batching, Strategy
from dsforge.traced import TRACED, Constant, label, lifted, maximum, minimum, named
from dsforge.units import GIB, Interval


class MemoryTerms(BaseModel):
    """Likely bytes on the fullest rank at the peak of a step, term by term."""

    model_config = FROZEN

    weights: int = Field(description="Parameters as stored: compute precision, or quantised.")
    gradients: int = Field(description="Gradients, fp32 accumulation buffers included.")
    optimizer_state: int = Field(description="Master weights and optimizer moments.")
    activations: int = Field(description="Saved for backward, and the working set of one layer.")
    logits: int = Field(description="Logits, their fp32 copy and the gradient of the loss.")
    buffers: int = Field(
        description="ZeRO buckets, gathered, prefetched and dequantised parameters."
    )
    framework: int = Field(description="Device context, NCCL, cuBLAS; not in torch's counters.")


class MemoryEstimate(BaseModel):
    """What one strategy needs, by the three counters that people read."""

    model_config = FROZEN

    terms: MemoryTerms = Field(description="Likely bytes on the fullest rank, by memory term.")
    allocated_bytes: Interval = Field(
        description="Peak of `torch.cuda.max_memory_allocated` on the fullest rank, bytes."
    )
    reserved_bytes: Interval = Field(
        description="Peak of `torch.cuda.max_memory_reserved` on the fullest rank, bytes."
    )
    device_bytes: Interval = Field(
        description="Peak that nvidia-smi shows for the process on the fullest rank, bytes."
    )
    host_bytes: HostMemory = Field(description="Likely RAM of one node, by phase.")
    load_copies_bytes: int = Field(
        default=0,
        description="RAM of one node that each rank's float32 model and the file that it was read "
        "from may take more, bytes; 0 where the config is dsforge's own.",
    )
    nvme_bytes: int = Field(description="Bytes of offloaded states on one node's disk.")
    checkpoint_bytes: int = Field(
        description="Bytes of one checkpoint with optimizer state, all ranks; of LoRA: without "
        "the frozen weights, which stay in the model's own files."
    )


FITTED = "estimate/memory.py: fitted on published peaks (benchmarks/published/memory.md)"


def _ends(ends: Interval, name: str, unit: str, why: str) -> Interval:
    """A fitted interval, with a name for each of its ends."""
    source = f"{FITTED}; {why}"
    return Interval(
        Constant(ends.low, f"{name}_low", unit, source),
        Constant(ends.likely, f"{name}_likely", unit, source),
        Constant(ends.high, f"{name}_high", unit, source),
    )


WITHIN = "contains 80 % of published peaks"
OF_CONTEXT = "device context, NCCL, cuBLAS workspace"
CONTEXT = _ends(Interval(0.6 * GIB, 1.2 * GIB, 2.4 * GIB), "context", "bytes", OF_CONTEXT)
OF_CPU_CONTEXT = "interpreter, torch, engine of a CPU rank"
CPU_CONTEXT = _ends(Interval(0.5 * GIB, 0.8 * GIB, 1.2 * GIB), "context", "bytes", OF_CPU_CONTEXT)
OF_SLACK = "reserved / allocated: free blocks that the caching allocator does not return"
SLACK = _ends(Interval(1.0, 1.03, 1.1), "slack", "", OF_SLACK)
# Answer.AI's LoRA with 512 and 2,048 tokens reserved 1.24 and 1.12 times what it allocated
# (AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md).
OF_LOOSE = "reserved / allocated of adapters in scripts of others: samples of any length"
LOOSE = _ends(Interval(1.0, 1.1, 1.2), "loose_slack", "", OF_LOOSE)
OF_CHURN = "fragmentation relative to the ZeRO stage 3 buffers (rows stas)"
CHURN = _ends(Interval(0.6, 1.0, 1.4), "churn", "", OF_CHURN)
WORKSPACE = Constant(
    0.1 * GIB,
    "workspace_bytes",
    "bytes",
    f"{FITTED}; of cuBLAS and small tensors in torch's counters (rows nano-old, mcore-gv)",
)


LOADED = "all weights gathered on each device while they are loaded"
Rank = Literal["fullest", "first", "last"]  # first or last pipeline stage


def footprints(costs: FamilyCosts, strategy: Strategy) -> tuple[Footprint, ...]:
    """Every kind of stage of a strategy, and of all others that differ in batching alone."""
    model, workload = costs.model, costs.workload
    workspace = 0.0 if costs.cluster.gpu.is_cpu else lifted(WORKSPACE, of=model.layers)
    dequantised, unpacked = (
        dequantised_bytes(model, workload),
        unpacked_layer_bytes(model, workload),
    )
    kept_unpacked = unpacked > 0 and strategy.recompute != "full"
    found = costs.cluster.calibration
    workspace += 0.0 if found is None else found.memory_overhead_gib * GIB
    stage3 = strategy.zero_stage == FULLY_SHARDED
    head = head_bytes(model, workload, strategy)
    least = least_head_bytes(model, workload, strategy)
    return tuple(
        Footprint(
            kept=load.kept,
            buffers=_buffers(model, workload, strategy, load) + workspace + dequantised,
            saved=saved_token_bytes(model, workload, strategy, load),
            working=working_token_bytes(model, workload, strategy, load),
            unpacked=unpacked,
            unpacked_layers=load.stage.layers if kept_unpacked else 0,
            head=head if load.stage.has_head else NO_HEAD,
            least_head=least if load.stage.has_head else None,
            sample_tokens=workload.sample_tokens / strategy.layout.context_parallel_size,
            pipeline=strategy.layout.pipeline_parallel_size,
            later=load.stage.later,
            chunks=load.stage.chunks,
            lasting=stage3 or strategy.runs_as.gradients == "fp32",
            churns=stage3 and strategy.engine.has_zero_stages,
            loose=strategy.runs_as.software == "others" and workload.lora is not None,
            errors=errors_of(model, strategy),
            waiting=waiting_token_bytes(model, workload, strategy, load),
            loaded=_loaded(workload, strategy, load),
            step_blocks=step_block_bytes(workload, strategy, load.held),
        )
        for load in costs.loads
    )


def _loaded(workload: Workload, strategy: Strategy, load: Load) -> float:
    """Bytes of a whole model that a trainer gathers on each device to load weights into.

    Lightning's FSDP gathers all weights, reads the file into them, and writes back each shard
    (`lightning/fabric/strategies/fsdp.py`, `_load_raw_module_state`).
    """
    if not strategy.runs_as.loads_whole or strategy.zero_stage != FULLY_SHARDED:
        return 0.0
    return named(element_bytes(workload) * load.held.stored, "whole_model_bytes", "bytes", LOADED)


def fullest(stages: tuple[Footprint, ...], batching: Batching) -> Peak:
    """The peak of the stage that needs most."""
    if len(stages) == 1:
        return stages[0].at(batching)
    peaks = [stage.at(batching) for stage in stages]
    return max(peaks, key=attrgetter("total_bytes"))


def estimate_memory(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    rank: Rank = "fullest",
) -> MemoryEstimate:
    """Memory of the fullest rank, or of one pipeline end, and of one node under one strategy."""
    costs = family_costs(model, cluster, workload, strategy)
    stages = footprints(costs, strategy)
    if rank != "fullest":
        stages = stages[:1] if rank == "first" else stages[-1:]
    return memory_of(costs, fullest(stages, strategy.batching))


def _buffers(model: ModelSpec, workload: Workload, strategy: Strategy, load: Load) -> float:
    """Bytes of buckets and of gathered parameters."""
    held = Held(load.held.stored, load.held.trainable, load.stage.layers)
    sharding, buckets = strategy.sharding, load.buckets
    elements = strategy.engine.buffer_elements(model, held, sharding, buckets)
    if strategy.zero_stage == FULLY_SHARDED and strategy.recompute != "full":
        elements += load.held.packed  # bitsandbytes keeps each gathered one in the graph
    return named(element_bytes(workload) * elements, "engine_buffers", "bytes")


class Ends(NamedTuple):
    """The ends of an interval, for the planner: much quicker to make than a checked one."""

    low: float
    likely: float
    high: float


_Ends = tuple[float, float, float]


def device_bytes(peak: Peak, cluster: ClusterSpec) -> Ends:
    """What nvidia-smi shows at a peak."""
    return _device(_reserved(_allocated(peak), peak, cluster), cluster)


def _allocated(peak: Peak) -> _Ends:
    """What the tensors take, bytes."""
    fixed, moving = peak.fixed_bytes, peak.moving_bytes
    spread = peak.errors[0] * fixed + peak.errors[1] * moving
    if fixed.__class__ is TRACED:
        label(fixed, "fixed_bytes", "bytes", "independent of the batch size")
        label(moving, "moving_bytes", "bytes", "proportional to the micro batch size")
        label(spread, "spread_bytes", "bytes", WITHIN)
    return fixed + moving - peak.spared - spread, fixed + moving, fixed + moving + spread


def _reserved(allocated: _Ends, peak: Peak, cluster: ClusterSpec) -> _Ends:
    """What the caching allocator takes from the device, bytes.

    Blocks of the step count as far as the card has room: without it free ones are returned first.
    """
    low, likely, high = allocated
    slack, churn = LOOSE if peak.loose else SLACK, peak.churn
    low = low * slack.low + CHURN.low * churn
    likely = likely * slack.likely + CHURN.likely * churn
    high = high * slack.high + CHURN.high * churn
    if not peak.step_blocks or cluster.gpu.is_cpu:
        return low, likely, high
    return (
        low,
        likely + _blocks_with_room(likely, peak, cluster),
        high + _blocks_with_room(high, peak, cluster),
    )


def _blocks_with_room(reserved: float, peak: Peak, cluster: ClusterSpec) -> float:
    """Bytes of the step's blocks that find room on the card, beside the largest context."""
    return minimum(
        peak.step_blocks, maximum(0.0, cluster.gpu.memory_bytes - CONTEXT.high - reserved)
    )


def _device(reserved: _Ends, cluster: ClusterSpec) -> Ends:
    """What the device shows, its context included, bytes."""
    context = CPU_CONTEXT if cluster.gpu.is_cpu else CONTEXT
    low, likely, high = reserved
    return Ends(low + context.low, likely + context.likely, high + context.high)


def memory_of(costs: FamilyCosts, peak: Peak) -> MemoryEstimate:
    """The estimate around a peak: the three counters, the node."""
    allocated = _allocated(peak)
    reserved = _reserved(allocated, peak, costs.cluster)
    context = CPU_CONTEXT if costs.cluster.gpu.is_cpu else CONTEXT
    return MemoryEstimate.model_construct(
        terms=MemoryTerms.model_construct(
            weights=round(peak.weights),
            gradients=round(peak.gradients),
            optimizer_state=round(peak.optimizer_state),
            activations=round(peak.activations),
            logits=round(peak.logits),
            buffers=round(peak.buffers),
            framework=round(lifted(context.likely, of=costs.model.layers)),
        ),
        allocated_bytes=Interval(*allocated),
        reserved_bytes=Interval(*reserved),
        device_bytes=Interval(*_device(reserved, costs.cluster)),
        host_bytes=_with_checkpoints(costs, peak),
        load_copies_bytes=costs.load_copies_bytes,
        nvme_bytes=costs.nvme_bytes,
        checkpoint_bytes=costs.checkpoint_bytes,
    )


def _with_checkpoints(costs: FamilyCosts, peak: Peak) -> HostMemory:
    """RAM of one node with the activation checkpoints of all its ranks while they step."""
    if not peak.waiting:
        return costs.host
    ranks = costs.cluster.gpus_per_node
    waiting = named(ranks * peak.waiting, "checkpoints_in_ram", "bytes")
    return costs.host.model_copy(update={"step": round(costs.host.step + waiting)})
