"""The software that a row names: who shards, who computes, and in which types it keeps its states.

Only what a row says, and what its framework does unless told otherwise, ends up here. What it means
in bytes and seconds is the estimators' business.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dsforge.engines import ENGINES, Engine
from dsforge.execution import AttentionKind, BackEnd, Execution, GatheredInputs, Kernels, Loss
from dsforge.validate.machines import NODE
from dsforge.validate.table import Row
from dsforge.zero_stages import ZeroStage

# torchtune's table of optimization flags, in its order.
ADDED = (
    *("compile", "chunked", "activation checkpointing", "fused into backward"),
    *("activation offloading", "8-bit"),
)
BEFORE_EARLY_STOP = ("foundry",)  # measured in 2023 with torch 1.13 and 2.0
FUSED = ("megatron",)  # frameworks whose kernels are fused, whoever shards
NEMO = ("nemo", "bridge")  # recipes that overlap tensor parallelism
# Gradients summed in bf16: those recipes, and InternEvo, whose sums are `p.grad` of a bf16 model
# (`solver/optimizer/hybrid_zero_optim.py`).
BF16_SUMS = (*NEMO, "internevo")
FLASH1 = ("internevo",)  # InternLM's doc/en/install.md: flash-attention v1.0.5
TRITON = ("foundry",)  # scripts/train/yamls of LLM Foundry in 2023: `attn_impl: triton`


class Software(NamedTuple):
    """What the strategy takes over from it."""

    back_end: BackEnd
    zero_stage: ZeroStage
    execution: Execution


def software_of(row: Row) -> Software | None:
    """The software of a row; none where its name says nothing to us."""
    framework, sharding = row.framework.lower(), row.zero_stage_or_sharding.lower()
    engine = next((one for one in ENGINES if one.runs_row(framework, sharding)), None)
    if engine is None:
        return None
    stage = _zero_stage(row.zero_stage_or_sharding)
    return Software(engine.back_end, stage, _execution(row, engine))


def _zero_stage(text: str) -> ZeroStage:
    """The ZeRO stage that a description of the sharding amounts to."""
    for word, stage in (("ZeRO-3", 3), ("ZeRO-2", 2), ("ZeRO-1", 1), ("FSDP", 3)):
        if word in text:
            return stage  # type: ignore[return-value]
    return 0


def _is_of(words: tuple[str, ...], row: Row) -> bool:
    """Whether the framework of a row has one of the words in its name."""
    return any(word in row.framework.lower() for word in words)


def _execution(row: Row, engine: Engine) -> Execution:
    """How it keeps and computes things, from the notes of the row."""
    notes = row.notes.lower()
    pure = "pure bf16" in notes
    group = re.search(r"groups? (?:of )?([1-9]\d{0,6})", row.zero_stage_or_sharding)
    added = _cumulative(notes)
    recipe, old = _is_of(NEMO, row), _is_of(BEFORE_EARLY_STOP, row)
    return Execution(
        trainer=engine.name,
        early_stop=engine.execution.early_stop and not old,
        kernels=_kernels(row, notes, engine, added),
        attention=_attention(row, engine),
        dropout=_drops(row, notes),
        gathered_inputs=_gathered_inputs(row, engine),
        loss=_loss(notes, added),
        gradients="compute" if _is_of(BF16_SUMS, row) else engine.execution.gradients,
        master_weights=not pure,
        moments="int8" if "8-bit" in notes else "bf16" if pure else "fp32",
        fused_backward="fused into backward" in added,
        offload_activations="activations" in row.offload,
        overlaps_tensor=recipe or "async tp" in notes,
        deterministic="deterministic mode" in notes,
        shard_group=int(group[1]) if group else None,
        buckets="sized" if "buckets sized by dsforge" in notes else "engine",
    )


def _drops(row: Row, notes: str) -> bool:
    """Megatron's own tests leave dropout at its default of 0.1, as GPT-2 of transformers does."""
    ours = "hf trainer" in row.framework.lower() and row.model_name.lower().startswith("gpt2")
    return ours or "transformer-impl" in notes


def _kernels(row: Row, notes: str, engine: Engine, added: tuple[str, ...]) -> Kernels:
    """The engine's own kernels; of plain modules those that a row names."""
    if engine.execution.kernels != "eager":
        return engine.execution.kernels
    if "liger" in notes or _is_of(FUSED, row):
        return "fused"
    return "compiled" if "torch.compile" in notes or "compile" in added else "eager"


def _attention(row: Row, engine: Engine) -> AttentionKind:
    """The kernel; scores are kept where the notes say so, and before the engine had another."""
    told = "attention backend unfused" in row.notes or "transformer-impl local" in row.notes
    early = engine.kept_scores(row.framework.lower(), row.precision)
    if told or early:
        return "eager"
    return "flash1" if _is_of(FLASH1, row) else "triton" if _is_of(TRITON, row) else "flash"


def _gathered_inputs(row: Row, engine: Engine) -> GatheredInputs:
    """Whether whole inputs are kept or gathered again where no table says (nanotron).

    Both occur in its published sweep. Whole inputs prevail within a node and without a pipeline.
    """
    within = (row.tp or 1) <= (row.gpus_per_node or NODE) or row.pp == 1
    return "saved" if engine.splits_sequence and within else "gathered_again"


def _cumulative(notes: str) -> tuple[str, ...]:
    """Optimizations that are on in a table which adds them one by one."""
    found = re.search(r"cumulative: \+ ([^;]*)", notes)
    last = next((n for n, word in enumerate(ADDED) if found and word in found[1]), -1)
    return ADDED[: last + 1]


def _loss(notes: str, added: tuple[str, ...]) -> Loss:
    """How the loss is computed.

    Liger's kernels alone do not say that it is fused: a run of "stas" took 80 GiB with them and 99
    without, both with whole logits.
    """
    if "fused linear cross entropy" in notes:
        return "fused"
    if "fused cross entropy" in notes or "cross-entropy fusion on" in notes:
        return "softmax"
    return "chunked_output" if "chunked" in added else "plain"
