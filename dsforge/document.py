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

    name: str = Field(description="Catalog name, or the name of the file it was read from.")
    family: str = Field(description="Family in the catalog, shown in tables; empty: none.")
    hub_id: str | None = Field(description="Hugging Face hub id; none: not from the hub.")
    kind: Kind = Field(description="Architecture: decoder, encoder or encoder-decoder.")
    parameters: int = Field(description="Unique parameters of the model.")
    layers: int = Field(description="Transformer layers (each half of an encoder-decoder).")
    hidden_size: int = Field(description="Width of the residual stream.")
    attention_heads: int = Field(description="Query heads of one attention layer.")
    kv_heads: int = Field(description="Key/value heads; fewer than heads means GQA or MQA.")
    vocab_size: int = Field(description="Rows of the word embedding.")


class EstimateDocument(BaseModel):
    """One priced strategy. Bytes on the fullest rank, seconds of one optimizer step."""

    model_config = FROZEN

    model: ModelSummary = Field(description="Model that is trained.")
    cluster: ClusterSpec = Field(description="Cluster that it is trained on.")
    workload: Workload = Field(
        description="Batch, sequence length, precision and method of the training."
    )
    strategy: Strategy = Field(description="Strategy that the estimate is for.")
    label: str = Field(description="The strategy in short.")
    fits: bool = Field(
        description="Device memory, RAM and disk suffice on the fullest rank and node."
    )
    margin_bytes: int = Field(
        description="Free memory per rank in the tightest place: its device, or its share of "
        "the node's RAM and disk; negative: missing."
    )
    largest_term: str = Field(description="Largest memory term.")
    memory: MemoryEstimate = Field(
        description="Predicted bytes on the fullest rank, node and disk."
    )
    time: TimeEstimate = Field(description="Predicted seconds of one optimizer step.")
    mfu: float = Field(description="Useful FLOPs relative to the peak of the accelerator.")
    speed: Speed = Field(description="Predicted rates of all ranks and of one accelerator.")
    run: RunEstimate | None = Field(
        description="Cost and duration of the token budget; none without a token budget."
    )
    loss: Loss = Field(
        description="Loss that the estimate assumes: `chunked` as in `dsforge train`, or "
        "`plain` (full logits of a micro batch)."
    )
    buckets: Buckets = Field(
        description="Sizes of ZeRO's buffers that the price assumes, elements."
    )
    aio: AioSettings | None = Field(description="NVMe settings; none: nothing is on NVMe.")
    reasons: tuple[Reason, ...] = Field(description="Reasons of the choice, and assumptions.")
    remedies: tuple[Remedy, ...] = Field(
        description="If it does not fit: the cheapest changes that make it fit."
    )
    exact: ExactMemory | None = Field(
        description="Memory simulated tensor by tensor; with `estimate --exact`."
    )


class SearchSummary(BaseModel):
    """How large the search was."""

    model_config = FROZEN

    candidates: int = Field(description="Number of strategies that were examined.")
    seconds: float = Field(description="Wall time of the search, s.")


class PlanDocument(BaseModel):
    """The ranking of a request, best first."""

    model_config = FROZEN

    plans: tuple[EstimateDocument, ...] = Field(description="Plans that fit, best first.")
    alternatives: tuple[Alternative, ...] = Field(
        description="Fastest plan of each other kind, nearest step time first."
    )
    front: tuple[FrontPoint, ...] | None = Field(
        description="Pareto front of step time, GPUs, cost and memory; with --argue."
    )
    flips: tuple[Flip, ...] | None = Field(
        description="Changes that lead to another kind of plan; with --argue."
    )
    rejected: tuple[Rejected, ...] = Field(
        description="Rejected candidates, with the first reason."
    )
    search: SearchSummary = Field(description="Number of candidates and wall time.")


class MisfitDocument(BaseModel):
    """What `plan --json` and `gen --json` print where nothing fits, with exit code 1."""

    model_config = FROZEN

    error: str = Field(description="Missing memory, and the largest memory term.")
    nearest: EstimateDocument = Field(description="Strategy that exceeds memory least.")


class InverseDocument(BaseModel):
    """What `estimate --find --json` prints: the answer, and the estimate at its value."""

    model_config = FROZEN

    answer: Answer = Field(description="Value that was searched for, and its limit.")
    estimate: EstimateDocument = Field(description="The estimate at that value.")


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
