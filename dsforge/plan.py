"""Plan: inputs, decision, prediction and reasons in one value, with JSON both ways.

A plan is the unit of storage and replay: `render` needs nothing else, and `Plan -> JSON -> Plan`
is the identity. Beside the chosen strategy it carries the priced variants that `gen` writes (every
ZeRO stage and offload, Megatron), or the rules that forbid them.
"""

from __future__ import annotations

import json
import re
from math import inf
from typing import Literal

from pydantic import BaseModel, Field

from dsforge.errors import Problem
from dsforge.estimate.memory import MemoryEstimate
from dsforge.estimate.run import RunEstimate, Speed, run_of, speed_of
from dsforge.estimate.time import TimeEstimate
from dsforge.specs import FROZEN, ClusterSpec, ModelSpec, Precision, Workload
from dsforge.strategy import AioSettings, Buckets, Constraints, Strategy

VariantName = Literal[
    "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "zero3_nvme", "megatron"
]

PREFERRED = 1.25  # times the fastest step: what an easier way to train may cost


# How publishers mark weights that were tuned: nobody gives these names to a shape alone.
TUNED = re.compile(r"[-_.](instruct|chat|it|sft|dpo|rlhf)(?=$|[-_.])", re.IGNORECASE)


def is_tuned(model: ModelSpec) -> bool:
    """Whether a model is named as weights that were tuned after pretraining.

    A row of the catalog is a shape under its own name, whatever the id of its published weights.
    """
    return TUNED.search(model.name) is not None


ReasonKind = Literal["warning", "choice", "note", "default"]
_KINDS: tuple[tuple[str, ReasonKind], ...] = (  # by the beginning of the rule
    ("warning-", "warning"),
    ("default-", "default"),
    ("catalog-", "note"),
    ("card-gpu", "note"),
    ("card-link", "note"),
    ("data-", "note"),
    ("batch-from-", "note"),
    ("model-size", "note"),
    ("model-spelling", "note"),
    ("model-text-config", "note"),
    ("model-tower", "note"),
)


class Reason(BaseModel):
    """Why something was chosen, or what was given up for it; `rule` can be cited."""

    model_config = FROZEN

    rule: str = Field(description="Id of the rule.")
    message: str = Field(description="What was chosen or rejected, with its figures.")

    @property
    def kind(self) -> ReasonKind:
        """A warning, a reason of the choice, a note on the input, or a default."""
        return next((kind for head, kind in _KINDS if self.rule.startswith(head)), "choice")


class Machines(BaseModel):
    """Some hosts of a cluster whose hosts differ, as equal nodes: the weakest of them count."""

    model_config = FROZEN

    cluster: ClusterSpec = Field(description="These hosts as a cluster of equal nodes.")
    precision: Precision = Field(
        description="Default network link of these accelerators, unless it was given."
    )
    global_batch_size: int = Field(ge=1, description="Likewise for their number.")
    reasons: tuple[Reason, ...] = Field(
        default=(), description="Defaults and decisions made while reading, for these hosts."
    )
    alike: bool = Field(description="True: all of these hosts are equal.")


class Request(BaseModel):
    """What a user asks for: the three inputs, what is fixed, and what reading chose for them."""

    model_config = FROZEN

    model: ModelSpec = Field(description="Model that is trained.")
    cluster: ClusterSpec = Field(description="Cluster that it is trained on.")
    workload: Workload = Field(
        description="Batch, sequence length, precision and method of the training."
    )
    constraints: Constraints = Field(
        default=Constraints.model_construct(), description="Fixed settings; the others are chosen."
    )
    reasons: tuple[Reason, ...] = Field(
        default=(), description="Decisions made while reading: defaults, weakest host, precision."
    )
    prefer: float = Field(
        default=PREFERRED,
        ge=1,
        description="Largest step time of a simpler plan, relative to the fastest.",
    )
    part_step_s: float = Field(
        default=inf,
        gt=0,
        description="Seconds of the smallest step on fewer of the machines: what `prefer` counts "
        "from where it is smaller than on all of them.",
    )
    risk: bool = Field(
        default=False,
        description="Also plans that fit by the likely estimate, not only by the upper one.",
    )
    others: tuple[Machines, ...] = Field(
        default=(),
        description="Where hosts differ: some of them alone. `cluster` is all, by the weakest.",
    )
    listed_gpus: int | None = Field(
        default=None, description="Accelerators of all hosts, where hosts differ."
    )

    @property
    def all_gpus(self) -> int:
        """Accelerators of all hosts, those that equal nodes leave idle included."""
        return self.listed_gpus or self.cluster.gpus

    def on(self, machines: Machines) -> Request:
        """The same job on other machines."""
        fitted = {
            "precision": machines.precision,
            "global_batch_size": machines.global_batch_size,
        }
        return self.model_copy(
            update={
                "cluster": machines.cluster,
                "workload": self.workload.model_copy(update=fitted),
                "reasons": machines.reasons,
                "others": (),
            }
        )


