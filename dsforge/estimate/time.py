"""Step time: seconds of one optimizer step, term by term."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.estimate.activation_traffic import Sends, stage_traffic
from dsforge.estimate.compute import optimizer_s
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.flops import step_flops
from dsforge.estimate.micro_batch_time import StageTimes, stage_times
from dsforge.estimate.offload import Moved, offload, paged_optimizer_s
from dsforge.estimate.traffic import Exchange, exchanges
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Batching, Strategy
from dsforge.traced import TRACED, Constant, label
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

    terms: TimeTerms = Field(description="Likely seconds of one step, by what they are for.")
    step_s: Interval = Field(description="Seconds of one optimizer step.")
    tokens_per_s_per_gpu: float = Field(gt=0, description="Likely tokens/s of one accelerator.")
    model_tflops_per_gpu: float = Field(gt=0, description="Useful TFLOP/s, recompute not counted.")
    sent_bytes: int = Field(ge=0, description="Bytes that one rank sends in one step.")


MICRO_TOKENS = "tokens of a micro batch on one rank: context ranks share a sequence"
SURE = "terms that published steps confirm well"
WITHIN = "estimate/time.py: 80 % of published steps lie within"
COMPUTE_ERROR = (
    Constant(0.88, "compute_error_low", "", f"{WITHIN}; compute-bound ones"),
    Constant(1.19, "compute_error_high", "", f"{WITHIN}; compute-bound ones"),
)
LESS_SURE = f"{WITHIN}; exposed communication, bubble and offload are less certain"
COMMUNICATION_ERROR = (
    Constant(0.7, "communication_error_low", "", LESS_SURE),
    Constant(1.8, "communication_error_high", "", LESS_SURE),
)
STEP_OVERHEAD_S = Constant(
    0.01, "overhead_s", "s", "estimate/time.py: gradient norm, clipping, schedule, Python"
)


class Seconds(NamedTuple):
    """The terms of one step as plain numbers, and the bytes that one rank sends."""

    compute_s: float
    communication_s: float
    bubble_s: float
    offload_s: float
    optimizer_s: float
    sent_bytes: float
    slower_s: float = 0.0  # more under other launchers' settings: in no term, only in the interval

    @property
    def step_s(self) -> float:
        """The likely step."""
        return sum(self[:5])


class StepCosts(NamedTuple):
    """The step time of any batching: what family and recomputation settle."""

    stage_times: StageTimes
    exchanges: tuple[Exchange, ...]
    between: Sends  # stages
    moved: Moved
    optimizer_s: float
    sample_tokens: float  # of one sample on one rank

    def at(self, batching: Batching) -> Seconds:
        """Seconds of one optimizer step, and bytes sent."""
        micro_steps, tokens = batching.steps, batching.micro_batch_size * self.sample_tokens
        if tokens.__class__ is TRACED:
            label(tokens, "micro_tokens", "tokens", MICRO_TOKENS)
        work, chunks = self.stage_times.at(tokens), 2 * batching.virtual_stages * micro_steps
        outside_s, sent = 0.0, chunks * tokens * self.between.each.sent_bytes
        for exchange in self.exchanges:
            times = micro_steps if exchange.every_micro_step else 1
            outside_s += times * exchange.exposed_s(work.layers, work.compute_s)
            sent += times * exchange.sent_bytes
        compute_s = micro_steps * work.compute_s
        stages_s = self.between.exposed_s(batching, tokens, compute_s)
        return Seconds(
            compute_s=compute_s,
            communication_s=micro_steps * work.exposed_s + outside_s + stages_s,
            bubble_s=(self.stage_times.pipeline - 1) / batching.virtual_stages * work.mean_s,
            offload_s=self.moved.copies_s(micro_steps),
            optimizer_s=self.optimizer_s,
            sent_bytes=sent + micro_steps * work.sent_bytes,
            slower_s=self.moved.slower.at(micro_steps) if self.moved.slower else 0.0,
        )


def step_costs(costs: FamilyCosts, strategy: Strategy) -> StepCosts:
    """The step time of a strategy and of all others that differ in batching alone."""
    held, moved = costs.fullest.held, offload(costs, strategy)
    on_device_s = optimizer_s(costs.cluster.gpu, held.trainable, costs.fullest.kept.optimizer)
    paged_s = paged_optimizer_s(costs, strategy)
    return StepCosts(
        stage_times=stage_times(costs, strategy),
        exchanges=exchanges(costs, strategy),
        between=stage_traffic(costs, strategy),
        moved=moved,
        optimizer_s=moved.cpu_s + on_device_s + paged_s + STEP_OVERHEAD_S,
        sample_tokens=costs.workload.sequence_length / strategy.layout.context_parallel_size,
    )


def estimate_time(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> TimeEstimate:
    """Seconds of one optimizer step under one strategy."""
    costs = family_costs(model, cluster, workload, strategy)
    return time_of(costs, strategy, step_costs(costs, strategy).at(strategy.batching))


def time_of(costs: FamilyCosts, strategy: Strategy, found: Seconds) -> TimeEstimate:
    """The estimate around the seconds of a strategy: interval and rates."""
    gpus = strategy.layout.world_size
    step = step_interval(found)
    useful = step_flops(costs.model, costs.workload)
    return TimeEstimate.model_construct(
        terms=TimeTerms.model_construct(
            compute_s=found.compute_s,
            communication_s=found.communication_s,
            bubble_s=found.bubble_s,
            offload_s=found.offload_s,
            optimizer_s=found.optimizer_s,
        ),
        step_s=step,
        tokens_per_s_per_gpu=costs.workload.tokens_per_step / gpus / step.likely,
        model_tflops_per_gpu=useful / gpus / step.likely / TFLOP,
        sent_bytes=round(found.sent_bytes),
    )


def step_interval(found: Seconds) -> Interval:
    """The step with its 80 % interval, s."""
    sure = found.compute_s + found.optimizer_s
    unsure = found.communication_s + found.bubble_s + found.offload_s
    label(sure, "sure_s", "s", SURE)
    label(unsure, "unsure_s", "s", "terms that published steps confirm less well")
    return Interval(
        sure * COMPUTE_ERROR[0] + unsure * COMMUNICATION_ERROR[0],
        sure + unsure,
        sure * COMPUTE_ERROR[1] + unsure * COMMUNICATION_ERROR[1] + found.slower_s,
    )
