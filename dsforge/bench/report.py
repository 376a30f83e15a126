"""Plan + outcomes -> Report: what each strategy needed, beside its prediction, and which to use.

The rule of practice is "ZeRO-2 when both fit": less sharding sends fewer bytes. So of strategies
whose step times differ by less than the planner's own margin the one that shards less wins, and a
faster one wins only beyond it. The report says so with the numbers of the run.
"""

from __future__ import annotations

from statistics import median
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from dsforge.bench.matrix import STRATEGIES, BenchName, Cell, priced
from dsforge.estimate.run import rate_of
from dsforge.measurement import Measurement, quartiles
from dsforge.plan import Plan
from dsforge.planner.figures import memory_label
from dsforge.specs import FROZEN
from dsforge.units import Interval, gib, seconds

SIMPLER_MARGIN = 1.10  # a strategy that shards less may take this much longer, measured
PARITY = 1e-2  # largest difference of two loss curves that rounding explains


class Outcome(BaseModel):
    """What came of one cell: a measurement, or the reason why there is none."""

    model_config = FROZEN

    cell: Cell = Field(description="Strategy and repetition of the launch.")
    wall_s: float = Field(ge=0, description="Seconds of the launch, imports and loading included.")
    measurement: Measurement | None = Field(
        default=None, description="Measurements of the ranks; none: the run failed."
    )
    error: str = Field(default="", description="Last lines of a run that failed.")


class Figure(BaseModel):
    """A predicted and a measured quantity in one unit; none where there is no measurement."""

    model_config = FROZEN

    predicted: Interval = Field(description="Predicted value with its 80 % interval.")
    measured: float | None = Field(description="Measured value; none where no run was measured.")

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        unknown = self.measured is None or not self.predicted.likely
        return None if unknown else self.measured / self.predicted.likely  # type: ignore[operator]


class Row(BaseModel):
    """One strategy, all its repeats together."""

    model_config = FROZEN

    variant: BenchName = Field(description="Strategy by the name of its files.")
    strategy: str = Field(description="Label of the strategy.")
    runs: int = Field(ge=0, description="Launches that were measured.")
    failures: int = Field(ge=0, description="Launches that failed or exceeded the time limit.")
    step_s: Figure = Field(description="Median step time, s.")
    spread_s: tuple[float, float] | None = Field(description="Quartiles of the step time, s.")
    tokens_per_s: Figure = Field(
        description="Tokens/s of all ranks; both count `tokens_per_step` of the report."
    )
    memory_bytes: Figure = Field(description="Peak bytes of the fullest rank.")
    sent_bytes: Figure = Field(description="Bytes that one rank sends in a step.")
    final_loss: float | None = Field(
        description="Loss of the last step, first repeat; none where none was measured."
    )
    parity: float | None = Field(description="Largest loss difference from the first strategy.")


class Recommendation(BaseModel):
    """Which strategy to use, and why."""

    model_config = FROZEN

    variant: BenchName | None = Field(description="Strategy to use; none: no run was measured.")
    reasons: tuple[str, ...] = Field(description="Reasons, with the measured figures.")


class Report(BaseModel):
    """The whole comparison; its JSON is what `dsforge bench --json` prints."""

    model_config = FROZEN

    schema_version: Literal[1] = Field(
        default=1, description="Version of the shape of this document."
    )
    model: str = Field(description="Name of the model.")
    parameters: int = Field(description="Unique parameters of the model.")
    cluster: str = Field(description="Nodes, accelerators and card, in words.")
    sequence_length: int = Field(description="Tokens per sample.")
    global_batch_size: int = Field(description="Samples per optimizer step.")
    tokens_per_step: float = Field(
        description="Tokens of a step, without padding if measured, else of full sequences."
    )
    warmup_steps: int = Field(description="First steps of each run that are not counted.")
    memory_counter: str = Field(description="Memory counter that was measured.")
    versions: dict[str, str] = Field(
        description="Version by library, as the first run reported it."
    )
    hardware: dict[str, str] = Field(description="Hardware as the first run reported it.")
    rows: tuple[Row, ...] = Field(description="One row for each strategy, in order of sharding.")
    recommendation: Recommendation = Field(description="Strategy to use, with the reasons.")
    outcomes: tuple[Outcome, ...] = Field(description="Result of each launch.")


def report(plan: Plan, outcomes: tuple[Outcome, ...], *, warmup_steps: int) -> Report:
    """The comparison of all strategies that occur in `outcomes`, in order of sharding."""
    names = [name for name in STRATEGIES if any(o.cell.variant == name for o in outcomes)]
    measured = [o.measurement for o in outcomes if o.measurement]
    first = measured[0] if measured else None
    tokens = first.tokens_per_step if first else plan.workload.tokens_per_step
    rows = tuple(_row(plan, _Own(name, outcomes, tokens), warmup_steps) for name in names)
    cluster = plan.cluster
    return Report(
        model=plan.model.name,
        parameters=plan.parameters,
        cluster=f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.name}",
        sequence_length=plan.workload.sequence_length,
        global_batch_size=plan.workload.global_batch_size,
        tokens_per_step=tokens,
        warmup_steps=warmup_steps,
        memory_counter=memory_label("reserved", on_cpu=cluster.gpu.is_cpu),
        versions=first.versions if first else {},
        hardware=first.hardware if first else {},
        rows=rows,
        recommendation=_recommend(rows),
        outcomes=outcomes,
    )


