"""Published figures: a question as a spec, what was published, and the predictor's answer to it.

Documentation, papers and readmes seldom print a whole table of runs: they say that a model took so
many GiB, that a card makes so many tokens a second, that a size is the largest that fits. Each row
of a table of figures holds such a sentence as the spec that `dsforge estimate --spec` takes, the
quantity, its unit and the value. A row whose `express` is `none` cannot be asked: it counts as
unanswered, so that a predictor cannot look better by refusing what it does not know.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsforge.errors import DsforgeError
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.doubts import HOST_ENDS
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.flops import forward_flops, layer_products, score_flops
from dsforge.estimate.host import idle_bytes
from dsforge.estimate.rates import peak_flops
from dsforge.estimate.run import HOUR_S, rate_of, scaled
from dsforge.estimate.unmeasured import errors_of
from dsforge.plan import Plan
from dsforge.planner.inverse import Answer
from dsforge.specs import Workload
from dsforge.strategy import FULLY_SHARDED
from dsforge.units import GIB, TFLOP, Interval

Quantity = Literal[
    "mem",
    "mem_total",
    "mem_states",
    "opt_states",
    "host",
    "fits",
    "find model",
    "step_s",
    "samples/s",
    "tok/s/gpu",
    "gpu_hours",
    "hw_tflops",
    "hw_tflops_total",
    "model_tflops",
    "mfu",
    "mds_tflops",
    "full_tflops",
    "mfu_full",
]
MEMORY: tuple[Quantity, ...] = ("mem", "mem_total", "mem_states", "opt_states")
NO_SPEED: tuple[Quantity, ...] = ("host", "fits", "find model")
EFFECTIVE = 0.9  # of a published run's time is training ("over 90 %": Llama 3, section 3.3.4)
BILLION = 1e9
LONGEST_SPEC = 20_000  # characters
PARTS = ("model", "cluster", "workload", "strategy")
SCORES_COUNTED_WHOLE = 2  # attention without the causal half, against the half that is needed
PASSES = {"mds_tflops": 4, "full_tflops": 3, "mfu_full": 3}  # forward, backward 2, recomputation


class Figure(BaseModel):
    """One published figure and the spec of the run that it is of."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: str = Field(
        min_length=1, max_length=200, description="Source and number of the row, such as stas-12."
    )
    source: str = Field(min_length=1, description="Page, paper or repository that published it.")
    quantity: Quantity = Field(description="Quantity that was published.")
    counter: str = Field(
        default="", description="Memory counter: `allocated`, `reserved`, `device` or `unknown`."
    )
    published: str = Field(description="The value; `yes` or `no` where the quantity is `fits`.")
    unit: str = Field(default="", description="Unit of the published value.")
    express: Literal["exact", "nearest", "none"] = Field(
        default="exact",
        description="`exact`: the spec describes the run exactly; `nearest`: a setting of the "
        "run cannot be expressed in a spec; `none`: there is no prediction.",
    )
    why_or_nearest: str = Field(
        default="", description="Difference between source and spec, or the reason for `none`."
    )
    spec: dict[str, Any] = Field(description="Model, cluster, workload and strategy.")

    @field_validator("spec", mode="before")
    @classmethod
    def _spec(cls, text: Any) -> Any:
        if not isinstance(text, str) or len(text) > LONGEST_SPEC:
            raise ValueError(f"should be JSON text of at most {LONGEST_SPEC} characters")
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError("should be a JSON object") from error
        if not isinstance(spec, dict) or not set(spec) <= set(PARTS):
            raise ValueError(f"should be a JSON object with {', '.join(PARTS)}")
        if not all(isinstance(spec.get(part, {}), dict) for part in PARTS[1:]):
            raise ValueError(f"{', '.join(PARTS[1:])} should be objects")
        return spec

    @field_validator("published")
    @classmethod
    def _published(cls, text: str) -> str:
        if text not in ("yes", "no") and not float(text) > 0:
            raise ValueError("should be above 0, or yes or no")
        return text

    @property
    def value(self) -> float:
        """The published value in its unit; 1 or 0 for `yes` or `no`."""
        words = {"yes": 1.0, "no": 0.0}
        return words[self.published] if self.published in words else float(self.published)

    @property
    def counts_states(self) -> bool:
        """Whether the largest model is one of arithmetic: nothing but states on the card."""
        return self.quantity == "find model" and self.counter == "states"

    @property
    def regime(self) -> str:
        """The kind of use: what is asked, and the setting that decides how runs of it behave."""
        kind = "memory" if self.quantity in MEMORY else "speed"
        if self.quantity in NO_SPEED:
            return self.quantity
        strategy, workload = self.spec.get("strategy", {}), self.spec.get("workload", {})
        offloads = ("offload_optimizer", "offload_parameters")
        if any(strategy.get(key, "none") != "none" for key in offloads):
            return f"{kind}, offload"
        if "v100" in str(self.spec.get("cluster", {}).get("gpu")).lower():
            return f"{kind}, V100"
        if strategy.get("back_end") == "megatron":
            return f"{kind}, Megatron"
        return f"{kind}, {workload.get('method', 'full')}"


