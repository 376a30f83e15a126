"""A plan with every figure worked out, and where that differs from what the plan says.

The estimate is computed once more, on traced inputs; its results are the figures, and whatever it
named on the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel, Field

from dsforge.estimate.comm import Channels
from dsforge.estimate.family_costs import FamilyCosts, family_costs
from dsforge.estimate.host import HostMemory
from dsforge.estimate.memory import MemoryEstimate, footprints, fullest, memory_of
from dsforge.estimate.run import run_of, speed_of
from dsforge.estimate.time import step_costs, time_of
from dsforge.explain.figures import Figure, FigureTable, Group, Setting, named_below
from dsforge.explain.inputs import Inputs, traced_inputs
from dsforge.plan import Plan
from dsforge.specs import FROZEN

DIFFERENT = 1e-9  # relative: logarithms and powers may differ in the last bit between machines
ENDS = ("low", "likely", "high")
COUNTERS = ("allocated", "reserved", "device")
HOST = {"host_ram", "host_bytes", "ram"}
PHASES = tuple(f"host_{phase}" for phase in HostMemory.model_fields)
# Names of the JSON documents and of tables that the figures have under another name.
SAID_AS = {
    "nvme_bytes": "nvme_of_node",
    "nvme": "nvme_of_node",
    "tokens_per_s_per_gpu": "tokens_per_s",
    "model_flops_per_gpu": "model_tflops_per_gpu",
    "hardware_flops_per_gpu": "hardware_tflops_per_gpu",
    "tokens_s": "tokens_per_s",
    "resident_memory": "device_memory",
    "cost": "money",
    "run": "days",
    "time_is": "step",
    "memory_is": "device",
    "memory_left": "free_memory",
    "free": "free_memory",
    "headroom": "free_memory",
    "gpu_seconds": "gpu_s",
    "data_parallel_size": "dp",
    "parameters": "model_parameters",
}
SAID_AS |= {f"host_bytes_{phase}": f"host_{phase}" for phase in HostMemory.model_fields}
# What a group of ranks is called, by the channel that it talks over.
GROUPS_OF_RANKS = {
    "tensor": "tensor",
    "context": "context",
    "shards": "data",
    "updates": "group",
    "expert": "expert",
    "expert_shards": "expert_data",
    "pipeline": "pipeline",
    "neighbours": "neighbour",
}


# Results, and the pipeline stage that they are about: the fullest; the one whose ranks have most in
# RAM; the one with the most parameters, which sets the pace.
TERMS = Group("memory by term", "bytes")
IN_ALL = Group("total memory", "bytes")
NODE = Group("host memory of a node", "bytes", before="host_", scope="hosted")
BUCKETS = Group("buckets", "elements", scope="pace")
TIME = Group("time by term", "s", scope="pace")
STEP = Group("total time", "s")
SENT = Group("traffic", "bytes", scope="pace")
SHARES = {"mfu": "share", "hfu": "share"}
SPEED = Group("speed", "TFLOP/s", {"tokens_per_s": "tokens/s", **SHARES})
RUN = Group(
    "the whole run",
    "",
    {"tokens": "tokens", "steps": "steps", "days": "days", "gpu_hours": "h", "energy_kwh": "kWh"},
)


BATCH = Group("batch", "", {"world_size": "ranks", "tokens_per_step": "tokens"})
GROUPS = (
    BATCH.title,
    *("parameters", "states", "activations", "loss", TERMS.title, IN_ALL.title, NODE.title),
    *("buckets", "rates of the card", "operations", "links", "compute of a micro batch"),
    *("collectives", "offload", SENT.title, TIME.title, STEP.title, SPEED.title, RUN.title),
)


class Disagreement(BaseModel):
    """A figure that a plan states otherwise: it was made by another version, or edited."""

    model_config = FROZEN

    name: str = Field(description="Name of the figure.")
    stated: float = Field(description="Value in the plan, in the unit of the figure.")
    worked_out: float = Field(description="Value by the formulas of this version.")


class Explanation(BaseModel):
    """Every figure of a plan's choice, by what it belongs to."""

    model_config = FROZEN

    label: str = Field(description="The strategy in short.")
    figures: tuple[Figure, ...] = Field(description="Figures, each after its inputs.")
    disagreements: tuple[Disagreement, ...] = Field(
        description="Figures with another value in the plan; empty: none differs."
    )
    settings: tuple[Setting, ...] = Field(
        default=(), description="The setting that was asked for, where it is no figure."
    )

    def called(self, name: str) -> str:
        """The figure named so here, in JSON or in a printed table. Raises KeyError."""
        names = {figure.name for figure in self.figures}
        segments = re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)*", name.lower())
        end = segments.pop() if len(segments) > 1 and segments[-1] in ENDS else "likely"
        parts = ["_".join(segments[first:]) for first in range(len(segments))]
        for part in parts:
            known = SAID_AS.get(part, part)
            stem = re.sub(r"_(?:bytes|s|memory|time)$", "", known)
            for tried in (known, f"{known}_{end}", f"{stem}_{end}", f"{stem}_s", stem):
                if tried in names:
                    return tried
        if HOST & set(parts):
            return self._host_peak()
        raise KeyError(name)

    def _host_peak(self) -> str:
        """The phase in which a node needs the most RAM."""
        phases = [figure for figure in self.figures if figure.name in PHASES]
        return max(phases, key=lambda figure: figure.value).name

    def resting_on(self, name: str) -> tuple[Figure, ...]:
        """A figure and all others that it needs, in order. Raises KeyError for no such figure."""
        by_name = {figure.name: figure for figure in self.figures}
        name = self.called(name)
        wanted, open_names = {name}, [name]
        while open_names:
            for given in by_name[open_names.pop()].inputs:
                if given.name in by_name and given.name not in wanted:
                    wanted.add(given.name)
                    open_names.append(given.name)
        return tuple(figure for figure in self.figures if figure.name in wanted)


