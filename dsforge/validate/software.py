"""The software that a row names: who shards, who computes, and in which types it keeps its states.

Only what a row says, and what its framework does unless told otherwise, ends up here. What it means
in bytes and seconds is the estimators' business.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dsforge.strategy import BackEnd, Execution, GatheredInputs, Kernels, Loss, Trainer, ZeroStage
from dsforge.validate.machines import NODE
from dsforge.validate.table import Row

# First match wins: names of frameworks as tables write them, in lower case.
TRAINERS: tuple[tuple[str, Trainer], ...] = (
    ("megatron", "megatron"),
    ("nemo", "megatron"),
    ("internevo", "megatron"),
    ("nanotron", "nanotron"),
    ("foundry", "fsdp"),
    ("torchtitan", "fsdp"),
    ("fsdp", "fsdp"),
    ("torchtune", "torchtune"),
    ("deepspeed", "deepspeed"),
)
# torchtune's table of optimization flags, in its order.
ADDED = (
    *("compile", "chunked", "activation checkpointing", "fused into backward"),
    *("activation offloading", "8-bit"),
)
NEMO = ("nemo", "bridge")  # recipes that overlap tensor parallelism and sum gradients in bf16
MEGATRON_LIKE: tuple[Trainer, ...] = ("megatron", "nanotron")


class Software(NamedTuple):
    """What the strategy takes over from it."""

    back_end: BackEnd
    zero_stage: ZeroStage
    execution: Execution


def software_of(row: Row) -> Software | None:
    """The software of a row; none where its name says nothing to us."""
    name = row.framework.lower()
    trainer = next((known for word, known in TRAINERS if word in name), None)
    if trainer is None:
        return None
    stage = _zero_stage(row.zero_stage_or_sharding)
    if trainer == "megatron" and "deepspeed" in name and stage == 3:  # noqa: PLR2004
        trainer = "deepspeed"
    sharded_weights = "fsdp" in row.zero_stage_or_sharding.lower()
    if trainer == "megatron" and sharded_weights:
        trainer = "fsdp"
    execution = _execution(row, trainer)
    back_end: BackEnd = "megatron" if trainer in MEGATRON_LIKE else "deepspeed"
    return Software(back_end, stage, execution)


def _zero_stage(text: str) -> ZeroStage:
    """The ZeRO stage that a description of the sharding amounts to."""
    for word, stage in (("ZeRO-3", 3), ("ZeRO-2", 2), ("ZeRO-1", 1), ("FSDP", 3)):
        if word in text:
            return stage  # type: ignore[return-value]
    return 0


def _execution(row: Row, trainer: Trainer) -> Execution:
    """How it keeps and computes things, from the notes of the row."""
    notes = row.notes.lower()
    pure = "pure bf16" in notes
    group = re.search(r"groups? (?:of )?([1-9]\d{0,6})", row.zero_stage_or_sharding)
    added = _cumulative(notes)
    recipe = any(word in row.framework.lower() for word in NEMO)
    return Execution(
        trainer=trainer,
        kernels=_kernels(notes, trainer, added),
        attention=_attention(row, trainer),
        dropout="transformer-impl" in notes,  # Megatron's own tests leave it at its default
        gathered_inputs=_gathered_inputs(row, trainer),
        loss=_loss(notes, added),
        gradients="fp32" if trainer in MEGATRON_LIKE and not recipe else "compute",
        master_weights=not pure,
        moments="int8" if "8-bit" in notes else "bf16" if pure else "fp32",
        fused_backward="fused into backward" in added,
        offload_activations="activations" in row.offload,
        overlaps_tensor=recipe or "async tp" in notes,
        deterministic="deterministic mode" in notes,
        shard_group=int(group[1]) if group else None,
        buckets="sized" if "buckets sized by dsforge" in notes else "engine",
    )


def _kernels(notes: str, trainer: Trainer, added: tuple[str, ...]) -> Kernels:
    """Whose layers run."""
    if trainer == "nanotron":
        return "nanotron"
    if trainer == "megatron" or "liger" in notes:
        return "fused"
    return "compiled" if "torch.compile" in notes or "compile" in added else "eager"


def _attention(row: Row, trainer: Trainer) -> Literal["flash", "eager"]:
    """Whether scores are stored: where the notes say so, and in Megatron before flash attention.

    Its runs in fp16, and those of its fork for DeepSpeed, are from that time.
    """
    told = "attention backend unfused" in row.notes or "transformer-impl local" in row.notes
    early = row.precision == "fp16" or "Megatron-DeepSpeed" in row.framework
    return "eager" if told or (trainer == "megatron" and early) else "flash"


def _gathered_inputs(row: Row, trainer: Trainer) -> GatheredInputs:
    """Whether nanotron keeps whole inputs or gathers them again: no table says.

    Both occur in the published sweep. Whole inputs prevail within a node and without a pipeline.
    """
    within = (row.tp or 1) <= (row.gpus_per_node or NODE) or row.pp == 1
    return "saved" if trainer == "nanotron" and within else "gathered_again"


def _cumulative(notes: str) -> tuple[str, ...]:
    """Optimizations that are on in a table which adds them one by one."""
    found = re.search(r"cumulative: \+ ([^;]*)", notes)
    last = next((n for n, word in enumerate(ADDED) if found and word in found[1]), -1)
    return ADDED[: last + 1]


def _loss(notes: str, added: tuple[str, ...]) -> Loss:
    """How the loss is computed."""
    if "liger" in notes or "fused linear cross entropy" in notes:
        return "fused"
    if "fused cross entropy" in notes or "cross-entropy fusion on" in notes:
        return "softmax"
    return "chunked_output" if "chunked" in added else "plain"