class Priced(BaseModel):
    """One strategy with its predicted memory and step time."""

    model_config = FROZEN

    strategy: Strategy = Field(description="Strategy that the estimate is for.")
    fits: bool = Field(description="Device and host memory suffice on the fullest rank and node.")
    memory: MemoryEstimate = Field(
        description="Predicted bytes on the fullest rank, node and disk."
    )
    time: TimeEstimate = Field(description="Predicted seconds of one optimizer step.")
    buckets: Buckets = Field(description="Buffer sizes that the estimate assumes.")
    aio: AioSettings | None = Field(
        default=None, description="NVMe settings; none: nothing is on NVMe."
    )
    reasons: tuple[Reason, ...] = Field(
        default=(), description="Reasons of the choice, and assumptions."
    )


class Variant(BaseModel):
    """A configuration beside the chosen one: priced where legal, else the rules it breaks."""

    model_config = FROZEN

    name: VariantName = Field(description="Name of its files: ZeRO stage and offload, or Megatron.")
    priced: Priced | None = Field(
        description="Predicted memory and time; none: constraints forbid it."
    )
    problems: tuple[Problem, ...] = Field(default=(), description="Constraints that it violates.")


class Rejected(BaseModel):
    """A candidate that lost by a rule or by memory, with the first reason."""

    model_config = FROZEN

    strategy: Strategy = Field(description="Candidate that was not chosen.")
    rule: str = Field(description="Id of the constraint that it violates, or `memory`.")
    message: str = Field(description="What is wrong, with its figures.")


class Plan(BaseModel):
    """Model + cluster + workload -> the chosen strategy, its price, and the variants."""

    model_config = FROZEN

    schema_version: Literal[1] = Field(
        default=1, description="Version of the shape of this document."
    )
    model: ModelSpec = Field(description="Model that is trained.")
    parameters: int = Field(ge=1, description="Unique parameters of the model.")
    cluster: ClusterSpec = Field(description="Cluster that it is trained on.")
    workload: Workload = Field(
        description="Batch, sequence length, precision and method of the training."
    )
    choice: Priced = Field(description="Chosen strategy with its estimate.")
    variants: tuple[Variant, ...] = Field(
        default=(), description="Configurations that `gen` writes in addition to the choice."
    )

    def to_json(self) -> str:
        """The plan as JSON text, which `model_validate_json` reads back.

        pydantic's own writer would first build a serializer for each of two dozen types.
        """
        return json.dumps(self, default=_fields, indent=2, ensure_ascii=False)

    @property
    def strategy(self) -> Strategy:
        """The chosen strategy."""
        return self.choice.strategy

    @property
    def speed(self) -> Speed:
        """Rates of the chosen strategy: tokens, FLOPs, shares of the peak."""
        step = self.choice.time.step_s
        return speed_of(self.model, self.cluster, self.workload, self.strategy, step=step)

    @property
    def run(self) -> RunEstimate | None:
        """What the token budget takes and costs; none where there is no budget."""
        return run_of(self.cluster, self.workload, step=self.choice.time.step_s)

    def variant(self, name: VariantName) -> Variant:
        """The variant of that name. Raises KeyError where the plan has none."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)


def _fields(value: object) -> dict[str, object]:
    """Fields of a model, or of a slotted dataclass inside it."""
    if isinstance(value, BaseModel):
        return vars(value)
    return {name: getattr(value, name) for name in type(value).__slots__}  # type: ignore[attr-defined]


class Search(BaseModel):
    """All plans of one request, fastest first, and the candidates that are not among them."""

    model_config = FROZEN

    plans: tuple[Plan, ...] = Field(description="Plans that fit, best first.")
    rejected: tuple[Rejected, ...] = Field(
        description="Rejected candidates, with the first reason."
    )
    candidates: int = Field(ge=0, description="Number of strategies that were examined.")
    seconds: float = Field(ge=0, description="Wall time of the search, s.")
