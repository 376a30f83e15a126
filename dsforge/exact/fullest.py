"""Exact memory of a strategy: every phase of a step on the rank that needs most.

Not counted, as torch's own counters of tensors do not count them: the device context, libraries'
workspaces, and what the caching allocator keeps beyond tensors. Masks, positions and rotary tables
are left out: less than a hundredth of a percent of a model's memory.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.errors import SpecError
from dsforge.estimate.optimizer_bytes import stepped_bytes
from dsforge.exact.peaks import MicroBatch, PhasePeak, phase_peaks
from dsforge.exact.residency import EngineRank, Phase, resident
from dsforge.exact.scope import ELEMENT_BYTES, KNOWN, problems
from dsforge.exact.tensors import parameter_tensors
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import GRADIENTS_SHARDED, Buckets, Strategy

MOST_RANKS = 16  # simulated; each takes a fraction of a second


class PhaseMemory(BaseModel):
    """Bytes on one rank's device in one phase of a step that is not the first."""

    model_config = FROZEN

    peak_bytes: int = Field(description="Most bytes allocated at once, activations included.")
    weights: int = Field(description="At the end of the phase: parameters, gathered ones included.")
    gradients: int = Field(description="At the end of the phase.")
    optimizer_state: int = Field(description="Master weights and moments.")
    buffers: int = Field(description="At the end of the phase: ZeRO's buckets and staging.")
    host_bytes: int = Field(description="States of this rank in RAM at the end of the phase.")


class ExactMemory(BaseModel):
    """Simulated memory of the rank that needs most, phase by phase."""

    model_config = FROZEN

    rank: int = Field(ge=0, description="The rank that needs most, of those simulated.")
    ranks_simulated: int = Field(ge=1, description="Ranks that may differ and were simulated.")
    world_size: int = Field(ge=1, description="Data-parallel ranks of the job.")
    peak_bytes: int = Field(description="torch.cuda.max_memory_allocated of a step.")
    peak_phase: Phase = Field(description="The phase with the peak.")
    phases: dict[Phase, PhaseMemory] = Field(
        description="`accumulation`: all micro steps but the last; forward and backward of the "
        "last one; `step`: the optimizer's."
    )


def exact_memory(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    buckets: Buckets,
) -> ExactMemory:
    """Simulate one step. Raises SpecError, with every reason, for a case that is not known."""
    found = problems(model, cluster, workload, strategy)
    if found:
        raise SpecError(found, f"--exact knows only {KNOWN}")
    lora = workload.lora if workload.method == "lora" else None
    engine = engine_rank(model, workload, strategy, buckets)
    batch = MicroBatch(
        model,
        strategy.micro_batch_size,
        workload.sequence_length,
        lora,
        recompute=strategy.recompute == "full",
    )
    ranks = _ranks(engine)
    each = {rank: phase_peaks(engine._replace(rank=rank), batch) for rank in ranks}
    rank = max(ranks, key=lambda one: max(phase.peak for phase in each[one].values()))
    return _described(engine._replace(rank=rank), each[rank], len(ranks))


def engine_rank(
    model: ModelSpec, workload: Workload, strategy: Strategy, buckets: Buckets
) -> EngineRank:
    """Rank 0 of the engine under a strategy that is known."""
    return EngineRank(
        tensors=parameter_tensors(model, workload.lora if workload.method == "lora" else None),
        element_bytes=ELEMENT_BYTES[workload.precision],
        master_bytes=stepped_bytes(workload, strategy.runs_as),
        zero_stage=strategy.zero_stage,
        world_size=strategy.layout.data_parallel_size,
        offload_optimizer=strategy.offload_optimizer == "cpu",
        accumulates=strategy.gradient_accumulation_steps > 1,
        reduce_bucket_size=buckets.reduce_bucket_size,
        overlap_comm=buckets.overlap_comm,
        persistence_threshold=buckets.persistence_threshold,
        max_live_parameters=buckets.max_live_parameters,
        max_reuse_distance=buckets.max_reuse_distance,
        prefetch_bucket_size=buckets.prefetch_bucket_size,
        sub_group_size=buckets.sub_group_size,
    )


def _ranks(engine: EngineRank) -> tuple[int, ...]:
    """Ranks to simulate: all that differ; of many, the two ends and others evenly between.

    Under ZeRO-0 and 3 all ranks hold equal parts. Under ZeRO-1 and 2 each has another stretch of
    the flat buffer.
    """
    world = engine.world_size
    if not 1 <= engine.zero_stage <= GRADIENTS_SHARDED:
        return (0,)
    if world <= MOST_RANKS:
        return tuple(range(world))
    return tuple(step * (world - 1) // (MOST_RANKS - 1) for step in range(MOST_RANKS))


def _described(engine: EngineRank, peaks: dict[Phase, PhasePeak], simulated: int) -> ExactMemory:
    """What a simulation found, with the owners of what stays."""
    phases: dict[Phase, PhaseMemory] = {}
    for phase, found in peaks.items():
        device, host = resident(engine, phase)
        phases[phase] = PhaseMemory.model_construct(
            peak_bytes=found.peak,
            weights=device.parameter,
            gradients=device.gradient,
            optimizer_state=device.optimizer_state,
            buffers=device.buffer,
            host_bytes=host.total,
        )
    highest = max(peaks, key=lambda phase: peaks[phase].peak)
    return ExactMemory.model_construct(
        rank=engine.rank,
        ranks_simulated=simulated,
        world_size=engine.world_size,
        peak_bytes=peaks[highest].peak,
        peak_phase=highest,
        phases=phases,
    )
