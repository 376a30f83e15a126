"""The memory ledger: named terms in bytes on the fullest rank, and host memory of one node.

The peak is the fullest of four moments of a step: at the loss, with a layer at work, at the end of
backward, at the optimizer's step. What differs between trainers is counted from their own source:
saved tensors (`activations.py`), states (`states.py`), stages (`shard.py`). The few constants below
were fitted on published peaks; `benchmarks/published/memory.md` shows the error by source, and a
test holds it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from dsforge.estimate.activations import element_bytes, kept_token_bytes
from dsforge.estimate.host import HostMemory, checkpoint_bytes, host_memory
from dsforge.estimate.states import Load, States, loads
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.units import GIB, Interval


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


CONTEXT = Interval(0.6 * GIB, 1.2 * GIB, 2.4 * GIB)  # device context, NCCL, cuBLAS workspace
CPU_CONTEXT = Interval(0.5 * GIB, 0.8 * GIB, 1.2 * GIB)  # interpreter, torch, engine of a CPU rank
SLACK = Interval(1.0, 1.03, 1.1)  # reserved / allocated: what the caching allocator keeps
STATES_ERROR = 0.03  # of the states and buffers: padding, alignment
ACTIVATION_ERROR = 0.12  # of activations and logits: kernels differ in what they save
# ZeRO stage 3 gathers and frees pieces of every size: the allocator keeps as much again (stas).
WORKSPACE = 0.1 * GIB  # of cuBLAS and small tensors in torch's counters (rows nano-old, mcore-gv)
FSDP_LAYERS = 3  # layers whose gathered weights FSDP holds: at work, prefetched, copied from


Rank = Literal["fullest", "first", "last"]  # first or last pipeline stage


class _Peak(NamedTuple):
    """The terms of one stage, kept as floats."""

    weights: float
    gradients: float
    optimizer_state: float
    activations: float
    logits: float
    buffers: float
    churn: float = 0.0  # allocator blocks beside them that fit nothing else


def estimate_memory(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    carried: tuple[Load, ...] | None = None,
    rank: Rank = "fullest",
) -> MemoryEstimate:
    """Memory of the fullest rank, or of one pipeline end, and of one node under one strategy.

    `carried` are its loads, where the caller has them: they do not depend on the micro batch.
    """
    carried = carried or loads(model, cluster, workload, strategy)
    if rank != "fullest":
        carried = carried[:1] if rank == "first" else carried[-1:]
    workspace = 0.0 if cluster.gpu.is_cpu else WORKSPACE
    peaks = [_peak(model, workload, strategy, load, workspace=workspace) for load in carried]
    fullest = max(peaks, key=_total)
    kept = carried[0].kept
    host = host_memory(model, cluster, workload, strategy, kept=kept)
    saved = checkpoint_bytes(model, workload)
    return _totals(cluster, fullest, kept, (host, saved))


def _total(peak: _Peak) -> float:
    """Bytes allocated at the peak."""
    return sum(peak) - peak.churn


def _peak(
    model: ModelSpec, workload: Workload, strategy: Strategy, load: Load, *, workspace: float
) -> _Peak:
    """The fullest of three moments of one stage: end of forward, end of backward, optimizer step.

    Gradients outlive a micro step only where there are several, or where the engine keeps its
    buffer for ever (Megatron, ZeRO stage 3).
    """
    kept, stage = load.kept, load.stage
    saved = _activations(model, workload, strategy, load) * _in_flight(strategy, load)
    working = _working_set(model, workload, strategy, load)
    logits = 0.0
    if stage.has_head:
        logits = _tokens(workload, strategy) * load.tokens.logits
        if strategy.runs_as.loss == "fused":  # makes the head's gradient at once, then its copy
            logits += 2 * element_bytes(workload) * model.vocab_size * model.embedding_size
    extra = _buffers(model, workload, strategy, load) + workspace
    lasting = (
        strategy.gradient_accumulation_steps > 1
        or strategy.runs_as.gradients == "fp32"
        or strategy.zero_stage == FULLY_SHARDED
    )
    early = kept.gradients if lasting else 0.0
    stepping = kept.gradients + kept.step_gradients
    moments = (
        _Peak(kept.weights, early, kept.optimizer, saved, logits, extra),
        _Peak(kept.weights, early, kept.optimizer, saved + working, 0.0, extra),
        _Peak(kept.weights, kept.gradients, kept.optimizer, working, 0.0, extra),
        _Peak(kept.weights, stepping, kept.optimizer, 0.0, 0.0, extra),
    )
    fullest = max(moments, key=_total)
    engine = strategy.zero_stage == FULLY_SHARDED and strategy.runs_as.trainer == "deepspeed"
    return fullest._replace(churn=extra) if engine else fullest


def _tokens(workload: Workload, strategy: Strategy) -> float:
    """Tokens of one micro batch on one rank."""
    return (
        strategy.micro_batch_size * workload.sequence_length / strategy.layout.context_parallel_size
    )


def _in_flight(strategy: Strategy, load: Load) -> float:
    """Micro batches whose activations are alive: 1F1B keeps one for each later stage.

    Interleaved, stage r of pp begins with 2 (pp - r - 1) + (v - 1) pp chunks forward and works on
    one more (Narayanan et al. 2021, section 2.2; Megatron's `get_num_warmup_microbatches`).
    """
    pp, virtual = strategy.layout.pipeline_parallel_size, strategy.virtual_stages
    if pp == 1:
        return 1.0
    later = pp - 1 if load.stage.has_embedding else 0
    alive = later + 1.0
    if virtual > 1:
        alive = (2 * later + (virtual - 1) * pp + 1) / virtual
    return min(float(strategy.gradient_accumulation_steps), alive)


def _activations(model: ModelSpec, workload: Workload, strategy: Strategy, load: Load) -> float:
    """Bytes that one micro batch keeps in one stage from forward to backward."""
    if strategy.runs_as.offload_activations:
        return 0.0
    stage, tokens = load.stage, load.tokens
    dense = stage.layers - stage.moe_layers
    total = dense * kept_token_bytes(model, workload, strategy, tokens.dense_layer)
    if stage.moe_layers:
        kept = kept_token_bytes(model, workload, strategy, tokens.moe_layer)
        total += stage.moe_layers * kept
    return _tokens(workload, strategy) * total


def _working_set(model: ModelSpec, workload: Workload, strategy: Strategy, load: Load) -> float:
    """Bytes of one layer at work: its gradients, and what it has to compute again."""
    tokens = load.tokens
    each = tokens.gradients
    if strategy.recompute != "none":
        whole = tokens.moe_layer if load.stage.moe_layers else tokens.dense_layer
        each += whole - kept_token_bytes(model, workload, strategy, whole)
    return _tokens(workload, strategy) * each


def _buffers(model: ModelSpec, workload: Workload, strategy: Strategy, load: Load) -> float:
    """Bytes of buckets and of gathered parameters."""
    size, buckets = element_bytes(workload), load.buckets
    trainer, alone = strategy.runs_as.trainer, strategy.layout.shard_ranks == 1
    if trainer == "fsdp":
        return _gathered(model, strategy, load) * size
    if trainer == "nanotron":
        return 0.0 if alone else float(size * load.held.trainable)
    if trainer != "deepspeed" or strategy.zero_stage == 0:
        return 0.0
    if alone and strategy.zero_stage < FULLY_SHARDED:
        return 0.0
    reduce = buckets.reduce_bucket_size * size * (2 if buckets.overlap_comm else 1)
    if strategy.zero_stage < FULLY_SHARDED:
        return float(reduce)
    gathered = buckets.max_live_parameters + buckets.prefetch_bucket_size
    persistent = model.norms_per_layer * model.hidden_size * model.layers
    return float(reduce + size * (min(load.held.total, gathered) + persistent))


def _gathered(model: ModelSpec, strategy: Strategy, load: Load) -> float:
    """Elements that FSDP has gathered at once.

    Embedding and head stay whole from forward to backward; beside them the layer at work, the next
    one, and the flat buffer that it is copied out of. Sharding of gradients only: all layers.
    """
    outer = 2 * model.vocab_size * model.embedding_size / strategy.layout.tensor_parallel_size
    layers = max(0.0, load.held.total - outer)
    if strategy.zero_stage < FULLY_SHARDED:
        return load.held.total + layers / model.layers
    return min(load.held.total, outer) + FSDP_LAYERS * layers / load.stage.layers


def _totals(
    cluster: ClusterSpec, peak: _Peak, kept: States, host: tuple[HostMemory, int]
) -> MemoryEstimate:
    """Intervals of the three counters around the likely terms."""
    context = CPU_CONTEXT if cluster.gpu.is_cpu else CONTEXT
    fixed = peak.weights + peak.gradients + peak.optimizer_state + peak.buffers
    moving = peak.activations + peak.logits
    allocated_likely = _total(peak)
    spread = STATES_ERROR * fixed + ACTIVATION_ERROR * moving
    allocated = Interval(allocated_likely - spread, allocated_likely, allocated_likely + spread)
    reserved = Interval(
        allocated.low * SLACK.low,
        allocated.likely * SLACK.likely + peak.churn,
        allocated.high * SLACK.high + 2 * peak.churn,
    )
    device = Interval(
        reserved.low + context.low, reserved.likely + context.likely, reserved.high + context.high
    )
    terms = MemoryTerms.model_construct(
        weights=round(peak.weights),
        gradients=round(peak.gradients),
        optimizer_state=round(peak.optimizer_state),
        activations=round(peak.activations),
        logits=round(peak.logits),
        buffers=round(peak.buffers),
        framework=round(context.likely),
    )
    return MemoryEstimate.model_construct(
        terms=terms,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        host_bytes=host[0],
        nvme_bytes=round(kept.nvme * cluster.gpus_per_node),
        checkpoint_bytes=host[1],
    )
