"""Parsed JSON -> DsConfig, with everything that is wrong with it.

Types are those of DeepSpeed's config classes, where a whole number may be written `5e8`. Values
that cannot be read count as left out, so that whoever wants to know more can go on. `auto` is for
the trainer (Hugging Face) to fill in: where none will, it is a wrong value.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from dsforge.ds_config.config import (
    BALANCED,
    PARTITIONS,
    BucketKeys,
    DsConfig,
    Partition,
    Precision,
)
from dsforge.ds_config.reader import AUTO, OPTIMIZER_OFFLOAD, PARAMETER_OFFLOAD, ZERO, Reader
from dsforge.errors import Problem
from dsforge.zero_stages import ZERO_STAGES, Offload, ZeroStage

DEVICES: tuple[Offload, ...] = ("none", "cpu", "nvme")


class Reading(NamedTuple):
    """A config, and what is wrong with it; places are left to whoever knows the file."""

    config: DsConfig
    problems: tuple[Problem, ...]


def read(settings: Mapping[str, Any], *, filled_in: bool = True) -> Reading:
    """The config in parsed JSON; `filled_in`: whether a trainer takes the place of `auto`."""
    reader = Reader(settings, filled_in=filled_in)
    config = _batch(reader, DsConfig())
    config = _states(reader, config)
    return Reading(_parallel(reader, config), tuple(dict.fromkeys(reader.problems)))


def _batch(reader: Reader, config: DsConfig) -> DsConfig:
    """Batch sizes, types and the optimizer."""

    def count(key: str) -> int | None:
        return reader.whole(key, least=1, rule="batch-count")

    kind = reader.value("optimizer.type")
    if kind is not None and (not isinstance(kind, str) or not kind):
        reader.refuse("value-type", "optimizer.type", kind, "the name of an optimizer")
    parameters = reader.value("optimizer.params")
    return config._replace(
        train_batch_size=count("train_batch_size"),
        micro_batch_size=count("train_micro_batch_size_per_gpu"),
        gradient_accumulation_steps=count("gradient_accumulation_steps"),
        precision=_precision(reader),
        bf16_masters=_bf16(reader, "bf16_master_weights_and_grads") is True,
        bf16_moments=_bf16(reader, "bf16_optimizer_states") is True,
        gradient_type=reader.kind("data_types.grad_accum_dtype"),
        communication_type=reader.kind("communication_data_type"),
        optimizer=kind if isinstance(kind, str) and kind != AUTO else "",
        optimizer_parameters=parameters
        if isinstance(parameters, Mapping)
        else MappingProxyType({}),
        any_cpu_optimizer=reader.value("zero_allow_untested_optimizer") is True
        or reader.value("zero_force_ds_cpu_optimizer") is False,
    )


def _bf16(reader: Reader, key: str) -> bool | None:
    """A switch of the bf16 block; `bfloat16` is its old name."""
    block = "bfloat16" if reader.value("bf16") is None else "bf16"
    return reader.flag(f"{block}.{key}")


def _precision(reader: Reader) -> Precision | None:
    """The compute precision (engine.py, `get_data_types`)."""
    bf16 = _bf16(reader, "enabled")
    fp16 = reader.flag("fp16.enabled")
    if bf16 and fp16:
        message = "`fp16` and `bf16` are both enabled"
        reader.problems.append(
            Problem("fp16-with-bf16", message, "keep bf16 where the GPU supports it")
        )
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    return None if bf16 is None or fp16 is None else "fp32"


def _states(reader: Reader, config: DsConfig) -> DsConfig:
    """ZeRO: what is sharded, where it lies, in which buffers it travels."""
    stage = reader.choice(f"{ZERO}.stage", ZERO_STAGES, default=0, rule="zero-stage")
    optimizer = _device(reader, OPTIMIZER_OFFLOAD, f"{ZERO}.cpu_offload")
    parameters = _device(reader, PARAMETER_OFFLOAD, f"{ZERO}.cpu_offload_param")
    places = ((OPTIMIZER_OFFLOAD, optimizer), (PARAMETER_OFFLOAD, parameters))
    named = [reader.value(f"{path}.nvme_path") for path, device in places if device == "nvme"]
    return config._replace(
        zero_stage=cast("ZeroStage | None", stage),
        offload_optimizer=optimizer,
        offload_parameters=parameters,
        offload_ratio=_share(reader, f"{OPTIMIZER_OFFLOAD}.ratio"),
        swap_folder=next((name for name in named if isinstance(name, str)), None),
        bucket_keys=_buckets(reader),
        overlap_comm=reader.flag(f"{ZERO}.overlap_comm", default=None),
        reduce_scatter=reader.flag(f"{ZERO}.reduce_scatter", default=True) is not False,
        hpz_partition_size=max(1, reader.whole(f"{ZERO}.zero_hpz_partition_size", default=1) or 1),
        quantized_weights=bool(reader.flag(f"{ZERO}.zero_quantized_weights")),
        quantized_gradients=bool(reader.flag(f"{ZERO}.zero_quantized_gradients")),
    )


def _device(reader: Reader, path: str, old: str) -> Offload | None:
    """Where an offload block puts its states; the old spelling is a switch for the CPU."""
    if reader.flag(old):
        return "cpu"
    return cast("Offload | None", reader.choice(f"{path}.device", DEVICES, default="none"))


def _share(reader: Reader, path: str) -> float:
    value = reader.value(path)
    if value is None:
        return 1.0
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    reader.refuse("value-range", path, value, "a number from 0 to 1")
    return 1.0


def _buckets(reader: Reader) -> BucketKeys:
    """Sizes of the buffers (runtime/zero/config.py); those of stage 3 have two spellings."""
    sizes = BucketKeys()

    def both(key: str, default: int | None, least: int = 0) -> int | None:
        return reader.whole(f"{ZERO}.stage3_{key}", f"{ZERO}.{key}", default=default, least=least)

    def plain(key: str, default: int | None) -> int | None:
        return reader.whole(f"{ZERO}.{key}", default=default, least=1)

    return BucketKeys(
        reduce_bucket_size=plain("reduce_bucket_size", sizes.reduce_bucket_size),
        allgather_bucket_size=plain("allgather_bucket_size", sizes.allgather_bucket_size),
        prefetch_bucket_size=both("prefetch_bucket_size", sizes.prefetch_bucket_size),
        persistence_threshold=both("param_persistence_threshold", sizes.persistence_threshold),
        max_live_parameters=both("max_live_parameters", sizes.max_live_parameters, 1),
        max_reuse_distance=both("max_reuse_distance", sizes.max_reuse_distance),
        sub_group_size=plain("sub_group_size", sizes.sub_group_size),
    )


def _parallel(reader: Reader, config: DsConfig) -> DsConfig:
    """The axes beside data parallelism."""
    stages = reader.size("pipeline.stages")
    return config._replace(
        tensor_parallel_size=reader.size("tensor_parallel.autotp_size"),
        splits_vocabulary=reader.flag("tensor_parallel.vocab_parallel_lm_head") is True,
        pipeline_stages=stages,
        partition=_partition(reader, stages),
        checkpointed_layers=reader.whole("pipeline.activation_checkpoint_interval") or 0,
        sequence_parallel_size=reader.size("sequence_parallel_size"),
    )


def _partition(reader: Reader, stages: int) -> Partition:
    """How layers fall to stages: balanced by parameters, uniform, or layers of each stage."""
    path = "pipeline.partition"
    given = reader.value(path)
    if given is None or (isinstance(given, str) and given in PARTITIONS):
        return BALANCED if given in (None, "best") else str(given)
    counts = isinstance(given, list) and all(type(n) is int and n >= 0 for n in given)
    if counts and len(given) == stages:
        return tuple(given)
    message = (
        f"`{path}` (={given}) must be {', '.join(PARTITIONS)}, or the decoder layers "
        f"of each of the {stages} stages"
    )
    reader.problems.append(Problem("partition-form", message, "for example [12, 10]"))
    return BALANCED
