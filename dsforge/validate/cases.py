"""A row as the values that the estimators take, or the reason why it cannot be one."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from dsforge import catalog
from dsforge.engines import BY_NAME
from dsforge.errors import SpecError
from dsforge.estimate.memory import Rank, estimate_memory
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, MlaSpec, ModelSpec, MoeSpec, Workload
from dsforge.strategy import Strategy
from dsforge.validate.machines import cluster_of
from dsforge.validate.software import Software, software_of
from dsforge.validate.table import Row

Counter = Literal["allocated", "reserved", "device"]

PRECISIONS = {"mxfp8": "fp8", "nvfp4": "fp8", "": "bf16"}
WORDS = {
    "precision": ("bf16", "fp16", "fp32", "fp8", *PRECISIONS),
    "recompute": ("none", "selective", "full", ""),
}
LEVELS = ("none", "selective", "full")
LONGEST_SEQUENCE = 1 << 22
LONGEST_WORD = 60  # characters of a cell in a reason
NEEDED = (
    *("layers", "hidden", "heads", "ffn_hidden", "vocab", "seq_len", "gpus"),
    *("dp", "tp", "pp", "micro_batch", "global_batch"),
)

EXPERTS = re.compile(
    r"([1-9]\d{0,5}) experts top-([1-9]\d{0,5}), expert ffn ([1-9]\d{0,5})(?:, (\d{1,5}) shared)?"
)


class Case(NamedTuple):
    """The inputs of a prediction."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    strategy: Strategy


def case_of(row: Row) -> Case | str:
    """The case of a row, or why there is none."""
    software = software_of(row)
    objection = _objection(row)
    if objection or software is None:
        return objection or f"unknown framework {row.framework[:LONGEST_WORD]!r}"
    try:
        cluster, model = cluster_of(row), _model(row)
    except SpecError as error:
        return "; ".join(problem.message for problem in error.problems)
    workload = _workload(row)
    if workload.precision not in cluster.gpu.peak_flops:
        return f"{cluster.gpu.name} has no {workload.precision}"
    strategy = _strategy(row, _layout(row), software)
    return _that_fits(Case(model, cluster, workload, strategy), stated=bool(row.recompute))


def _that_fits(case: Case, *, stated: bool) -> Case:
    """The case; where recomputation is not stated, the least with which it may fit its card."""
    if stated:
        return case
    levels = [case.strategy.model_copy(update={"recompute": level}) for level in LEVELS]
    tried = [case._replace(strategy=strategy) for strategy in levels]
    return next(filter(_fits, tried), case)


def _objection(row: Row) -> str | None:
    """Why the sizes and words of a row make no case; none where they do."""
    empty = [name for name in NEEDED if getattr(row, name) is None]
    if empty:
        return f"not stated: {', '.join(empty)}"
    for name, legal in WORDS.items():
        if getattr(row, name) not in legal:
            return f"{name} (={getattr(row, name)[:LONGEST_WORD]}) cannot be expressed"
    layout = _layout(row)
    if layout.world_size != row.gpus:
        return f"dp x tp x pp x cp (={layout.world_size}) is not gpus (={row.gpus})"
    if _required_count(row.global_batch) % (
        layout.data_parallel_size * _required_count(row.micro_batch)
    ):
        return "global_batch is not a multiple of dp x micro_batch"
    return None


def readings(case: Case) -> tuple[Case, ...]:
    """The case, then how it may have run as well; what fits its card comes first.

    No table says whether the inputs were kept that nanotron had gathered.
    """
    run, unsaid = case.strategy.runs_as, case.strategy.engine.splits_sequence
    if not unsaid or case.strategy.layout.tensor_parallel_size == 1:
        return (case,)
    other = "saved" if run.gathered_inputs == "gathered_again" else "gathered_again"
    execution = run.model_copy(update={"gathered_inputs": other})
    second = case._replace(strategy=case.strategy.model_copy(update={"execution": execution}))
    return (case, second) if _fits(case) else (second, case)


def _fits(case: Case) -> bool:
    """Whether the fullest rank may fit the card."""
    return estimate_memory(*case).reserved_bytes.low <= case.cluster.gpu.memory_bytes


def counter_of(row: Row) -> Counter:
    """Which counter the memory of a row was read from."""
    told = _memory_note(row)
    if "reserved" in told:
        return "reserved"
    return "device" if "nvidia-smi" in told or "gpu memory" in told else "allocated"