def step_times_s(measurement: Measurement, warmup_steps: int) -> tuple[float, ...]:
    """Counted steps without the first `warmup_steps` of the run; the trainer drops some itself."""
    return measurement.step_s[max(0, warmup_steps - measurement.warmup_steps) :]


class _Own(NamedTuple):
    """A strategy, the outcomes of all, and the tokens of a step that all rates count."""

    name: BenchName
    outcomes: tuple[Outcome, ...]
    tokens: float


def _row(plan: Plan, given: _Own, warmup_steps: int) -> Row:
    """One strategy: medians over all steps of all its repeats, beside the plan's prediction."""
    name, outcomes, tokens = given
    own = [o for o in outcomes if o.cell.variant == name]
    runs = [o.measurement for o in own if o.measurement]
    steps = [s for run in runs for s in step_times_s(run, warmup_steps)]
    step = median(steps) if steps else None
    price, is_cpu = priced(plan, name), plan.cluster.gpu.is_cpu
    memory = [r.memory.host_bytes if is_cpu else r.memory.reserved_bytes for r in runs]
    return Row(
        variant=name,
        strategy=price.strategy.label(),
        runs=len(runs),
        failures=len(own) - len(runs),
        step_s=Figure(predicted=price.time.step_s, measured=step),
        spread_s=quartiles(steps),
        tokens_per_s=Figure(
            predicted=rate_of(tokens, price.time.step_s),
            measured=tokens / step if step else None,
        ),
        memory_bytes=Figure(
            predicted=price.memory.device_bytes if is_cpu else price.memory.reserved_bytes,
            measured=max(memory, default=None),
        ),
        sent_bytes=Figure(
            predicted=_exact(price.time.sent_bytes),
            measured=max((r.sent_bytes for r in runs), default=None),
        ),
        final_loss=runs[0].losses[-1] if runs and runs[0].losses else None,
        parity=_parity(runs, outcomes),
    )


def _exact(value: float) -> Interval:
    """A figure that is predicted as one number."""
    return Interval(value, value, value)


def _parity(runs: list[Measurement], outcomes: tuple[Outcome, ...]) -> float | None:
    """Largest difference of a run's losses from those of the first run measured at all."""
    baseline = next((o.measurement.losses for o in outcomes if o.measurement), ())
    gaps = [abs(a - b) for run in runs for a, b in zip(run.losses, baseline, strict=False)]
    return max(gaps, default=None)


def _recommend(rows: tuple[Row, ...]) -> Recommendation:
    """The strategy that shards least among those with a quarter of their steps fast enough."""
    measured = [row for row in rows if row.step_s.measured is not None]
    if not measured:
        return Recommendation(variant=None, reasons=("no run was measured",))
    fastest = min(_step_s(row) for row in measured)
    enough = fastest * SIMPLER_MARGIN
    best = next(row for row in measured if _quartiles_s(row)[0] <= enough)
    reasons = [_scatter(best)] if _step_s(best) > enough else []
    reasons += [_against(best, other) for other in measured if other is not best]
    reasons += [f"{row.variant} failed in every run" for row in rows if not row.runs]
    reasons += _compared_with_advice(best, measured)
    return Recommendation(variant=best.variant, reasons=(*reasons, _agreement(measured)))


def _step_s(row: Row) -> float:
    """Median step time of a measured row, s."""
    return row.step_s.measured or 0.0


def _quartiles_s(row: Row) -> tuple[float, float]:
    """Quartiles of the step time of a measured row, s."""
    return row.spread_s or (0.0, 0.0)


def _scatter(row: Row) -> str:
    """That the median of a row says little."""
    low, high = _quartiles_s(row)
    return (
        f"half of the steps of {row.variant} are between {seconds(low)} and {seconds(high)}: "
        "too much variation to compare strategies; repeat it (`--repeats`) on an idle machine"
    )


def _against(best: Row, other: Row) -> str:
    """The numbers of two strategies in one sentence."""
    ratio = _step_s(other) / _step_s(best)
    memory = (other.memory_bytes.measured or 0) - (best.memory_bytes.measured or 0)
    speed = f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower"
    return (
        f"{best.variant} takes {seconds(_step_s(best))} per step, {speed} than "
        f"{other.variant} ({seconds(_step_s(other))}); {other.variant} needs "
        f"{gib(abs(memory))} {'more' if memory >= 0 else 'less'} memory on the fullest rank"
    )


def _compared_with_advice(best: Row, measured: list[Row]) -> list[str]:
    """How the result stands to the rule of practice, where the rule speaks."""
    names = {row.variant for row in measured}
    if not {"zero2", "zero3"} <= names:
        return []
    if best.variant == "zero3":
        return ["the usual advice is ZeRO-2 if both fit; here ZeRO-3 was clearly faster"]
    return ["both fit, and the usual advice is ZeRO-2 if ZeRO-2 and ZeRO-3 both fit"]


def _agreement(measured: list[Row]) -> str:
    """Whether all strategies computed the same losses."""
    worst = max((row.parity or 0.0) for row in measured)
    if len(measured) == 1:
        return "one strategy was measured, so no loss curves can be compared"
    if worst <= PARITY:
        return f"all loss curves agree within {worst:.2g}, so the choice does not change the result"
    return (
        f"loss curves differ by up to {worst:.2g}, more than the {PARITY:g} that rounding "
        "explains: check this before using either result"
    )
