"""A user's own ds_config.json as constraints of a plan: what it really sets, priced as it stands.

Only what decides memory and time is read; the rest is for `lint` and for the engine to judge. What
the file leaves open has the engine's default, not ours. `"auto"` (Hugging Face) is filled in by the
trainer: it leaves a value open here too, so that it is chosen and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsforge.errors import Problem, SpecError
from dsforge.estimate.buckets import ENGINE
from dsforge.outside import UnreadableError, json_value
from dsforge.plan import Request
from dsforge.reading.problems import validated
from dsforge.reading.source import Setting, Source, read_text, refusal
from dsforge.strategy import FULLY_SHARDED, Offload, ZeroStage

PART = ConfigDict(frozen=True, extra="ignore", defer_build=True)
OPTIMIZERS = {"adam": "adamw"} | {
    name: name for name in ("adamw", "lion", "sgd", "adafactor", "muon")
}


class _Device(BaseModel):
    """Where one kind of state is offloaded to."""

    model_config = PART

    device: Offload = "none"


class _Zero(BaseModel):
    """`zero_optimization`, with the engine's defaults (runtime/zero/config.py)."""

    model_config = PART

    stage: ZeroStage = 0
    overlap_comm: bool | None = None
    reduce_bucket_size: int = Field(default=ENGINE.reduce_bucket_size, ge=1)
    allgather_bucket_size: int = Field(default=ENGINE.allgather_bucket_size, ge=1)
    stage3_prefetch_bucket_size: int = Field(default=ENGINE.prefetch_bucket_size, ge=0)
    stage3_param_persistence_threshold: int = Field(default=ENGINE.persistence_threshold, ge=0)
    stage3_max_live_parameters: int = Field(default=ENGINE.max_live_parameters, ge=1)
    stage3_max_reuse_distance: int = Field(default=ENGINE.max_reuse_distance, ge=0)
    sub_group_size: int = Field(default=ENGINE.sub_group_size, ge=1)
    zero_hpz_partition_size: int = Field(default=1, ge=0)
    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False
    offload_optimizer: _Device | None = None
    offload_param: _Device | None = None

    @property
    def buckets(self) -> dict[str, int | bool]:
        """The sizes under our names. The engine overlaps by default only under ZeRO 3."""
        overlaps = self.stage == FULLY_SHARDED if self.overlap_comm is None else self.overlap_comm
        return {
            "reduce_bucket_size": self.reduce_bucket_size,
            "allgather_bucket_size": self.allgather_bucket_size,
            "prefetch_bucket_size": self.stage3_prefetch_bucket_size,
            "persistence_threshold": self.stage3_param_persistence_threshold,
            "max_live_parameters": self.stage3_max_live_parameters,
            "max_reuse_distance": self.stage3_max_reuse_distance,
            "sub_group_size": self.sub_group_size,
            "overlap_comm": overlaps,
        }


class _Switch(BaseModel):
    """`bf16` or `fp16`."""

    model_config = PART

    enabled: bool | None = None


class _Named(BaseModel):
    """`optimizer`."""

    model_config = PART

    type: str | None = Field(default=None, min_length=1)


class _Tensor(BaseModel):
    """`tensor_parallel`."""

    model_config = PART

    autotp_size: int = Field(default=0, ge=0)


class DsConfig(BaseModel):
    """What a ds_config says about memory and time."""

    model_config = PART

    train_batch_size: int | None = Field(default=None, ge=1)
    train_micro_batch_size_per_gpu: int | None = Field(default=None, ge=1)
    gradient_accumulation_steps: int | None = Field(default=None, ge=1)
    zero_optimization: _Zero = _Zero.model_construct()
    bf16: _Switch | None = None
    fp16: _Switch | None = None
    optimizer: _Named | None = None
    tensor_parallel: _Tensor | None = None
    sequence_parallel_size: int = Field(default=1, ge=0)

    @property
    def precision(self) -> Literal["bf16", "fp16", "fp32"] | None:
        """The compute precision; none where the trainer fills it in."""
        if self.bf16 and self.bf16.enabled:
            return "bf16"
        if self.fp16 and self.fp16.enabled:
            return "fp16"
        filled_in = any(block and block.enabled is None for block in (self.bf16, self.fp16))
        return None if filled_in else "fp32"


