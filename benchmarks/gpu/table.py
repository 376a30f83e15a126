"""What a person reads: predicted beside measured, errors, targets."""

from __future__ import annotations

from statistics import median

from dsforge.estimate.params import parameters
from dsforge.units import GIB, count, seconds
from gpu.configurations import Case, fits_device
from gpu.records import COUNTERS, Record, Results

MEDIAN_TARGET, WORST_TARGET = 0.03, 0.08  # of memory, |predicted / measured - 1|
NAME_WIDTH = 58

DRY = "a dry run proves the way, not the predictions"


def planned(cases: list[Case]) -> str:
    """The configurations with their predicted memory and time, in the order of a run."""
    head = f"{'configuration':{NAME_WIDTH}} {'params':>8} {'allocated':>10} {'device':>8}"
    lines = [f"{head} {'step':>9} {'TFLOP/s':>8}  (predicted, GiB on the fullest rank)"]
    for case in cases:
        memory, time = case.priced.memory, case.priced.time
        lines.append(
            f"{case.configuration.name:{NAME_WIDTH}} {count(parameters(case.model)):>8}"
            f" {memory.allocated_bytes.likely / GIB:10.2f} {memory.device_bytes.likely / GIB:8.2f}"
            f" {seconds(time.step_s.likely):>9} {time.model_tflops_per_gpu:8.1f}"
            + ("" if fits_device(case) else "  should run out of memory")
        )
    return "\n".join(lines)


def progress(record: Record) -> str:
    """What came of one configuration, in a line."""
    if record.outcome != "measured":
        fits = record.predicted["fits"]
        expected = "; predicted to fit" if fits else "; predicted not to fit"
        first = record.error.splitlines()[0] if record.error else ""
        return f"{record.outcome}: {first[:120]}{expected if record.outcome == 'oom' else ''}"
    parts = [
        f"{counter} {_pair(record.predicted_bytes(counter) / GIB, peak / GIB)} GiB"
        for counter in COUNTERS
        if (peak := record.measured_bytes(counter)) is not None
    ]
    predicted_s = record.predicted["time"]["step_s"]["likely"]
    parts.append(f"step {_pair(predicted_s, record.step_s or 0.0)} s")
    return ", ".join(parts)


def _pair(predicted: float, measured: float) -> str:
    """`18.2 (19.1, +5%)`: measured, predicted, error."""
    return f"{measured:.3g} ({predicted:.3g}, {predicted / measured - 1:+.0%})"


def comparison(results: Results) -> str:
    """All records, predicted beside measured, with the ceilings and the targets below."""
    head = "".join(f"{counter + ' GiB':>25}" for counter in COUNTERS)
    columns = f"{'measured':>9}{'predict.':>9}{'error':>7}"
    lines = [
        f"{'':{NAME_WIDTH}}{head}{'step s':>25}{'MFU':>6}",
        f"{'configuration':{NAME_WIDTH}}{columns * 4}",
        *(_line(record) for record in results.records),
        "",
        *_ceilings(results),
        *_summary(results.records),
    ]
    return "\n".join(lines)


def _line(record: Record) -> str:
    """One record."""
    if record.outcome != "measured":
        return f"{record.name:{NAME_WIDTH}}  {progress(record)}"
    cells = ""
    for counter in COUNTERS:
        peak = record.measured_bytes(counter)
        cells += _cells(record.predicted_bytes(counter), peak, GIB)
    cells += _cells(record.predicted["time"]["step_s"]["likely"], record.step_s, 1)
    return f"{record.name:{NAME_WIDTH}}{cells}{(record.measured or {}).get('mfu', 0):6.0%}"


def _cells(predicted: float, measured: float | None, unit: float) -> str:
    """Measured, predicted and the error; blank where nothing was measured."""
    if not measured:
        return f"{'-':>9}{predicted / unit:9.3g}{'':>7}"
    error = predicted / measured - 1
    return f"{measured / unit:9.3g}{predicted / unit:9.3g}{error:+7.1%}"


def _ceilings(results: Results) -> list[str]:
    """The rates of the machine."""
    found = dict(results.ceilings)
    products = found.pop("matmul_tflops", {})
    lines = [f"{shape} bf16 product: {rate:.3g} TFLOP/s" for shape, rate in products.items()]
    lines += [f"{name}: {rate:.4g}" for name, rate in found.items() if isinstance(rate, float)]
    return [*lines, ""] if lines else []


def _summary(records: tuple[Record, ...]) -> list[str]:
    """Medians and worst errors; memory against its targets."""
    lines = []
    for counter in COUNTERS:
        pairs = [(r.predicted_bytes(counter), r.measured_bytes(counter)) for r in records]
        errors = [abs(p / m - 1) for p, m in pairs if m]
        if errors:
            met = median(errors) <= MEDIAN_TARGET and max(errors) <= WORST_TARGET
            target = f"target {MEDIAN_TARGET:.0%} and {WORST_TARGET:.0%}: "
            target += "met" if met else "missed"
            dry = any(record.dry_run for record in records)
            lines.append(f"{_errors(counter, errors)}; {DRY if dry else target}")
    times = [(r.predicted["time"]["step_s"]["likely"], r.step_s) for r in records]
    errors = [abs(p / m - 1) for p, m in times if m]
    lines += [_errors("step time", errors)] if errors else []
    lines += _best_mfu(records)
    outcomes = [r.outcome for r in records]
    kinds = [f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)]
    return [*lines, f"{len(records)} configurations: {', '.join(kinds)}"]


def _best_mfu(records: tuple[Record, ...]) -> list[str]:
    """The highest MFU, where all weights train and none of the work was recomputed."""
    found = [
        ((r.measured or {})["mfu"], r.name)
        for r in records
        if r.step_s and not r.plan["configuration"]["lora_rank"] and not r.dry_run
    ]
    return [f"best MFU: {max(found)[0]:.1%}, {max(found)[1]}"] if found else []


def _errors(what: str, errors: list[float]) -> str:
    """Median and worst error of one quantity."""
    worst, middle = max(errors), median(errors)
    return f"{what}: |error| median {middle:.1%}, worst {worst:.1%}, {len(errors)} runs"