def rank_of(row: Row) -> Rank:
    """Which rank the memory of a row was read on."""
    told = _memory_note(row)
    if "rank 0" in told:
        return "first"
    return "last" if "last rank" in told else "fullest"


def _memory_note(row: Row) -> str:
    """The part of the notes that says how memory was measured."""
    return next((part for part in row.notes.lower().split("; ") if part.startswith("mem=")), "")


def _required_count(value: int | None) -> int:
    """A count that has been checked to be there."""
    return value or 1


def _layout(row: Row) -> Layout:
    """The parallel sizes."""
    return Layout(
        data_parallel_size=_required_count(row.dp),
        tensor_parallel_size=_required_count(row.tp),
        pipeline_parallel_size=_required_count(row.pp),
        context_parallel_size=_required_count(row.cp),
        expert_parallel_size=_required_count(row.ep),
    )


def _workload(row: Row) -> Workload:
    """Tokens and precision."""
    return Workload.model_validate(
        {
            "sequence_length": row.seq_len,
            "global_batch_size": row.global_batch,
            "learning_rate": 1e-4,
            "precision": PRECISIONS.get(row.precision, row.precision),
        }
    )


def _strategy(row: Row, layout: Layout, software: Software) -> Strategy:
    """The decision that the row records."""
    chunks = re.fullmatch(r"([1-9]\d{0,3})(\.0+)?", row.vpp_or_interleave)
    return Strategy.model_validate(
        {
            "back_end": software.back_end,
            "layout": layout,
            "micro_batch_size": row.micro_batch,
            "gradient_accumulation_steps": _required_count(row.global_batch)
            // (_required_count(row.dp) * _required_count(row.micro_batch)),
            "zero_stage": software.zero_stage,
            "recompute": row.recompute or "none",
            "virtual_stages": int(chunks[1]) if chunks else 1,
            "sequence_parallel": _splits_sequence(row, software),
            "offload_optimizer": "cpu" if "optimizer" in row.offload else "none",
            "offload_parameters": "cpu" if "param" in row.offload else "none",
            "execution": software.execution,
        }
    )


def _splits_sequence(row: Row, software: Software) -> bool:
    """Sequence parallel, where the row does not say as the engine does by default."""
    told, engine = row.sequence_parallel, BY_NAME[software.execution.trainer]
    return told in ("yes", "true") or (not told and engine.splits_sequence)


def _model(row: Row) -> ModelSpec:
    """The shape of the model."""
    gated = "mlp=gated" in row.notes
    head = re.search(r"head_dim ([1-9]\d{0,5})", row.notes)
    heads, hidden = _required_count(row.heads), _required_count(row.hidden)
    return _shape(
        name=row.model_name[:200] or "unnamed",
        layers=_required_count(row.layers),
        hidden_size=hidden,
        ffn_hidden_size=_required_count(row.ffn_hidden),
        attention_heads=heads,
        kv_heads=row.kv_heads or heads,
        head_size=int(head[1]) if head else max(1, hidden // heads),
        vocab_size=_required_count(row.vocab),
        tied_embeddings="tied_emb=yes" in row.notes,
        gated_mlp=gated,
        moe=_experts(row),
    )


@lru_cache(maxsize=256)
def _shape(*, name: str, hidden_size: int, moe: MoeSpec | None, **sizes: int) -> ModelSpec:
    """The spec of a decoder; equal rows share one, so that its counts are computed once."""
    return ModelSpec(
        name=name,
        model_type=None,
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        max_position_embeddings=LONGEST_SEQUENCE,
        norm="rmsnorm" if sizes["gated_mlp"] else "layernorm",
        moe=moe,
        mla=_latent(name) if moe else None,
        **sizes,
    )


def _experts(row: Row) -> MoeSpec | None:
    """`256 experts top-8, expert ffn 2048, 1 shared; 1 dense layer` of the notes."""
    found = EXPERTS.search(row.notes)
    if found is None:
        return None
    dense = re.search(r"(\d{1,4}) dense layer", row.notes)
    return MoeSpec(
        experts=int(found[1]),
        experts_per_token=int(found[2]),
        expert_ffn_hidden_size=int(found[3]),
        shared_ffn_hidden_size=int(found[4] or 0) * int(found[3]),
        first_dense_layers=int(dense[1]) if dense else 0,
    )


def _latent(name: str) -> MlaSpec | None:
    """The latent attention of the full-depth model of that name in the catalog, if it has one."""
    known = catalog.find_model(re.sub(r"-\d+L$", "", name))
    return catalog.model(known).mla if known else None
