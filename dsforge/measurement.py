"""Measurement: what a run really needed, in the same words as the estimates, and its metrics.

This module is free of torch, so that reports can read measurements on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN

EngineName = Literal["deepspeed", "torch"]  # that `dsforge train` trains with
# What estimates call who trains, by the strategy that shards the states; empty: ZeRO.
TRAINERS = {"": "deepspeed", "ddp": "ddp", "zero1": "ddp", "fsdp2": "fsdp"}


class MeasuredMemory(BaseModel):
    """Peak bytes on the fullest rank. Device counters are 0 on CPU ranks."""

    model_config = FROZEN

    allocated_bytes: int = Field(ge=0, description="torch's peak of allocated device memory.")
    reserved_bytes: int = Field(ge=0, description="torch's peak of reserved device memory.")
    device_bytes: int = Field(ge=0, description="Used device memory as the driver sees it.")
    host_bytes: int = Field(ge=0, description="Peak resident memory of the rank's process.")


class Measurement(BaseModel):
    """One finished run. Steps are counted after warm-up."""

    model_config = FROZEN

    engine: EngineName = Field(default="deepspeed", description="Software that trained.")
    strategy: str = Field(
        default="", description="Strategy of torch that shards the states; empty: ZeRO."
    )
    zero_stage: int = Field(
        ge=0,
        le=3,
        description="ZeRO stage of the run, or what a torch strategy shards like one.",
    )
    world_size: int = Field(ge=1, description="Ranks of the run.")
    micro_batch_size: int = Field(
        ge=1, description="Samples per data-parallel rank and forward pass."
    )
    gradient_accumulation_steps: int = Field(
        ge=1, description="Micro batches per optimizer step and rank."
    )
    tokens_per_step: float = Field(gt=0, description="Real tokens of all ranks, padding excluded.")
    warmup_steps: int = Field(ge=0, description="First steps, not counted in step_s.")
    step_s: tuple[float, ...] = Field(description="Seconds of each counted optimizer step.")
    losses: tuple[float, ...] = Field(description="Training loss of every step, warm-up included.")
    memory: MeasuredMemory = Field(description="Peak memory of the fullest rank, by counter.")
    sent_bytes: int = Field(ge=0, description="Bytes that one rank sends per step, rank 0.")
    versions: dict[str, str] = Field(
        description="python, torch, deepspeed, transformers, peft, dsforge."
    )
    hardware: dict[str, str] = Field(description="Accelerator, CPU, cores, memory.")

    @property
    def trainer(self) -> str:
        """The engine whose estimate is one of this run."""
        return TRAINERS.get(self.strategy, "")


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Figures of one optimizer step over all ranks; tokens exclude padding."""

    step: Annotated[int, Field(description="Optimizer step, counted from 1.")]
    loss: Annotated[
        float, Field(description="Mean per answer token, or per pair, of the batch, before it.")
    ]
    learning_rate: Annotated[float, Field(description="Learning rate used in this step.")]
    gradient_norm: Annotated[
        float | None, Field(description="Norm before clipping; none: unknown or overflowed.")
    ]
    step_s: Annotated[float, Field(description="Seconds of the step, until its last collective.")]
    tokens: Annotated[int, Field(description="Tokens of all ranks in the step, no padding.")]
    tokens_per_s: Annotated[float, Field(description="Rate of all ranks, padding excluded.")]
    host_bytes: Annotated[int, Field(description="Peak resident memory of the first rank so far.")]
    allocated_bytes: Annotated[
        int, Field(description="Peak device memory of the first rank so far; 0 on CPU ranks.")
    ]
    mfu: Annotated[
        float | None, Field(description="Useful FLOPs over the peak of all ranks; none: no plan.")
    ]
    ended_at: Annotated[float, Field(description="Unix time at the end of the step, seconds.")]
    reward_margin: Annotated[
        float | None,
        Field(description="Preferences: mean chosen reward less the rejected one; else none."),
    ] = None
    reward_accuracy: Annotated[
        float | None,
        Field(description="Preferences: share of pairs with the higher chosen reward; else none."),
    ] = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss per answer token over the validation samples."""

    step: Annotated[int, Field(description="Optimizer steps done before this validation.")]
    validation_loss: Annotated[
        float, Field(description="Mean per answer token, or per pair, held out.")
    ]


def quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    """First and third quartile of measured values; none of no values."""
    if len(values) < 2:  # noqa: PLR2004 (statistics wants two)
        return (values[0], values[0]) if values else None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
