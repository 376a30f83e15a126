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
from dsforge.estimate.doubts import memory_errors
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.host import HostMemory
from dsforge.estimate.loss import NO_HEAD, HeadBytes, head_bytes
from dsforge.estimate.quantised import dequantised_bytes, unpacked_layer_bytes
from dsforge.estimate.stage_activations import (
    saved_token_bytes,
    waiting_token_bytes,
    working_token_bytes,
)
from dsforge.estimate.states import Load, States
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
        description="Bytes of one checkpoint with optimizer state, all ranks."
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
OF_CHURN = "fragmentation relative to the ZeRO stage 3 buffers (rows stas)"
CHURN = _ends(Interval(0.4, 1.0, 1.5), "churn", "", OF_CHURN)
WORKSPACE = Constant(
    0.1 * GIB,
    "workspace_bytes",
    "bytes",
    f"{FITTED}; of cuBLAS and small tensors in torch's counters (rows nano-old, mcore-gv)",
)


MICRO_TOKENS = "tokens of a micro batch on one rank: context ranks share a sequence"
MOMENT = "one of four moments of a step; the largest is the peak"
SAVED = "saved from forward to backward, of all micro batches in flight"
WORKING = "gradients of one layer, and its recomputed activations"
LOGITS = "at the softmax, or at the matrix product of the head's gradient"
Rank = Literal["fullest", "first", "last"]  # first or last pipeline stage


class Peak(NamedTuple):
    """The terms of one stage at its fullest moment, as plain numbers."""

    weights: float
    gradients: float
    activations: float
    logits: float
    optimizer_state: float
    buffers: float
    moment: float  # gradients, activations and logits together
    churn: float  # what ZeRO stage 3 gathers and frees in pieces of every size
    errors: tuple[Constant, Constant]  # shares by which fixed and moving bytes may be off
    waiting: float = 0.0  # checkpoints in RAM

    @property
    def fixed_bytes(self) -> float:
        """What no batch changes."""
        return self.weights + self.gradients + self.optimizer_state + self.buffers

    @property
    def moving_bytes(self) -> float:
        """What grows with the micro batch."""
        return self.activations + self.logits

    @property
    def total_bytes(self) -> float:
        """What the tensors take together."""
        return self.weights + self.optimizer_state + self.buffers + self.moment


class Footprint(NamedTuple):
    """One stage under any batching: what stays, and what each token of a micro batch adds."""

    kept: States
    buffers: float
    saved: float  # from forward to backward, all layers of the stage
    working: float  # a layer at work
    unpacked: float  # bytes of a layer's matrices that autograd keeps unpacked
    unpacked_layers: int  # layers that keep them from forward to backward; 0: the one at work
    head: HeadBytes
    sample_tokens: float  # of one sample on one rank
    pipeline: int  # stages
    later: int  # stages behind it: it holds a micro batch for each
    lasting: bool  # gradients outlive a micro step even where there is one
    churns: bool
    errors: tuple[Constant, Constant]  # shares by which fixed and moving bytes may be off
    waiting: float  # in RAM from forward to backward

    def at(self, batching: Batching) -> Peak:
        """The fullest of four moments: the loss, a layer at work, end of backward, the step.

        Gradients outlive a micro step only where there are several, or where the engine keeps its
        buffer for ever (Megatron, ZeRO stage 3).
        """
        kept, tokens = self.kept, batching.micro_batch_size * self.sample_tokens
        saved, working = tokens * self.saved * self._in_flight(batching), tokens * self.working
        saved, working = self._with_unpacked(saved, working)
        logits = self.head.at(tokens)
        early = kept.gradients if self.lasting or batching.steps > 1 else 0.0
        at_loss, at_work = early + saved + logits, early + saved + working
        at_end, stepping = kept.gradients + working, kept.gradients + kept.step_gradients
        moment = max(at_loss, at_work, at_end, stepping)
        if tokens.__class__ is TRACED:
            label(tokens, "micro_tokens", "tokens", MICRO_TOKENS)
            _name_parts(saved, working, logits)
            moment = _fullest(at_loss, at_work, at_end, stepping)
        if moment == at_loss:
            parts = (early, saved, logits)
        elif moment == at_work:
            parts = (early, saved + working, 0.0)
        else:
            parts = (kept.gradients, working, 0.0) if moment == at_end else (stepping, 0.0, 0.0)
        churn = self.buffers if self.churns else 0.0
        waiting = tokens * self.waiting * self._in_flight(batching)
        found = Peak(kept.weights, *parts, kept.optimizer, self.buffers, moment, churn, self.errors)
        return found._replace(waiting=waiting) if self.waiting else found

    def _with_unpacked(self, saved: float, working: float) -> tuple[float, float]:
        """Saved and working bytes with the matrices that autograd keeps unpacked."""
        if not self.unpacked:
            return saved, working
        if self.unpacked_layers:
            return saved + self.unpacked_layers * self.unpacked, working
        return saved, working + self.unpacked

    def _in_flight(self, batching: Batching) -> float:
        """Micro batches in flight: 1F1B has one for each later stage.

        Interleaved, stage r of pp begins with 2 (pp - r - 1) + (v - 1) pp chunks forward and works
        on one more (Narayanan et al. 2021, section 2.2; Megatron's
        `get_num_warmup_microbatches`).
        """
        pp, virtual = self.pipeline, batching.virtual_stages
        if pp == 1:
            return 1.0
        alive = self.later + 1.0
        if virtual > 1:
            alive = (2 * self.later + (virtual - 1) * pp + 1) / virtual
        return named(minimum(batching.steps, alive), "micro_batches_alive")


