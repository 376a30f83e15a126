"""Tables of priced strategies, shared by `plan` and `estimate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from dsforge.plan import Plan, Search
from dsforge.planner.alternatives import Alternative
from dsforge.planner.axes import Question
from dsforge.planner.flips import Flip
from dsforge.planner.front import FrontPoint
from dsforge.planner.inverse import Found
from dsforge.planner.pricing import largest_term, missing_bytes, shortage
from dsforge.units import GIB, Interval, amount, count, gib, seconds

REJECTED_SHOWN = 12
TOO_SLOW = 2.0  # times the fastest on as many GPUs: not in the table of the front


def console() -> Console:
    """Where tables go: stdout, wide enough for one line a plan when it is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=140)


def ranking(search: Search, top: int) -> Table:
    """The best plans, one a line."""
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    for name in ("GiB/GPU", "of", "RAM GiB", "step", "tokens/s/GPU", "MFU", "largest term"):
        table.add_column(name, justify="right")
    for plan in search.plans[:top]:
        memory, time = plan.choice.memory, plan.choice.time
        table.add_row(
            plan.strategy.label(),
            f"{memory.device_bytes.likely / GIB:.1f}",
            f"{plan.cluster.gpu.memory_bytes / GIB:.0f}",
            f"{memory.host_bytes.step / GIB:.0f}",
            seconds(time.step_s.likely),
            f"{time.tokens_per_s_per_gpu:,.0f}",
            f"{plan.speed.mfu.likely:.0%}",
            largest_term(memory),
        )
    return table


def losers(search: Search) -> Table:
    """Why the others lost: one line for each rule or shortage, with how often it struck."""
    table = Table(box=None, pad_edge=False)
    for name in ("rule", "strategy", "why"):
        table.add_column(name, overflow="fold")
    shown: dict[tuple[str, str], int] = {}
    for lost in search.rejected:
        key = (lost.rule, lost.strategy.back_end)
        shown[key] = shown.get(key, 0) + 1
        if shown[key] == 1 and len(shown) <= REJECTED_SHOWN:
            table.add_row(lost.rule, lost.strategy.label(), lost.message)
    return table


def headline(plan: Plan) -> str:
    """`llama-2-7b (6.74 B) on 16 x a100-80gb, 64 x 4096 tokens a step`."""
    work, cluster = plan.workload, plan.cluster
    return (
        f"{plan.model.name} ({count(plan.parameters)}) on {cluster.gpus} x {cluster.gpu.name}, "
        f"{work.global_batch_size} x {work.sequence_length} tokens a step, {work.precision}, "
        f"{work.method_name}"
    )


def terms(plan: Plan) -> Table:
    """Memory and time of one plan, term by term."""
    memory, time = plan.choice.memory, plan.choice.time
    table = Table(box=None, pad_edge=False)
    table.add_column("term")
    table.add_column("likely", justify="right")
    table.add_column("low .. high", justify="right")
    for name, value in memory.terms:
        table.add_row(name, gib(value))
    for name in ("allocated_bytes", "reserved_bytes", "device_bytes"):
        bounds: Interval = getattr(memory, name)
        spread = f"{gib(bounds.low)} .. {gib(bounds.high)}"
        table.add_row(name.removesuffix("_bytes"), gib(bounds.likely), spread)
    for phase, value in memory.host_bytes:
        table.add_row(f"host RAM, {phase}", gib(value))
    if memory.nvme_bytes:
        table.add_row("NVMe of a node", gib(memory.nvme_bytes))
    table.add_row("checkpoint", gib(memory.checkpoint_bytes))
    for name, value in time.terms:
        table.add_row(name.removesuffix("_s"), seconds(value))
    spread = f"{seconds(time.step_s.low)} .. {seconds(time.step_s.high)}"
    table.add_row("step", seconds(time.step_s.likely), spread)
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
    yield _row("GPU hours", run.gpu_hours)
    if run.energy_kwh:
        yield _row("energy, kWh of the GPUs", run.energy_kwh)
    if run.money:
        yield _row(f"money at {plan.cluster.gpu_hour_price:g} a GPU hour", run.money)


def _row(name: str, value: Interval, factor: float = 1.0) -> tuple[str, str, str]:
    low, likely, high = (amount(factor * end) for end in (value.low, value.likely, value.high))
    return name, likely, f"{low} .. {high}"