def answer(figure: Figure, plan: Plan, found: Answer | None) -> Interval:
    """What is predicted for a figure, in the figure's unit. DsforgeError where that is not clear.

    `found` is the answer to `--find model`, for figures that ask for the largest model.
    """
    if figure.quantity == "find model":
        if figure.counts_states:
            return _largest_by_states(plan)
        if found is None:
            raise DsforgeError("no size was searched", "ask for the largest model")
        return scaled(found.largest, 1 / BILLION)
    if figure.quantity == "fits":
        return _exactly(float(plan.choice.fits))
    if figure.quantity in MEMORY or figure.quantity == "host":
        return _memory(figure, plan)
    return _speed(figure, plan)


def _memory(figure: Figure, plan: Plan) -> Interval:
    """Memory in the figure's unit."""
    unit = GIB if figure.unit == "GiB" else BILLION
    memory = plan.choice.memory
    if figure.quantity == "host":
        return scaled(_host(figure, plan), 1 / unit)
    if figure.quantity in ("mem_states", "opt_states"):
        return scaled(_states(figure, plan), 1 / unit)
    counters = {
        "allocated": memory.allocated_bytes,
        "reserved": memory.reserved_bytes,
        "device": memory.device_bytes,
        "unknown": Interval(
            memory.allocated_bytes.low, memory.reserved_bytes.likely, memory.device_bytes.high
        ),
    }
    if figure.counter not in counters:
        raise DsforgeError(f"counter (={figure.counter})", f"use {', '.join(counters)}")
    ranks = plan.cluster.gpus if figure.quantity == "mem_total" else 1
    return scaled(counters[figure.counter], ranks / unit)


def _states(figure: Figure, plan: Plan) -> Interval:
    """Bytes of a rank's states: what lasts, or the most while the optimizer steps.

    Some count the bytes of a parameter that last (Rajbhandari et al. 2020, section 3.1: 16), others
    those of the step, where float32 gradients have replaced those in 16 bits, and the largest
    module that stage 3 gathers (DeepSpeed's `estimate_zero3_model_states_mem_needs`: 18).
    """
    costs = family_costs(plan.model, plan.cluster, plan.workload, plan.strategy)
    kept, (error, _) = costs.fullest.kept, errors_of(plan.model, plan.strategy)
    if figure.quantity == "opt_states":
        return Interval(*(kept.optimizer * (1 + e) for e in (-error, 0.0, error)))
    lasting = kept.weights + kept.gradients + kept.optimizer
    most = lasting + max(0.0, kept.step_gradients - kept.gradients) + _gathered(costs, plan)
    likely = most if figure.counter == "step" else lasting
    return Interval(lasting * (1 - error), likely, most * (1 + error))


