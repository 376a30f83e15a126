"""A plan with every figure worked out, and where that differs from what the plan says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel, Field

from dsforge.errors import DsforgeError
from dsforge.estimate.frame import framed
from dsforge.estimate.host import HostMemory
from dsforge.estimate.states import shares
from dsforge.explain.buckets import take_buckets
from dsforge.explain.host import take_host
from dsforge.explain.inputs import take_inputs
from dsforge.explain.links import take_links
from dsforge.explain.memory import explained_load, take_memory
from dsforge.explain.parameters import take_parameters
from dsforge.explain.run import take_run
from dsforge.explain.sheet import Figure, Sheet
from dsforge.explain.time import take_time
from dsforge.plan import Plan
from dsforge.specs import FROZEN

WHOLE_BYTES = 1.0  # terms of the ledger are rounded
DIFFERENT = 1e-6  # relative


ENDS = ("low", "likely", "high")
HOST = {"host_ram", "host_bytes", "ram"}
PHASES = tuple(f"host_{phase}" for phase in HostMemory.model_fields)
# Names of the JSON documents and of tables that the sheet calls otherwise.
SAID_AS = {
    "nvme_bytes": "nvme_of_node",
    "nvme": "nvme_of_node",
    "model_tflops_per_gpu": "model_flops_per_gpu",
    "hardware_tflops_per_gpu": "hardware_flops_per_gpu",
    "tokens_per_s_per_gpu": "tokens_per_s",
    "tokens_s": "tokens_per_s",
    "resident_memory": "device_memory",
    "cost": "money",
    "data_parallel_size": "dp",
    "parameters": "model_parameters",
}
SAID_AS |= {f"host_bytes_{phase}": f"host_{phase}" for phase in HostMemory.model_fields}


class Disagreement(BaseModel):
    """A figure that a plan states otherwise: it was made by another version, or edited."""

    model_config = FROZEN

    name: str = Field(description="Name of the figure.")
    stated: float = Field(description="Value in the plan, in the unit of the figure.")
    worked_out: float = Field(description="By the formulas of this version.")


class Explanation(BaseModel):
    """Every figure of a plan's choice, in the order in which they rest on each other."""

    model_config = FROZEN

    label: str = Field(description="The strategy in short.")
    figures: tuple[Figure, ...] = Field(description="Figures, each after those that it rests on.")
    disagreements: tuple[Disagreement, ...] = Field(
        description="Figures that the plan states otherwise; empty: it agrees."
    )

    def called(self, name: str) -> str:
        """The figure that a name of the sheet, of JSON or of a table means. Raises KeyError."""
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
    """The choice of a plan, explained. Raises DsforgeError for software of others."""
    execution = plan.strategy.execution
    if execution is not None and execution.trainer not in ("deepspeed", "megatron"):
        message = f"runs of {execution.trainer} are predicted, but their formulas are not written"
        raise DsforgeError(message, "plans of DeepSpeed and Megatron are explained")
    sheet = worked_out(plan)
    return Explanation(
        label=plan.strategy.label(),
        figures=tuple(sheet.figures.values()),
        disagreements=tuple(_disagreements(plan, sheet)),
    )


def worked_out(plan: Plan) -> Sheet:
    """The sheet of a plan."""
    frame = framed(plan.model, plan.cluster, plan.workload, plan.strategy)
    load, sheet = explained_load(frame, plan), Sheet()
    take_inputs(sheet, plan)
    take_parameters(sheet, plan, load)
    source = "the stage with the most parameters: it sets the pace (worked out as held_parameters)"
    held = frame.fullest.held
    sheet.give(
        source,
        "elements",
        pace_held_parameters=held.total,
        pace_trained_parameters=held.trainable,
        pace_trained_experts=held.trainable_experts,
        pace_shard=shares(plan.strategy).of(held),
        pace_trained_shard=shares(plan.strategy).of_trainable(held),
    )
    sheet.give(source, "bytes", pace_optimizer_state=frame.fullest.kept.optimizer)
    take_links(sheet, plan)
    take_buckets(sheet, plan, load)
    take_memory(sheet, plan, load)
    take_host(sheet, plan, frame.hosted)
    take_time(sheet, plan, frame)
    take_run(sheet, plan)
    return sheet


def _disagreements(plan: Plan, sheet: Sheet) -> Iterator[Disagreement]:
    for name, stated in _stated(plan):
        mine = sheet.values[name]
        if abs(stated - mine) > max(WHOLE_BYTES if stated > 1e3 else 0, DIFFERENT * abs(stated)):  # noqa: PLR2004
            yield Disagreement(name=name, stated=stated, worked_out=mine)


def _stated(plan: Plan) -> Iterator[tuple[str, float]]:
    """What the plan says, under the names of the sheet."""
    memory, time = plan.choice.memory, plan.choice.time
    yield from memory.terms
    yield from time.terms
    for phase, size in memory.host_bytes:
        yield f"host_{phase}", size
    yield "checkpoint", memory.checkpoint_bytes
    yield "nvme_of_node", memory.nvme_bytes
    for end in ("low", "likely", "high"):
        for counter in ("allocated", "reserved", "device"):
            yield f"{counter}_{end}", getattr(getattr(memory, f"{counter}_bytes"), end)
        yield f"step_{end}", getattr(time.step_s, end)
    yield "tokens_per_s", time.tokens_per_s_per_gpu * plan.cluster.gpus
