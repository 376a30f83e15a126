"""A plan on one screen: figures, what was assumed of the hardware, reasons, alternatives.

Reasons come in order of what they cost and alternatives in order of time; where the screen is full
the last are left out. `--verbose` shows all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dsforge.cli.text import aligned, columns, wrapped
from dsforge.plan import Plan, Priced, Reason, Rejected, Request, Search
from dsforge.planner.advice import TIGHT
from dsforge.planner.alternatives import AXES, Alternative
from dsforge.planner.figures import decisive, figures, fit, headline, memory_label
from dsforge.planner.preference import ease
from dsforge.planner.pricing import price
from dsforge.strategy import Strategy
from dsforge.units import GIB, SAME, gib, seconds, some, times

SCREEN = 24  # lines
REASONS, OTHERS, LEAST_REASONS = 3, 3, 1
SAID_ABOVE = ("fits", "does-not-fit")  # in the figures
SIZED_ALIKE = 1.02  # memory of one plan over another's from which on it is noticed
WIDTH = 14  # of labels
NOTICED_BYTES = GIB // 200  # a smaller term shows as nothing

_SHORT: dict[str, Callable[[Plan], str]] = {
    "default-model-sizes": lambda plan: f"sizes of {plan.model.name}",
    "default-nodes": lambda plan: "1 node",
    "default-intra-node": lambda plan: plan.cluster.intra_node.name,
    "default-inter-node": lambda plan: plan.cluster.inter_node.name,
    "default-nics": lambda plan: "1 network adapter",
    "default-host-memory": lambda plan: f"{gib(plan.cluster.host_memory_bytes)} of RAM",
    "default-cpu-cores": lambda plan: some(plan.cluster.cpu_cores, "core"),
    "default-sequence-length": lambda plan: f"{plan.workload.sequence_length:,} tokens",
    "default-method": lambda plan: plan.workload.method_name,
    "default-lora": lambda plan: f"rank {plan.workload.lora.rank}" if plan.workload.lora else "",
    "default-optimizer": lambda plan: plan.workload.optimizer,
    "default-precision": lambda plan: plan.workload.precision,
    "default-global-batch": lambda plan: f"batch {plan.workload.global_batch_size:,}",
    "default-software": lambda plan: f"scripts of {plan.choice.strategy.runs_as.software}",
    "default-epochs": lambda plan: f"{plan.workload.epochs:g} epochs",
    "default-learning-rate": lambda plan: f"rate {plan.workload.learning_rate:g}",
    "default-weight-decay": lambda plan: f"weight decay {plan.workload.weight_decay:g}",
}


class Other(NamedTuple):
    """Another plan, as a row."""

    name: str
    priced: Priced


def head(plan: Plan) -> list[str]:
    """The job, its figures, warnings, and what was assumed of the hardware and decides."""
    lines = wrapped(headline(plan))
    for figure in figures(plan):
        lines += wrapped(figure.value, first=_first(figure.label))
    for reason in plan.choice.reasons:
        if reason.kind == "warning":
            lines += wrapped(reason.message, first=_first("WARNING"))
    for text in decisive(plan):
        lines += wrapped(text, first=_first("assumed"))
    return lines


def _first(label: str) -> str:
    """A label at the beginning of a line, as wide as all are."""
    return f"  {label:<{WIDTH}} "


def defaults(plan: Plan) -> list[str]:
    """All defaults in one sentence."""
    found = [reason for reason in plan.choice.reasons if reason.kind == "default"]
    said = ", ".join(filter(None, (_short(plan, reason) for reason in found)))
    return wrapped(f"{said} (--verbose explains)", first="defaults: ") if said else []


def _short(plan: Plan, reason: Reason) -> str:
    """A default in a word or two; of a rule that is not known here, what it names."""
    if reason.rule == "default-gpus-per-node":  # the choice may use fewer
        number = re.search(r" is (\d+):", reason.message)
        return f"{some(int(number[1]), 'GPU')} per node" if number else ""
    short = _SHORT.get(reason.rule)
    return short(plan) if short else reason.rule.removeprefix("default-").replace("-", " ")


def every_reason(reasons: Iterable[Reason]) -> list[str]:
    """All reasons with their rules: the choice, notes on the input, defaults."""
    words = {"warning": "WARNING", "choice": "because", "note": "noted", "default": "assumed"}
    found = tuple(reasons)
    return [
        line
        for kind, word in words.items()
        for reason in found
        if reason.kind == kind
        for line in wrapped(f"{reason.message} [{reason.rule}]", first=f"  {word:<10}")
    ]


def term_lines(plan: Plan) -> list[str]:
    """Memory and time by term, the largest first, as far as there is anything of them."""
    sizes = sorted(plan.choice.memory.terms, key=lambda term: -term[1])
    spans = sorted(plan.choice.time.terms, key=lambda term: -term[1])
    memory = [
        f"{name.replace('_', ' ')} {gib(size)}" for name, size in sizes if size >= NOTICED_BYTES
    ]
    time = [f"{name.removesuffix('_s')} {seconds(span)}" for name, span in spans if span > 0]
    return [_as_many("memory is", memory), _as_many("time is", time)]


def _as_many(label: str, parts: list[str]) -> str:
    """As many parts as one line holds."""
    line = f"{_first(label)}{parts[0]}"
    for part in parts[1:]:
        longer = f"{line}, {part}"
        if len(longer) > columns():
            break
        line = longer
    return line


def table(plan: Plan, others: Iterable[Other], title: str, most: int) -> list[str]:
    """The fastest of other plans against the choice; nothing where there are none."""
    mine_s, cluster = plan.choice.time.step_s.likely, plan.cluster
    rows = [
        (
            other.name,
            seconds(other.priced.time.step_s.likely),
            times(other.priced.time.step_s.likely, mine_s),
            gib(other.priced.memory.device_bytes.likely),
            fit(cluster, other.priced),
        )
        for other in sorted(others, key=lambda other: other.priced.time.step_s.likely)[:most]
    ]
    label = memory_label("device", on_cpu=cluster.gpu.is_cpu)
    heads = (title, "step", "", label, "")
    return list(aligned(heads, rows)) if rows else []


def alternatives(plan: Plan, search: Search, others: Iterable[Alternative]) -> list[Other]:
    """The fastest plans of other kinds, and the tight one that is faster than all."""
    asked = plan.model, plan.cluster, plan.workload
    best: dict[object, Alternative] = {}
    for other in sorted(others, key=lambda other: other.step_s):
        best.setdefault(_kind_of(other.strategy), other)
    best.pop(_kind_of(plan.strategy), None)
    tight = [lost.strategy for lost in search.rejected if lost.rule == TIGHT]
    shown = [price(*asked, strategy) for strategy in tight]
    for other in best.values():
        priced = price(*asked, other.strategy)
        if not any(_is_dominated(priced, better) for better in (plan.choice, *shown)):
            shown.append(priced)
    return [Other(priced.strategy.label(), priced) for priced in shown[:OTHERS]]


def _is_dominated(priced: Priced, other: Priced) -> bool:
    """Whether another plan of the same engine that fits is as fast, as small and as easy.

    A plan of the other engine is shown all the same: it is what people compare.
    """
    if priced.strategy.back_end != other.strategy.back_end:
        return False
    mine, its = priced.memory.device_bytes, other.memory.device_bytes
    return (
        other.time.step_s.likely <= SAME * priced.time.step_s.likely
        and its.likely <= SIZED_ALIKE * mine.likely
        and its.high <= SIZED_ALIKE * mine.high
        and ease(other.strategy) <= ease(priced.strategy)
    )


def asked_and_lost(request: Request, search: Search) -> list[str]:
    """Why what the request fixes is not possible in its plainest form; nothing else."""
    fixed = {name for name, value in request.constraints if value is not None}
    if not fixed:
        return []
    plain = (plan.strategy for plan in search.plans if _extra_settings(plan.strategy) <= fixed)
    possible = {strategy.back_end for strategy in plain}
    lost: dict[tuple[str, str], Rejected] = {}
    for one in search.rejected:
        asked = one.strategy.back_end not in possible and _extra_settings(one.strategy) <= fixed
        if asked and one.rule != TIGHT:
            lost.setdefault((one.rule, one.strategy.back_end), one)
    return [
        line
        for one in list(lost.values())[:OTHERS]
        for line in wrapped(f"{one.strategy.label()}: {one.message}", first="not possible: ")
    ]


def _extra_settings(strategy: Strategy) -> set[str]:
    """What a strategy has beyond data parallelism and a ZeRO stage."""
    plain = {"offload_optimizer": "none", "offload_parameters": "none", "hpz_partition_size": 1}
    axes = {f"{axis}_parallel_size" for axis in AXES}
    return {name for name, value in plain.items() if getattr(strategy, name) != value} | {
        name for name in axes if getattr(strategy.layout, name) > 1
    }


def _kind_of(strategy: Strategy) -> tuple[object, ...]:
    """What tells plans apart at first sight: back end, stage, offload, a cut model."""
    if strategy.back_end == "megatron":
        return ("megatron",)
    cut = strategy.layout.model_ranks > 1
    return strategy.zero_stage, strategy.offload_optimizer, strategy.offload_parameters, cut


def screen(plan: Plan, *, below: Callable[[int], list[str]], last: list[str]) -> list[str]:
    """The head, reasons and a table of at most so many rows as there is room for, the last lines.

    One reason is always shown.
    """
    top = head(plan)
    room = SCREEN - len(top) - len(last)
    told = [r for r in plan.choice.reasons if r.kind == "choice" and r.rule not in SAID_ABOVE]
    reasons = [wrapped(r.message, first=_first("because")) for r in told[:REASONS]]
    first = len(reasons[0]) if reasons else 0
    tables = (below(rows) for rows in range(OTHERS, 0, -1))
    table = next((lines for lines in tables if first + len(lines) <= room), [])
    shown: list[str] = []
    for number, lines in enumerate(reasons):
        if number >= LEAST_REASONS and len(shown) + len(lines) + len(table) > room:
            break
        shown += lines
    return [*top, *shown, *table, *last]
