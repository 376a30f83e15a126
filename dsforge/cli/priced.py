"""Tables of priced strategies, shared by `plan` and `estimate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from dsforge.api.results import FindResult
from dsforge.cli.text import aligned, columns, wrapped
from dsforge.plan import Plan, Rejected, Search
from dsforge.planner.alternatives import Alternative
from dsforge.planner.axes import Question
from dsforge.planner.figures import LABELS, STEP, fit, memory_label
from dsforge.planner.flips import Flip
from dsforge.planner.front import FrontPoint
from dsforge.planner.pricing import largest_term, missing_bytes
from dsforge.units import Interval, amount, count, gib, seconds, times

REJECTED_SHOWN = 12
TOO_SLOW = 2.0  # times the fastest on as many GPUs: not in the table of the front


def console() -> Console:
    """Where tables go: stdout, as wide as text is there."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=columns())


def ranking(search: Search, top: int) -> list[str]:
    """The choice, then the plans that fit as surely, the fastest first; one a line."""
    label = memory_label("device", on_cpu=search.plans[0].cluster.gpu.is_cpu)
    head = ("the choice, then the fastest", "step", label, "", "host RAM", "MFU", "largest term")
    rows = [
        (
            plan.strategy.label(),
            seconds(plan.choice.time.step_s.likely),
            gib(plan.choice.memory.device_bytes.likely),
            fit(plan.cluster, plan.choice),
            gib(plan.choice.memory.host_bytes.peak),
            f"{plan.speed.mfu.likely:.0%}",
            largest_term(plan.choice.memory).replace("_", " "),
        )
        for plan in search.plans[:top]
    ]
    return list(aligned(head, rows))


def losers(search: Search) -> list[str]:
    """Why the others lost: one line for each rule or shortage, the first that it struck."""
    shown: dict[tuple[str, str], Rejected] = {}
    for lost in search.rejected:
        shown.setdefault((lost.rule, lost.strategy.back_end), lost)
    return [
        line
        for lost in list(shown.values())[:REJECTED_SHOWN]
        for line in wrapped(f"{lost.strategy.label()}: {lost.message} [{lost.rule}]", first="  ")
    ]


def terms(plan: Plan) -> Table:
    """Memory and time of one plan, term by term."""
    memory, time = plan.choice.memory, plan.choice.time
    table = Table(box=None, pad_edge=False)
    table.add_column("term")
    table.add_column("likely", justify="right")
    table.add_column("low .. high", justify="right")
    for name, value in memory.terms:
        table.add_row(name.replace("_", " "), gib(value))
    for counter, label in LABELS.items():
        bounds: Interval = getattr(memory, f"{counter}_bytes")
        spread = f"{gib(bounds.low)} .. {gib(bounds.high)}"
        table.add_row(label, gib(bounds.likely), spread)
    for phase, value in memory.host_bytes:
        more = memory.load_copies_bytes
        spread = f"{gib(value)} .. {gib(value + more)}" if more else ""
        table.add_row(f"host RAM, {phase}", gib(value), spread)
    if memory.nvme_bytes:
        table.add_row("NVMe of a node", gib(memory.nvme_bytes))
    table.add_row("checkpoint", gib(memory.checkpoint_bytes))
    for name, value in time.terms:
        table.add_row(name.removesuffix("_s"), seconds(value))
    spread = f"{seconds(time.step_s.low)} .. {seconds(time.step_s.high)}"
    table.add_row(STEP, seconds(time.step_s.likely), spread)
    table.add_row("sent by a rank", f"{time.sent_bytes / 1e9:.3g} GB")
    for name, likely, between in (*_speed_rows(plan), *_run_rows(plan)):
        table.add_row(name, likely, between)
    return table


