"""Predictions of the plan beside train.yaml, shown next to the measured values.

A prediction is shown only where the run is what was planned: the ranks, the layout, the ZeRO stage,
the batches. A figure of another run beside one's own would mislead more than none.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dsforge.errors import DsforgeError
from dsforge.estimate.flops import step_flops
from dsforge.estimate.rates import peak_flops
from dsforge.estimate.run import rate_of
from dsforge.job import TrainJob
from dsforge.measurement import Measurement
from dsforge.planner.figures import memory_label
from dsforge.reading.stored import read_plan
from dsforge.train.engines.registry import adapter_of
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.units import Interval, amount, gib, likely_text, seconds

PLAN = "plan.json"


class Prediction(NamedTuple):
    """Figures of the plan for this run."""

    step_s: Interval
    tokens_per_step: int  # every sequence full
    token_flops: float  # useful FLOPs of one token
    peak_flops: float  # of all ranks, FLOP/s
    memory_bytes: Interval  # of the fullest rank, by the counter that is measured
    memory_label: str  # what that counter is called
    sent_bytes: int  # by one rank in a step

    def mfu(self, tokens_per_s: float) -> float:
        """The share of the peak that so many real tokens a second use; padding is no use."""
        return tokens_per_s * self.token_flops / self.peak_flops

    @property
    def likely_mfu(self) -> float:
        """The share that the plan expects."""
        return self.mfu(self.tokens_per_step / self.step_s.likely)


def read_prediction(folder: Path, job: TrainJob, config: EngineConfig) -> Prediction | None:
    """What the plan in a run folder says of this run; none where it is about another one."""
    try:
        plan = read_plan(folder / PLAN)
    except DsforgeError:
        return None
    prices = (plan.choice, *(v.priced for v in plan.variants if v.priced is not None))
    is_planned = adapter_of(job).is_planned
    price = next((p for p in prices if is_planned(p.strategy, config)), None)
    workload, gpu = plan.workload, plan.cluster.gpu
    of_job = workload.sequence_length == job.sequence_length and workload.lora == job.lora
    if price is None or not of_job or workload.precision != config.precision:
        return None
    memory = price.memory.device_bytes if gpu.is_cpu else price.memory.allocated_bytes
    return Prediction(
        step_s=price.time.step_s,
        tokens_per_step=workload.tokens_per_step,
        token_flops=step_flops(plan.model, workload) / workload.tokens_per_step,
        peak_flops=peak_flops(gpu, workload.precision) * plan.cluster.gpus,
        memory_bytes=memory,
        memory_label=memory_label("allocated", on_cpu=gpu.is_cpu),
        sent_bytes=price.time.sent_bytes,
    )


def summary(measured: Measurement, memory_bytes: int, said: Prediction | None) -> list[str]:
    """Lines that end a run: each figure, and what was predicted where there is a plan of it."""
    steps = sorted(measured.step_s)
    step_s = steps[len(steps) // 2]
    tokens_per_s = measured.tokens_per_step / step_s
    rows = [("step time", seconds(step_s), said and likely_text(said.step_s, seconds))]
    if said is None:
        rows += [("tokens/s", amount(tokens_per_s), None)]
    else:
        # Both count the tokens of this run: padding is neither measured nor predicted.
        counted = measured.tokens_per_step
        spread = rate_of(counted, said.step_s)
        rows += [
            ("tokens/s", amount(tokens_per_s), likely_text(spread, amount)),
            ("MFU", f"{said.mfu(tokens_per_s):.1%}", f"{said.mfu(spread.likely):.1%}"),
        ]
    rows += [
        (
            said.memory_label if said else "memory",
            gib(memory_bytes),
            said and likely_text(said.memory_bytes, gib),
        ),
        ("sent", gib(measured.sent_bytes), said and gib(said.sent_bytes)),
    ]
    names, width = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = ["measured:" if said is None else "measured, and predicted by plan.json:"]
    for name, value, predicted in rows:
        beside = f"  predicted {predicted}" if predicted else ""
        lines.append(f"  {name:<{names}} {value:<{width}}{beside}".rstrip())
    return lines