def explanation(plan: Plan) -> Explanation:
    """The choice of a plan, explained."""
    table, inputs = FigureTable(), traced_inputs(plan)
    costs = family_costs(inputs.model, inputs.cluster, inputs.workload, inputs.strategy)
    _name_links(costs.links)
    _take_batch(table, inputs)
    _take_memory(table, costs, inputs)
    _take_time(table, costs, inputs)
    return Explanation.model_construct(
        label=plan.strategy.label(),
        figures=table.by_group(GROUPS),
        disagreements=tuple(_disagreements(plan, table)),
    )


def _name_links(links: Channels) -> None:
    """The numbers of each channel, named after the group of ranks that talks over it."""
    done: set[int] = set()
    for field, group in GROUPS_OF_RANKS.items():
        for root in getattr(links, field):
            for number in named_below(root, "estimate/comm.py"):
                if id(number) not in done:
                    number.name = f"{group}_{number.name}"
                    done.add(id(number))


def _take_batch(table: FigureTable, inputs: Inputs) -> None:
    """Ranks of the run, and tokens of a step."""
    why = "every rank has one place in the grid"
    table.take_one(BATCH, "world_size", inputs.strategy.layout.world_size, why)
    table.take_one(BATCH, "tokens_per_step", inputs.workload.tokens_per_step, "definition")


def _take_memory(table: FigureTable, costs: FamilyCosts, inputs: Inputs) -> None:
    """Every memory term, the three counters, a node's RAM and disk, a checkpoint."""
    peak = fullest(footprints(costs, inputs.strategy), inputs.strategy.batching)
    memory = memory_of(costs, peak)
    table.take(TERMS, memory.terms)
    for counter in COUNTERS:
        why = _description(MemoryEstimate, f"{counter}_bytes")
        for end in ENDS:
            value = getattr(getattr(memory, f"{counter}_bytes"), end)
            table.take_one(IN_ALL, f"{counter}_{end}", value, why)
    left = inputs.cluster.gpu.memory_bytes - memory.device_bytes.likely
    table.take_one(IN_ALL, "free_memory", left, "memory of the card that the likely peak leaves")
    table.take(NODE, memory.host_bytes)
    of_node = {"load_copies": "load_copies_bytes", "nvme_of_node": "nvme_bytes"}
    for name, field in (of_node | {"checkpoint": "checkpoint_bytes"}).items():
        table.take_one(NODE, name, getattr(memory, field), _description(MemoryEstimate, field))
    table.take_one(TERMS, "fullest_moment", peak.moment, "it is the peak of the step")
    table.take(BUCKETS, costs.loads[0].buckets)


def _take_time(table: FigureTable, costs: FamilyCosts, inputs: Inputs) -> None:
    """Every time term, the step, its rates, and the run where there is a budget."""
    model, cluster, workload, strategy = inputs
    time = time_of(costs, strategy, step_costs(costs, strategy).at(strategy.batching))
    table.take(TIME, time.terms)
    why = "the sum of the terms; low to high contains 80 % of published step times"
    for end in ENDS:
        table.take_one(STEP, f"step_{end}", getattr(time.step_s, end), why)
    why = "what one rank sends in a step"
    table.take_one(SENT, "sent_bytes", time.sent_bytes, why)
    whole = cluster.gpus * time.step_s.likely
    table.take_one(STEP, "gpu_s", whole, "seconds of every GPU in a step")
    table.take(SPEED, speed_of(model, cluster, workload, strategy, step=time.step_s))
    run = run_of(cluster, workload, step=time.step_s)
    if run is not None:
        table.take(RUN, run)


def _description(document: type[BaseModel], field: str) -> str:
    return str(document.model_fields[field].description).removesuffix(".")


def _disagreements(plan: Plan, table: FigureTable) -> Iterator[Disagreement]:
    for name, value in stated(plan):
        mine = table.figures[name].value
        if abs(value - mine) > DIFFERENT * abs(value):
            yield Disagreement(name=name, stated=value, worked_out=mine)


def stated(plan: Plan) -> Iterator[tuple[str, float]]:
    """What the plan says, under the names of the figures."""
    memory, time = plan.choice.memory, plan.choice.time
    yield from memory.terms
    yield from time.terms
    for phase, size in memory.host_bytes:
        yield f"host_{phase}", size
    yield "load_copies", memory.load_copies_bytes
    yield "checkpoint", memory.checkpoint_bytes
    yield "nvme_of_node", memory.nvme_bytes
    for end in ENDS:
        for counter in COUNTERS:
            yield f"{counter}_{end}", getattr(getattr(memory, f"{counter}_bytes"), end)
        yield f"step_{end}", getattr(time.step_s, end)