def _speed_rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Rates with their intervals."""
    speed = plan.speed
    yield _row("tokens/s", speed.tokens_per_s)
    yield _row("tokens/s/GPU", speed.tokens_per_s, 1 / plan.cluster.gpus)
    yield _row("model TFLOP/s/GPU", speed.model_tflops_per_gpu)
    yield _row("hardware TFLOP/s/GPU", speed.hardware_tflops_per_gpu)
    for name, share in (("MFU", speed.mfu), ("HFU", speed.hfu)):
        yield name, f"{share.likely:.1%}", f"{share.low:.1%} .. {share.high:.1%}"


def _run_rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """What the token budget takes; nothing without one."""
    run = plan.run
    if run is None:
        return
    yield "tokens of the run", count(run.tokens), f"{run.steps:,} steps"
    yield _row("days", run.days)
    yield _row("GPU-hours", run.gpu_hours)
    if run.energy_kwh:
        yield _row("energy, kWh of the GPUs", run.energy_kwh)
    if run.money:
        yield _row(f"cost at {plan.cluster.gpu_hour_price:g} per GPU-hour", run.money)


def _row(name: str, value: Interval, factor: float = 1.0) -> tuple[str, str, str]:
    low, likely, high = (amount(factor * end) for end in (value.low, value.likely, value.high))
    return name, likely, f"{low} .. {high}"


class _Words(NamedTuple):
    """How an inverse question and its values are called."""

    sought: str
    unit: str


QUESTIONS: dict[Question, _Words] = {
    "micro-batch": _Words("largest micro batch", "samples"),
    "seq-len": _Words("longest sequence", "tokens"),
    "gpus": _Words("fewest accelerators", ""),
    "model": _Words("largest model", "parameters"),
}


def answer(found: FindResult) -> list[str]:
    """`largest micro batch: 43 samples`, how sure that is, and what limits it."""
    said, words = found.answer, QUESTIONS[found.answer.question]

    def shown(value: int | None) -> str:
        if value is None:
            return "none"
        return count(value) if said.name else f"{value:,}"

    lines = [f"{words.sought}: {f'{said.name}, ' if said.name else ''}{shown(said.value)}"]
    lines[0] += f" {words.unit}".rstrip()
    if said.well_shaped:
        ends = count(said.largest.low), count(said.largest.high)
        lines.append(
            f"  by size    {count(said.well_shaped)} ({ends[0]} to {ends[1]}): the largest "
            "Llama-like shape"
        )
    lines.append(f"  certain    {shown(said.certain)}: even the upper memory estimate fits")
    lines.append(f"  possible   {shown(said.possible)}: the lower memory estimate fits")
    if said.offloaded:
        lines.append(f"  offload    {shown(said.offloaded)}: with offload to RAM or disk")
    if said.on_megatron:
        lines.append(
            f"  megatron   {shown(said.on_megatron)}: with tensor and pipeline parallelism"
        )
    return lines + ([f"  limit      {said.limit}"] if said.limit else [])


def neighbours(found: FindResult) -> list[str]:
    """Memory by term at the answer and at the next values, which do not fit; their plans."""
    choice, said = found.plan.choice, found.answer
    beyond = [near for near in said.neighbours if near.terms is not None]
    values = [(said.value, said.name), *((near.value, near.name) for near in beyond)]
    heads = [name or f"{value:,}" for value, name in values]
    rows = [
        (name.replace("_", " "), gib(size), *(gib(getattr(near.terms, name)) for near in beyond))
        for name, size in choice.memory.terms
    ]
    room = gib(-missing_bytes(found.plan.cluster, choice.memory))
    rows.append(("memory left", room, *(f"-{gib(near.missing_bytes)}" for near in beyond)))
    labels = [choice.strategy.label(), *(near.label for near in beyond)]
    plans = [f"  {head}: {label}" for head, label in zip(heads, labels, strict=True)]
    return [*aligned(("term", *heads), rows), *plans]


def instead(found: Iterable[Alternative]) -> list[str]:
    """The best plan of each other kind against the choice."""
    rows = []
    for other in found:
        more, memory = "+" if other.term_s > 0 else "-", "-" if other.saved_bytes > 0 else "+"
        rows.append(
            (
                other.label,
                seconds(other.step_s),
                times(other.slowdown, 1),
                f"{other.term} {more}{seconds(abs(other.term_s))}",
                f"{memory}{gib(abs(other.saved_bytes))}",
            )
        )
    return list(aligned(("strategy", "step", "", "differs most in", "device memory"), rows))


def flipping(found: tuple[Flip, ...]) -> list[str]:
    """Each change, or that nothing nearby flips the choice."""
    if not found:
        return ["  nothing: no other link, memory size, batch or sequence length within 8x"]
    return [line for flip in found for line in wrapped(f"{flip} ({flip.label})", first="  ")]


def fronts(found: tuple[FrontPoint, ...]) -> list[str]:
    """For each number of GPUs the fastest, our choice and the roomiest; all are in --json."""
    priced = any(point.run and point.run.money for point in found)
    timed = any(point.run for point in found)
    head = ["strategy", "GPUs", "step", "GPU-seconds", "memory left"]
    head += ["days"] * timed + ["cost"] * priced + [""]
    rows = []
    for point, why in _shown(found):
        run = point.run
        row = [point.label, f"{point.gpus:,}", seconds(point.step_s.likely), amount(point.gpu_s)]
        row += [gib(point.free_bytes), *([amount(run.days.likely)] if run else [])]
        rows.append([*row, *([amount(run.money.likely)] if run and run.money else []), why])
    return list(aligned(head, rows))


def _shown(found: tuple[FrontPoint, ...]) -> Iterator[tuple[FrontPoint, str]]:
    """The points that stand for each number of GPUs, and what each of them is."""
    for gpus in dict.fromkeys(point.gpus for point in found):
        here = [point for point in found if point.gpus == gpus]
        fastest = min(here, key=lambda p: p.step_s.likely)
        bound = TOO_SLOW * fastest.step_s.likely
        roomiest = max((p for p in here if p.step_s.likely <= bound), key=lambda p: p.free_bytes)
        for point in here:
            words = ["fastest"] if point is fastest else []
            words += ["chosen"] if point.chosen else []
            words += ["most memory left"] if point is roomiest and len(here) > 1 else []
            if words:
                yield point, ", ".join(words)
