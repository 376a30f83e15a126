"""torchtitan: TOML, and the flags that replace its keys."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

CONFIG = "torchtitan torchtitan/config/job_config.py"
SEQUENCE = "torchtitan models/llama3/infra/parallelize.py, apply_tp: SequenceParallel on norms"
_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")  # and no path: `./assets`
_TABLES = ("parallelism", "training", "experimental", "parallel")
_SIZES = (
    ("tensor_parallel_size", "tensor_parallel_degree"),
    ("pipeline_parallel_size", "pipeline_parallel_degree"),
    ("context_parallel_size", "context_parallel_degree"),
    ("expert_parallel_size", "expert_parallel_degree"),
)

DEFAULTS = {
    "micro_batch_size": 8,
    "sequence_length": 2048,
    "precision": "bf16",
    "recompute": "selective",
    "optimizer": "adamw",
    "learning_rate": 8e-4,
    "adapter": "none",
}


def _find(settings: Settings, name: str) -> Value | None:
    """A size, in whichever table a release has it."""
    return settings.find(*(f"{table}.{name}" for table in _TABLES))


def read(work: Work, settings: Settings) -> None:
    """Degrees, batch, types and checkpointing."""
    draft = work.draft
    draft.say("engine", "fsdp", CONFIG)
    _model(draft, settings)
    for field, key in _SIZES:
        value = _find(settings, key)
        if value is not None and value.whole != -1:
            draft.whole(field, value)
    _data_parallel(draft, settings)
    _batch(draft, settings)
    total = settings.find("training.global_batch_size")
    if total is not None and total.whole not in (-1, None):
        draft.whole("global_batch_size", total)
    else:
        draft.assume("gradient_accumulation_steps", 1, CONFIG)
    draft.whole(
        "gradient_accumulation_steps", settings.find("training.gradient_accumulation_steps")
    )
    draft.whole("sequence_length", settings.find("training.seq_len"))
    draft.number("learning_rate", settings.find("optimizer.lr"))
    say_optimizer(draft, settings.find("optimizer.name"))
    _types(draft, settings)
    mode = settings.find("activation_checkpoint.mode") or settings.at("activation_checkpoint.mode")
    if mode is not None and mode.word in ("none", "selective", "full"):
        draft.say("recompute", mode.word, mode.place)
    elif mode is not None and mode.word == "memory_budget":
        draft.say("recompute", "selective", mode.place)
    offload = settings.find("training.enable_cpu_offload", "experimental.enable_cpu_offload")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)
        draft.say("offload_parameters", "cpu", offload.place)
    if (draft.value("tensor_parallel_size") or 1) > 1:
        draft.assume("sequence_parallel", value=True, source=SEQUENCE)
    draft.assume_all(DEFAULTS, CONFIG)


def _model(draft: Draft, settings: Settings) -> None:
    """The model by its hub id, else by the names of torchtitan."""
    name, flavor = settings.find("model.name"), settings.find("model.flavor")
    assets = settings.find("model.hf_assets_path")
    if assets is not None and _HUB.fullmatch(assets.text):
        draft.say("model", assets.text, assets.place)
    elif name is not None and name.text:
        draft.say("model", f"{name.text} {flavor.text if flavor else ''}".strip(), name.place)


def _batch(draft: Draft, settings: Settings) -> None:
    """The batch of a rank; with pipelines it is divided into micro batches."""
    local = settings.find("training.local_batch_size", "training.batch_size")
    micro = _find(settings, "pipeline_parallel_microbatch_size")
    stages = draft.value("pipeline_parallel_size") or 1
    if stages == 1 or micro is None or not micro.whole or local is None or not local.whole:
        draft.whole("micro_batch_size", local)
        return
    draft.whole("micro_batch_size", micro)
    if settings.find("training.global_batch_size") is None:
        steps = max(1, local.whole // micro.whole)
        draft.say("gradient_accumulation_steps", steps, local.place)


def _data_parallel(draft: Draft, settings: Settings) -> None:
    """Shards (-1: all other ranks) and replicas of them."""
    shard = _find(settings, "data_parallel_shard_degree") or _find(settings, "data_parallel_degree")
    copies = _find(settings, "data_parallel_replicate_degree")
    count = copies.whole if copies is not None and copies.whole and copies.whole > 0 else 1
    parts = shard.whole if shard is not None else -1
    place = shard.place if shard is not None else CONFIG
    reshard = _find(settings, "fsdp_reshard_after_forward")
    kept = reshard is not None and reshard.word == "never"
    if parts is not None and parts > 0:
        draft.say("data_parallel_size", parts * count, place)
        if count > 1 and parts > 1:
            draft.say("shard_group", parts, place)
    origin = draft.say if shard is not None else draft.assume
    if parts == 1:
        origin("zero_stage", 0, place)
    elif kept and reshard is not None:
        draft.say("zero_stage", 2, reshard.place)
    else:
        origin("zero_stage", 3, place)


def _types(draft: Draft, settings: Settings) -> None:
    say_precision(draft, settings.find("training.mixed_precision_param"))
    converters = settings.find("model.converters")
    names = converters.value if converters is not None else None
    if converters is not None and "float8" in str(names):
        draft.say("precision", "fp8", converters.place)
    on = settings.find("float8.enable_float8_linear")
    if on is not None and on.truth:
        draft.say("precision", "fp8", on.place)


STYLE = Style(
    name="torchtitan",
    label="torchtitan",
    read=read,
    keys=words(
        "job profiling metrics model optimizer training parallelism experimental checkpoint "
        "activation_checkpoint float8 lr_scheduler comm compile quantize validation"
    ),
    fewest=4,
    programs=re.compile(r"run_train\.sh$|torchtitan|run_llama_train\.sh$"),
    evidence=CONFIG,
)