def _name_parts(saved: float, working: float, logits: float) -> None:
    """Name what the moments of a step consist of."""
    label(saved, "saved_activations", "bytes", SAVED)
    label(working, "working_set", "bytes", WORKING)
    label(logits, "logits_of_micro_batch", "bytes", LOGITS)


def _fullest(at_loss: float, at_work: float, at_end: float, stepping: float) -> float:
    """The largest of four moments, each with a name."""
    label(at_loss, "at_the_loss", "bytes", MOMENT)
    label(at_work, "with_a_layer_at_work", "bytes", MOMENT)
    label(at_end, "at_the_end_of_backward", "bytes", MOMENT)
    label(stepping, "at_the_optimizer_step", "bytes", MOMENT)
    return maximum(maximum(at_loss, at_work), maximum(at_end, stepping))


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
    return tuple(
        Footprint(
            kept=load.kept,
            buffers=_buffers(model, workload, strategy, load) + workspace + dequantised,
            saved=saved_token_bytes(model, workload, strategy, load),
            working=working_token_bytes(model, workload, strategy, load),
            unpacked=unpacked,
            unpacked_layers=load.stage.layers if kept_unpacked else 0,
            head=head if load.stage.has_head else NO_HEAD,
            sample_tokens=workload.sequence_length / strategy.layout.context_parallel_size,
            pipeline=strategy.layout.pipeline_parallel_size,
            later=load.stage.later,
            lasting=stage3 or strategy.runs_as.gradients == "fp32",
            churns=stage3 and strategy.engine.has_zero_stages,
            errors=memory_errors(strategy),
            waiting=waiting_token_bytes(model, workload, strategy, load),
        )
        for load in costs.loads
    )


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
    return _device(_reserved(_allocated(peak), peak.churn), cluster)


def _allocated(peak: Peak) -> _Ends:
    """What the tensors take, bytes."""
    fixed, moving = peak.fixed_bytes, peak.moving_bytes
    spread = peak.errors[0] * fixed + peak.errors[1] * moving
    if fixed.__class__ is TRACED:
        label(fixed, "fixed_bytes", "bytes", "independent of the batch size")
        label(moving, "moving_bytes", "bytes", "proportional to the micro batch size")
        label(spread, "spread_bytes", "bytes", WITHIN)
    return fixed + moving - spread, fixed + moving, fixed + moving + spread


def _reserved(allocated: _Ends, churn: float) -> _Ends:
    """What the caching allocator takes from the device, bytes."""
    low, likely, high = allocated
    return (
        low * SLACK.low + CHURN.low * churn,
        likely * SLACK.likely + CHURN.likely * churn,
        high * SLACK.high + CHURN.high * churn,
    )


def _device(reserved: _Ends, cluster: ClusterSpec) -> Ends:
    """What the device shows, its context included, bytes."""
    context = CPU_CONTEXT if cluster.gpu.is_cpu else CONTEXT
    low, likely, high = reserved
    return Ends(low + context.low, likely + context.likely, high + context.high)


def memory_of(costs: FamilyCosts, peak: Peak) -> MemoryEstimate:
    """The estimate around a peak: the three counters, the node."""
    allocated = _allocated(peak)
    reserved = _reserved(allocated, peak.churn)
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
