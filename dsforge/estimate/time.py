"""Step time: seconds of one optimizer step, term by term."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.estimate.comm import channels
from dsforge.estimate.compute import optimizer_s
from dsforge.estimate.flops import step_flops
from dsforge.estimate.offload import offload
from dsforge.estimate.states import Load, loads
from dsforge.estimate.traffic import traffic
from dsforge.estimate.work import stage_work
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Strategy
from dsforge.units import TFLOP, Interval


class TimeTerms(BaseModel):
    """Likely seconds of one optimizer step on the slowest rank; the sum is the step."""

    model_config = FROZEN

    compute_s: float = Field(ge=0, description="Forward, backward, recomputation.")
    communication_s: float = Field(ge=0, description="Collectives that nothing hides.")
    bubble_s: float = Field(ge=0, description="Idle pipeline stages.")
    offload_s: float = Field(ge=0, description="Copies to host and NVMe that nothing hides.")
    optimizer_s: float = Field(ge=0, description="The optimizer step itself.")


class TimeEstimate(BaseModel):
    """How fast one strategy runs."""

    model_config = FROZEN

    terms: TimeTerms
    step_s: Interval
    tokens_per_s_per_gpu: float = Field(gt=0)
    model_tflops_per_gpu: float = Field(gt=0, description="Useful TFLOP/s, recompute not counted.")
    sent_bytes: int = Field(ge=0, description="Bytes that one rank sends in one step.")


COMPUTE_ERROR = (0.87, 1.2)  # 80 % of published steps lie within, compute-bound ones
COMMUNICATION_ERROR = (0.7, 1.8)  # exposed communication, bubble and offload are less certain
STEP_OVERHEAD_S = 0.01  # gradient norm, clipping, schedule, Python: once a step


def estimate_time(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    carried: tuple[Load, ...] | None = None,
) -> TimeEstimate:
    """Seconds of one optimizer step under one strategy; `carried` as in `estimate_memory`."""
    layout = strategy.layout
    carried = carried or loads(model, cluster, workload, strategy)
    _, held, buckets, kept, _ = max(carried, key=lambda load: load.held.total)
    links = channels(cluster, layout, strategy.runs_as.shard_group)
    work = stage_work(model, cluster, workload, strategy, held=held, links=links)
    sent = traffic(strategy, work.payload, links, buckets)
    moved = offload(cluster, workload, strategy, work.payload)
    micro_steps = strategy.gradient_accumulation_steps
    waits = (layout.pipeline_parallel_size - 1) / strategy.virtual_stages
    terms = TimeTerms.model_construct(
        compute_s=micro_steps * work.compute_s,
        communication_s=micro_steps * work.exposed_s + sent.data_s + sent.pipeline_s,
        bubble_s=waits * work.mean_s,
        offload_s=moved.exposed_s,
        optimizer_s=moved.cpu_s
        + optimizer_s(cluster.gpu, held.trainable, kept.optimizer)
        + STEP_OVERHEAD_S,
    )
    useful = step_flops(model, workload)
    rates = workload.tokens_per_step / layout.world_size, useful / layout.world_size
    return _estimate(terms, rates, sent.sent_bytes + micro_steps * work.sent_bytes)


def _estimate(terms: TimeTerms, work: tuple[float, float], sent_bytes: float) -> TimeEstimate:
    """The terms with their sum, its interval and the rates; `work`: tokens and FLOPs of a GPU."""
    sure = terms.compute_s + terms.optimizer_s
    unsure = terms.communication_s + terms.bubble_s + terms.offload_s
    step = Interval(
        sure * COMPUTE_ERROR[0] + unsure * COMMUNICATION_ERROR[0],
        sure + unsure,
        sure * COMPUTE_ERROR[1] + unsure * COMMUNICATION_ERROR[1],
    )
    return TimeEstimate.model_construct(
        terms=terms,
        step_s=step,
        tokens_per_s_per_gpu=work[0] / step.likely,
        model_tflops_per_gpu=work[1] / step.likely / TFLOP,
        sent_bytes=round(sent_bytes),
    )
