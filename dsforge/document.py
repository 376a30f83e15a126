"""What `plan --json` and `estimate --json` print: one pure projection of plans, with a schema.

The documents are read by scripts that we do not know, so their shape is its own type and not the
plan's: a plan may gain fields for replay without changing what it prints.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.estimate.loss import loss_of
from dsforge.estimate.memory import MemoryEstimate
from dsforge.estimate.run import RunEstimate, Speed
from dsforge.estimate.time import TimeEstimate
from dsforge.exact.fullest import ExactMemory
from dsforge.plan import Plan, Reason, Rejected, Search
from dsforge.planner.alternatives import Alternative
from dsforge.planner.flips import Flip
from dsforge.planner.front import FrontPoint
from dsforge.planner.inverse import Answer
from dsforge.planner.pricing import largest_term, missing_bytes
from dsforge.planner.remedies import Remedy
from dsforge.specs import FROZEN, ClusterSpec, Kind, Workload
from dsforge.strategy import AioSettings, Buckets, Loss, Strategy


class ModelSummary(BaseModel):
    """The model, as far as a reader of figures needs it."""

    model_config = FROZEN

    name: str
    family: str
    hub_id: str | None
    kind: Kind
    parameters: int = Field(description="Unique parameters.")
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    vocab_size: int


class EstimateDocument(BaseModel):
    """One priced strategy. Bytes on the fullest rank, seconds of one optimizer step."""

    model_config = FROZEN

    model: ModelSummary
    cluster: ClusterSpec
    workload: Workload
    strategy: Strategy
    label: str = Field(description="The strategy in short.")
    fits: bool
    margin_bytes: int = Field(
        description="Room left for each rank where it is tightest: on its device, or in its share "
        "of the node's RAM and disk; negative: missing."
    )
    largest_term: str = Field(description="The memory term that dominates.")
    memory: MemoryEstimate
    time: TimeEstimate
    mfu: float = Field(description="Useful FLOPs over the card's peak.")
    speed: Speed
    run: RunEstimate | None = Field(description="Of the token budget; none where there is none.")
    loss: Loss = Field(
        description="What the logits are priced as: `chunked` as `dsforge train` makes the loss, "
        "`plain` where a trainer holds those of a whole micro batch."
    )
    buckets: Buckets
    aio: AioSettings | None
    reasons: tuple[Reason, ...]
    remedies: tuple[Remedy, ...] = Field(
        description="Where it does not fit: the cheapest changes after which it does."
    )
    exact: ExactMemory | None = Field(
        description="Memory simulated tensor by tensor; with `estimate --exact`."
    )


class SearchSummary(BaseModel):
    """How large the search was."""

    model_config = FROZEN

    candidates: int
    seconds: float


class PlanDocument(BaseModel):
    """The ranking of a request, best first."""

    model_config = FROZEN

    plans: tuple[EstimateDocument, ...]
    alternatives: tuple[Alternative, ...] = Field(
        description="The fastest plan of each other kind, those nearest to the choice first."
    )
    front: tuple[FrontPoint, ...] | None = Field(
        description="Plans that no other beats in time, GPUs, money and memory; with --argue."
    )
    flips: tuple[Flip, ...] | None = Field(
        description="Changes after which another kind is chosen; with --argue."
    )
    rejected: tuple[Rejected, ...]
    search: SearchSummary


class MisfitDocument(BaseModel):
    """What `plan --json` and `gen --json` print where nothing fits, with exit code 1."""

    model_config = FROZEN

    error: str
    nearest: EstimateDocument = Field(description="The strategy nearest to fitting.")


class InverseDocument(BaseModel):
    """What `estimate --find --json` prints: the answer, and the estimate at its value."""

    model_config = FROZEN

    answer: Answer
    estimate: EstimateDocument


def estimate_document(
    plan: Plan, found: tuple[Remedy, ...] = (), exact: ExactMemory | None = None
) -> EstimateDocument:
    """The document of one plan, with what was found to make it fit, and its exact memory."""
    choice, model = plan.choice, plan.model
    return EstimateDocument.model_construct(
        model=ModelSummary.model_construct(
            name=model.name,
            family=model.family,
            hub_id=model.hub_id,
            kind=model.kind,
            parameters=plan.parameters,
            layers=model.layers,
            hidden_size=model.hidden_size,
            attention_heads=model.attention_heads,
            kv_heads=model.kv_heads,
            vocab_size=model.vocab_size,
        ),
        cluster=plan.cluster,
        workload=plan.workload,
        strategy=choice.strategy,
        label=choice.strategy.label(),
        fits=choice.fits,
        margin_bytes=-missing_bytes(plan.cluster, choice.memory),
        largest_term=largest_term(choice.memory),
        memory=choice.memory,
        time=choice.time,
        mfu=plan.speed.mfu.likely,
        speed=plan.speed,
        run=plan.run,
        loss=loss_of(plan.model, plan.strategy),
        buckets=choice.buckets,
        aio=choice.aio,
        reasons=choice.reasons,
        remedies=found,
        exact=exact,
    )


def plan_document(
    search: Search,
    top: int,
    *,
    others: tuple[Alternative, ...] = (),
    front: tuple[FrontPoint, ...] | None = None,
    flips: tuple[Flip, ...] | None = None,
) -> PlanDocument:
    """The document of a search with its best `top` plans, and what else was argued."""
    return PlanDocument.model_construct(
        plans=tuple(estimate_document(plan) for plan in search.plans[:top]),
        alternatives=others,
        front=front,
        flips=flips,
        rejected=search.rejected,
        search=SearchSummary(candidates=search.candidates, seconds=search.seconds),
    )