def verdict(plan: Plan) -> str:
    """`fits, 25.3 GiB left ...` or `does not fit: needs 92 GiB of 79 GiB ...`."""
    if not plan.choice.fits:
        lacking = shortage(plan.cluster, plan.choice.memory)
        return f"{plan.strategy.label()} does not fit: {lacking}"
    room = -missing_bytes(plan.cluster, plan.choice.memory)
    name = largest_term(plan.choice.memory)
    size = gib(getattr(plan.choice.memory.terms, name))
    left = f"{gib(room)} left on each accelerator"
    return f"{plan.strategy.label()}: fits, {left}; largest term {name} ({size})"


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


def answer(found: Found) -> list[str]:
    """`largest micro batch: 43 samples`, how sure that is, and what limits it."""
    said, words = found.answer, QUESTIONS[found.answer.question]

    def shown(value: int | None) -> str:
        if value is None:
            return "none"
        return count(value) if said.name else f"{value:,}"

    lines = [f"{words.sought}: {f'{said.name}, ' if said.name else ''}{shown(said.value)}"]
    lines[0] += f" {words.unit}".rstrip()
    if said.well_shaped:
        lines.append(f"  by size    {count(said.well_shaped)}: the largest Llama-like shape")
    lines.append(f"  certain    {shown(said.certain)}: the upper memory estimate fits, too")
    lines.append(f"  possible   {shown(said.possible)}: the lower memory estimate fits")
    if said.offloaded:
        lines.append(f"  offload    {shown(said.offloaded)}: with states in RAM or on disk")
    if said.on_megatron:
        lines.append(f"  megatron   {shown(said.on_megatron)}: with its tensors and stages split")
    return lines + ([f"  limit      {said.limit}"] if said.limit else [])


def neighbours(found: Found) -> Table:
    """Memory by term at the answer and at the next values, which do not fit."""
    choice, said = found.plan.choice, found.answer
    beyond = [near for near in said.neighbours if near.terms is not None]
    table = Table(box=None, pad_edge=False)
    table.add_column("term")
    for value, name in ((said.value, said.name), *((near.value, near.name) for near in beyond)):
        table.add_column(name or f"{value:,}", justify="right")
    for name, size in choice.memory.terms:
        table.add_row(name, gib(size), *(gib(getattr(near.terms, name)) for near in beyond))
    room = gib(-missing_bytes(found.plan.cluster, choice.memory))
    table.add_row("left", room, *(f"-{gib(near.missing_bytes)}" for near in beyond))
    table.add_row("strategy", choice.strategy.label(), *(near.label for near in beyond))
    return table


def instead(found: Iterable[Alternative]) -> Table:
    """The best plan of each other kind against the choice."""
    table = Table(box=None, pad_edge=False)
    for name in ("kind", "strategy", "step", "of ours"):
        table.add_column(name, justify="right" if name in ("step", "of ours") else "left")
    table.add_column("differs most in", overflow="fold")
    table.add_column("GiB/GPU", justify="right")
    for other in found:
        more = "+" if other.term_s > 0 else "-"
        table.add_row(
            other.kind,
            other.label,
            seconds(other.step_s),
            f"{other.slowdown:.2f}x",
            f"{other.term} {more}{seconds(abs(other.term_s))}",
            f"{-other.saved_bytes / GIB:+.1f}",
        )
    return table


def flipping(found: tuple[Flip, ...]) -> list[str]:
    """One line for each change, or that nothing nearby flips the choice."""
    if not found:
        return ["  nothing near: no other link, memory size, batch or sequence within 8x"]
    return [f"  {flip} ({flip.label})" for flip in found]


def fronts(found: tuple[FrontPoint, ...]) -> Table:
    """For each number of GPUs the fastest, our choice and the roomiest; all are in --json."""
    table = Table(box=None, pad_edge=False)
    for name in ("GPUs", "step", "GPU s", "GiB free"):
        table.add_column(name, justify="right")
    priced = any(point.run and point.run.money for point in found)
    timed = any(point.run for point in found)
    for name, shown in (("days", timed), ("money", priced)):
        if shown:
            table.add_column(name, justify="right")
    table.add_column("strategy")
    table.add_column("")
    for point, why in _shown(found):
        run = point.run
        days = [amount(run.days.likely)] if run else []
        money = [amount(run.money.likely)] if run and run.money else []
        table.add_row(
            str(point.gpus),
            seconds(point.step_s.likely),
            amount(point.gpu_s),
            f"{point.free_bytes / GIB:.1f}",
            *days,
            *money,
            point.label,
            why,
        )
    return table


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
            words += ["roomiest"] if point is roomiest and len(here) > 1 else []
            if words:
                yield point, ", ".join(words)
