"""Step time: seconds of one optimizer step, term by term."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.estimate.activation_traffic import Sends, stage_traffic
from dsforge.estimate.compute import optimizer_s
from dsforge.estimate.doubts import StepDoubts, is_of_others, step_doubts
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.flops import step_flops
from dsforge.estimate.layer_time import attention_s, setting_of
from dsforge.estimate.micro_batch_time import MicroBatchTime, StageTimes, stage_times
from dsforge.estimate.offload import Moved, link_bytes_per_s, offload, paged_optimizer_s
from dsforge.estimate.stage_activations import layers_kept_bytes
from dsforge.estimate.states import shares
from dsforge.estimate.traffic import Exchange, exchanges
from dsforge.estimate.unmeasured import widened
from dsforge.specs import FROZEN, Calibration, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Batching, Strategy
from dsforge.traced import TRACED, Constant, label, named
from dsforge.units import TFLOP, Interval


class TimeTerms(BaseModel):
    """Likely seconds of one optimizer step on the slowest rank; the sum is the step."""

    model_config = FROZEN

    compute_s: float = Field(ge=0, description="Forward, backward, recomputation.")
    communication_s: float = Field(
        ge=0, description="Communication that does not overlap with compute."
    )
    bubble_s: float = Field(ge=0, description="Idle pipeline stages.")
    offload_s: float = Field(
        ge=0, description="Copies to host RAM and NVMe that do not overlap with compute."
    )
    optimizer_s: float = Field(ge=0, description="The optimizer step itself.")


class TimeEstimate(BaseModel):
    """How fast one strategy runs."""

    model_config = FROZEN

    terms: TimeTerms = Field(description="Likely seconds of one step, by time term.")
    step_s: Interval = Field(description="Seconds of one optimizer step.")
    tokens_per_s_per_gpu: float = Field(gt=0, description="Likely tokens/s of one accelerator.")
    model_tflops_per_gpu: float = Field(gt=0, description="Useful TFLOP/s, recompute not counted.")
    sent_bytes: int = Field(ge=0, description="Bytes that one rank sends in one step.")


MICRO_TOKENS = "tokens of a micro batch on one rank: context ranks share a sequence"
BESIDE = (
    "compute of a micro step, and the waits for its gathers: copies and sends go on beside both"
)
SURE = "compute, and the optimizer on the device"
WAITS = "exposed communication and bubble: less certain"
STEP_OVERHEAD_S = Constant(
    0.01, "overhead_s", "s", "estimate/time.py: gradient norm, clipping, schedule, Python"
)


STEPPED = "trainable elements whose gradients and weights a rank holds"


class Seconds(NamedTuple):
    """The terms of one step as plain numbers, and the bytes that one rank sends."""

    compute_s: float
    communication_s: float
    bubble_s: float
    offload_s: float
    optimizer_s: float
    sent_bytes: float
    slower_s: float = 0.0  # more under other launchers' settings: in no term, only in the interval
    attention_s: float = 0.0  # of compute: kernels of it differ most
    host_s: float = 0.0  # of the optimizer: on the CPU

    @property
    def step_s(self) -> float:
        """The likely step."""
        return sum(self[:5])

    def calibrated(self, by: Calibration) -> Seconds:
        """The seconds as finished runs on this cluster say."""
        return self._replace(
            compute_s=self.compute_s * by.compute,
            optimizer_s=self.optimizer_s * by.compute,
            host_s=self.host_s * by.compute,
            bubble_s=self.bubble_s * by.compute,
            communication_s=self.communication_s * by.waiting,
            offload_s=self.offload_s * by.waiting,
        )


class StepCosts(NamedTuple):
    """The step time of any batching: what family and recomputation settle."""

    stage_times: StageTimes
    exchanges: tuple[Exchange, ...]
    between: Sends  # stages
    moved: Moved
    optimizer_s: float
    sample_tokens: float  # of one sample on one rank
    attention_token_s: float  # of a token in the attention of one stage's layers
    checkpoint_token_s: float  # of a token's activation checkpoints, to RAM and back
    calibration: Calibration | None

    def busy_s(self, work: MicroBatchTime) -> float:
        """Seconds of a micro step beside which copies and sends go on."""
        every = [exchange for exchange in self.exchanges if exchange.every_micro_step]
        waits_s = sum(exchange.exposed_s(work.layers, work.compute_s) for exchange in every)
        return named(work.compute_s + work.exposed_s + waits_s, "micro_busy_s", "s", BESIDE)

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
        busy_s = self.busy_s(work)
        compute_s = micro_steps * work.compute_s
        stages_s = self.between.exposed_s(batching, tokens, micro_steps * busy_s)
        found = Seconds(
            compute_s=compute_s,
            communication_s=micro_steps * work.exposed_s + outside_s + stages_s,
            bubble_s=(self.stage_times.pipeline - 1) / batching.virtual_stages * work.mean_s,
            offload_s=self.moved.copies_s(micro_steps, busy_s)
            + micro_steps * tokens * self.checkpoint_token_s,
            optimizer_s=self.optimizer_s,
            sent_bytes=sent + micro_steps * work.sent_bytes,
            slower_s=self.moved.slower.at(micro_steps) if self.moved.slower else 0.0,
            attention_s=micro_steps * tokens * self.attention_token_s,
            host_s=self.moved.cpu_s,
        )
        return found if self.calibration is None else found.calibrated(self.calibration)


def step_costs(costs: FamilyCosts, strategy: Strategy) -> StepCosts:
    """The step time of a strategy and of all others that differ in batching alone."""
    held, moved = costs.fullest.held, offload(costs, strategy)
    stepped: float = held.trainable  # gradients and weights that a rank passes over in the step
    if strategy.zero_stage == FULLY_SHARDED:
        stepped = named(shares(strategy).of_trainable(held), "stepped", "elements", STEPPED)
    on_device_s = optimizer_s(costs.cluster.gpu, stepped, costs.fullest.kept.optimizer)
    paged_s = paged_optimizer_s(costs, strategy)
    return StepCosts(
        stage_times=stage_times(costs, strategy),
        exchanges=exchanges(costs, strategy),
        between=stage_traffic(costs, strategy),
        moved=moved,
        optimizer_s=moved.cpu_s + on_device_s + paged_s + STEP_OVERHEAD_S,
        sample_tokens=costs.workload.sample_tokens / strategy.layout.context_parallel_size,
        attention_token_s=_attention_token_s(costs, strategy),
        checkpoint_token_s=_checkpoint_token_s(costs, strategy),
        calibration=costs.cluster.calibration,
    )


def _checkpoint_token_s(costs: FamilyCosts, strategy: Strategy) -> float:
    """Seconds of a token's checkpoints on their way to RAM and back.

    DeepSpeed copies them where they are made (`activation_checkpointing/checkpointing.py`,
    `cpu_checkpointing`); torchtune beside the work, on a stream of its own.
    """
    if not strategy.runs_as.offload_activations or not strategy.engine.has_zero_stages:
        return 0.0
    kept = layers_kept_bytes(costs.model, costs.workload, strategy, costs.fullest)
    return named(2 * kept / link_bytes_per_s(costs.cluster), "checkpoint_token_s", "s")


def _attention_token_s(costs: FamilyCosts, strategy: Strategy) -> float:
    """Seconds of a token in the attention of a stage; 0 where nothing is doubted about it."""
    if not is_of_others(strategy):
        return 0.0
    setting = setting_of(costs.cluster.gpu, costs.workload, strategy)
    layers = costs.model.depth / strategy.layout.pipeline_parallel_size
    return layers * attention_s(costs.model, setting)


def estimate_time(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> TimeEstimate:
    """Seconds of one optimizer step under one strategy."""
    costs = family_costs(model, cluster, workload, strategy)
    return time_of(costs, strategy, step_costs(costs, strategy).at(strategy.batching))


def time_of(costs: FamilyCosts, strategy: Strategy, found: Seconds) -> TimeEstimate:
    """The estimate around the seconds of a strategy: interval and rates."""
    gpus = strategy.layout.world_size
    doubts = step_doubts(costs.cluster, strategy, costs.workload)
    step = widened(costs.model, step_interval(found, doubts))
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


def step_interval(found: Seconds, doubts: StepDoubts) -> Interval:
    """The step with its 80 % interval, s."""
    sure = found.compute_s + found.optimizer_s - found.host_s
    waits = found.communication_s + found.bubble_s
    label(sure, "sure_s", "s", SURE)
    label(waits, "waits_s", "s", WAITS)
    computing, waiting, offload, host, attention_more = doubts
    low = sure * computing.low + waits * waiting.low + found.offload_s * offload.low
    high = sure * computing.high + waits * waiting.high + found.offload_s * offload.high
    low, high = low + found.host_s * host.low, high + found.host_s * host.high
    more_s = found.slower_s + attention_more * found.attention_s
    return Interval(low, sure + found.host_s + waits + found.offload_s, high + more_s)