def json_mapping(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises SpecError."""
    try:
        value = json_value(read_text(path))
    except UnreadableError as error:
        raise refusal("ds-config-json", str(path), error.reason) from error
    if not isinstance(value, dict):
        raise refusal("ds-config-mapping", str(path), "must be a JSON object")
    return value


def read_ds_config(path: Path) -> DsConfig:
    """What the file sets. Raises SpecError with all its problems."""
    return validated(DsConfig, Source(str(path), _without_auto(json_mapping(path))))


def settings_of(config: DsConfig, place: str) -> tuple[Setting, ...]:
    """The file as settings of a request, which flags may follow. Raises SpecError."""
    zero, tensor = config.zero_optimization, config.tensor_parallel
    offloads = {"offload_optimizer": zero.offload_optimizer, "offload_parameters": None}
    copies = 1
    if zero.stage == FULLY_SHARDED:  # the engine ignores it below
        offloads["offload_parameters"] = zero.offload_param
        copies = max(1, zero.zero_hpz_partition_size)
    found: dict[tuple[str, str], object] = {
        ("strategy", "back_end"): "deepspeed",
        ("strategy", "zero_stage"): zero.stage,
        ("strategy", "hpz_partition_size"): copies,
        ("strategy", "quantized_weights"): zero.zero_quantized_weights or None,
        ("strategy", "quantized_gradients"): zero.zero_quantized_gradients or None,
        ("strategy", "tensor_parallel_size"): max(1, tensor.autotp_size if tensor else 1),
        ("strategy", "pipeline_parallel_size"): 1,
        ("strategy", "context_parallel_size"): max(1, config.sequence_parallel_size),
        ("strategy", "loss"): "plain",  # of whatever trainer it is for
        ("strategy", "buckets"): zero.buckets,
        ("strategy", "micro_batch_size"): config.train_micro_batch_size_per_gpu,
        ("workload", "precision"): config.precision,
        ("workload", "optimizer"): _optimizer(config, place),
        ("workload", "global_batch_size"): config.train_batch_size,
    }
    for key, block in offloads.items():
        found["strategy", key] = block.device if block else "none"
    return tuple(Setting(loc, value, place) for loc, value in found.items() if value is not None)


def batch_settings(config: DsConfig, request: Request, place: str) -> tuple[Setting, ...]:
    """Batch sizes that follow from the others and the ranks. Raises SpecError where they clash.

    `train_batch_size` is micro batch x accumulation x data-parallel ranks (runtime/config.py).
    """
    total, micro = config.train_batch_size, config.train_micro_batch_size_per_gpu
    steps = config.gradient_accumulation_steps
    fixed = request.constraints
    held = (fixed.tensor_parallel_size or 1) * (fixed.pipeline_parallel_size or 1)
    ranks = max(1, request.cluster.gpus // (held * (fixed.context_parallel_size or 1)))
    found: dict[tuple[str, str], int] = {}
    if total is None and micro is not None:
        found["workload", "global_batch_size"] = micro * (steps or 1) * ranks
    elif total is not None and micro is None:
        micro = ceil(total / ((steps or 1) * ranks))
        found["strategy", "micro_batch_size"] = micro
    if total is not None and micro is not None and _clash(total, micro * ranks, steps):
        product = f"micro batch {micro} x accumulation {steps or 'any'} x {ranks} ranks"
        message = f"`train_batch_size` (={total}) must be {product}"
        hint = "the engine refuses it; set two of the three and leave the third out"
        raise SpecError((Problem("batch-product", message, hint, place),))
    return tuple(Setting(loc, value, place) for loc, value in found.items())


def _clash(total: int, at_once: int, steps: int | None) -> bool:
    """Whether a global batch is not what one pass takes, times the passes."""
    return total % at_once > 0 if steps is None else total != at_once * steps


def _optimizer(config: DsConfig, place: str) -> str | None:
    """Our name of the optimizer; none where the training script makes it."""
    name = config.optimizer.type if config.optimizer else None
    if name is None or name.lower() in OPTIMIZERS:
        return None if name is None else OPTIMIZERS[name.lower()]
    message = f"`optimizer.type` (={name}) has no price"
    hint = "known: " + ", ".join(sorted(set(OPTIMIZERS.values())))
    raise SpecError((Problem("ds-config-optimizer", message, hint, place),))


def _without_auto(value: Any) -> Any:
    """The values without `"auto"`, with whole numbers for 5e8, which the engine takes alike."""
    if isinstance(value, Mapping):
        return {key: _without_auto(inner) for key, inner in value.items() if inner != "auto"}
    return int(value) if isinstance(value, float) and value.is_integer() else value
