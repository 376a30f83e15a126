"""Speed of a step in the units that people compare, and what a whole run takes and costs.

Everything follows from the interval of the step, so that a doubt about the step shows in the days
and in the bill. Energy counts the cards at their board power for the whole run: a card at work
draws about that. Hosts, network and cooling (PUE) are not in it.
"""

from __future__ import annotations

from math import ceil

from pydantic import BaseModel, Field

from dsforge.estimate.flops import (
    forward_flops,
    head_flops,
    mlp_flops,
    score_flops,
    step_flops,
)
from dsforge.estimate.layer_time import setting_of
from dsforge.estimate.rates import peak_flops
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Strategy
from dsforge.traced import named
from dsforge.units import TFLOP, Interval

DAY_S = 86_400
HOUR_S = 3_600
WATTS_PER_KW = 1_000


class Speed(BaseModel):
    """How fast one strategy runs; every figure is an interval because the step is one."""

    model_config = FROZEN

    tokens_per_s: Interval = Field(description="Tokens/s of the whole cluster.")
    model_tflops_per_gpu: Interval = Field(description="Useful TFLOP/s, recompute not counted.")
    hardware_tflops_per_gpu: Interval = Field(description="Executed TFLOP/s, recompute counted.")
    mfu: Interval = Field(description="Useful FLOPs relative to the peak of the accelerator.")
    hfu: Interval = Field(description="Executed FLOPs relative to the peak of the accelerator.")


class RunEstimate(BaseModel):
    """What the token budget takes on this cluster."""

    model_config = FROZEN

    tokens: int = Field(description="Training tokens of the whole run.")
    steps: int = Field(description="Optimizer steps of the whole run.")
    days: Interval = Field(description="Wall time without interruptions.")
    gpu_hours: Interval = Field(description="Accelerators multiplied by hours of the run.")
    energy_kwh: Interval | None = Field(
        description="Accelerators at board power; hosts, network and cooling not counted. "
        "None where the card's power is not known."
    )
    money: Interval | None = Field(
        description="Cost of the run in the currency of `gpu_hour_price`; none: no price was given."
    )


def executed_flops(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> float:
    """FLOPs of one optimizer step on all GPUs, those that are computed again included."""
    setting = setting_of(cluster.gpu, workload, strategy)
    useful = step_flops(model, workload)
    if not setting.repeated and not setting.repeated_scores:
        return named(useful, "executed_step_flops", "FLOP")
    scores = model.depth * score_flops(model, workload.attended_length)
    scores = named(scores, "scores_token_flops", "FLOP", "attention of one token in all layers")
    products = forward_flops(model, workload.attended_length) - scores - head_flops(model)
    products = named(products, "products_token_flops", "FLOP", "matrix products of all layers")
    again = setting.repeated * products + setting.repeated_scores * scores
    if setting.execution.tiled_mlp:
        again += setting.repeated * mlp_flops(model)
    executed = useful + again * workload.tokens_per_step
    return named(executed, "executed_step_flops", "FLOP")


def speed_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    step: Interval,
) -> Speed:
    """The rates of a step that takes so many seconds."""
    useful = step_flops(model, workload) / cluster.gpus
    executed = executed_flops(model, cluster, workload, strategy) / cluster.gpus
    peak = peak_flops(cluster.gpu, workload.precision)
    return Speed.model_construct(
        tokens_per_s=rate_of(workload.tokens_per_step, step),
        model_tflops_per_gpu=rate_of(useful / TFLOP, step),
        hardware_tflops_per_gpu=rate_of(executed / TFLOP, step),
        mfu=rate_of(useful / peak, step),
        hfu=rate_of(executed / peak, step),
    )


def run_steps(workload: Workload) -> int | None:
    """Optimizer steps of the budget; none without tokens, and without samples for its epochs."""
    if workload.steps is not None:
        return workload.steps
    if workload.epochs is None or workload.samples is None:
        return None
    return ceil(workload.epochs * workload.samples / workload.global_batch_size)


def run_of(cluster: ClusterSpec, workload: Workload, *, step: Interval) -> RunEstimate | None:
    """Days, accelerator hours, energy and money of the budget; none where there is no budget."""
    steps = run_steps(workload)
    if steps is None:
        return None
    hours = scaled(step, steps / HOUR_S)
    gpu_hours = scaled(hours, cluster.gpus)
    power, price = cluster.gpu.power_w, cluster.gpu_hour_price
    return RunEstimate.model_construct(
        tokens=workload.tokens or steps * workload.tokens_per_step,
        steps=steps,
        days=scaled(hours, HOUR_S / DAY_S),
        gpu_hours=gpu_hours,
        energy_kwh=None if power is None else scaled(gpu_hours, power / WATTS_PER_KW),
        money=None if price is None else scaled(gpu_hours, price),
    )


def scaled(value: Interval, factor: float) -> Interval:
    """Likely value and both ends times a factor."""
    return Interval(value.low * factor, value.likely * factor, value.high * factor)


def rate_of(amount: float, step: Interval) -> Interval:
    """An amount of one step for each second; the longest step has the lowest rate."""
    return Interval(amount / step.high, amount / step.likely, amount / step.low)