def _gathered(costs: FamilyCosts, plan: Plan) -> float:
    """Bytes of the largest module that ZeRO-3 gathers, and of its gradients."""
    if plan.strategy.zero_stage != FULLY_SHARDED:
        return 0.0
    model = plan.model
    matrices = layer_products(model, moe_layer=False).values()
    sizes = (model.vocab_size * model.embedding_size, *(p.elements for p in matrices))
    return 2.0 * element_bytes(costs.workload) * max(sizes)


def _largest_by_states(plan: Plan) -> Interval:
    """Billions of parameters whose states alone fill the card: bytes of a parameter divide it."""
    costs = family_costs(plan.model, plan.cluster, plan.workload, plan.strategy)
    kept, (error, _) = costs.fullest.kept, errors_of(plan.model, plan.strategy)
    each = (kept.weights + kept.gradients + kept.optimizer) / plan.parameters
    likely = plan.cluster.gpu.memory_bytes / each / BILLION
    return Interval(likely / (1 + error), likely, likely / (1 - error))


def _host(figure: Figure, plan: Plan) -> Interval:
    """RAM of one node: of tensors at their peak, or what the node shows in steps.

    Below ZeRO stage 3 each rank builds a model of its own before it is sharded, and a monitor of
    the node shows the most of that and of the steps; stage 3 may build it in shards. A count of
    tensors has no processes.
    """
    memory, idle = plan.choice.memory, idle_bytes(plan.cluster)
    host, copies = memory.host_bytes, memory.load_copies_bytes
    counted = figure.counter == "allocated"
    shown, low = (host.peak if counted else host.step), host.step
    if plan.strategy.zero_stage < FULLY_SHARDED:
        shown = max(shown, idle + copies)
    processes = idle if counted else 0
    least, most = HOST_ENDS.low * low, HOST_ENDS.high * max(shown, low + copies)
    return Interval(least - processes, shown - processes, most - processes)


def _speed(figure: Figure, plan: Plan) -> Interval:
    """Seconds of a step, or a rate that follows from them."""
    workload, gpus, speed = plan.workload, plan.cluster.gpus, plan.speed
    step, quantity = plan.choice.time.step_s, figure.quantity
    rates = {
        "hw_tflops": (speed.hardware_tflops_per_gpu, 1),
        "hw_tflops_total": (speed.hardware_tflops_per_gpu, gpus),
        "model_tflops": (speed.model_tflops_per_gpu, 1),
        "mfu": (speed.mfu, 100),
        "step_s": (step, 1),
    }
    if quantity in rates:
        return scaled(*rates[quantity])
    if quantity == "gpu_hours":
        hours = scaled(step, _tokens(workload) / workload.tokens_per_step * gpus / HOUR_S)
        return Interval(hours.low, hours.likely / EFFECTIVE, hours.high / EFFECTIVE)
    amounts = {
        "samples/s": float(workload.global_batch_size),
        "tok/s/gpu": workload.tokens_per_step / gpus,
    }
    if quantity not in amounts:
        amounts[quantity] = _counted(quantity, plan) * workload.tokens_per_step / gpus
    return rate_of(amounts[quantity], step)


def _counted(quantity: Quantity, plan: Plan) -> float:
    """FLOPs of one token as some count them, attention without the causal half; in TFLOP or %."""
    model, length = plan.model, plan.workload.sequence_length
    scores = model.depth * score_flops(model, length)
    whole = forward_flops(model, length) + (SCORES_COUNTED_WHOLE - 1) * scores
    unit = peak_flops(plan.cluster.gpu, plan.workload.precision) / 100
    return PASSES[quantity] * whole / (unit if quantity == "mfu_full" else TFLOP)


def _tokens(workload: Workload) -> int:
    if workload.tokens is None:
        raise DsforgeError(
            "`tokens` is missing in the workload", "set the number of training tokens"
        )
    return workload.tokens


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
