"""An imported setup as settings of a request, under the flags: what the files say is fixed.

Names of models are taken from files only where they are no paths: a file must not choose what is
opened. The batch of a step follows once the ranks are known, as the program computes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from dsforge.importing.read import ImportedSetup, read_files
from dsforge.plan import Reason, Request
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
STRATEGY = (
    *("zero_stage", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"),
    *("expert_parallel_size", "virtual_stages", "offload_optimizer", "offload_parameters"),
    *("recompute", "micro_batch_size"),
)
WORKLOAD = ("sequence_length", "precision", "optimizer", "learning_rate", "vision_training")
CLUSTER = ("nodes", "gpus_per_node")
TRAINERS = ("ddp", "fsdp", "megatron-fsdp", "torchtune")  # beside the one that takes a ds_config
OPEN_KEYS = 6  # values that one reason names


def settings_of(imported: ImportedSetup, *, ours: bool = False) -> tuple[Setting, ...]:
    """What the files fix; `ours`: the run is one of dsforge's own scripts."""
    places = {held.field: held.place for held in imported.said}
    setup = imported.setup
    found: list[Setting] = []

    def add(loc: tuple[str, ...], value: Any, field: str) -> None:
        if value is not None:
            found.append(Setting(loc, value, places.get(field, imported.files[0])))

    if setup.model is not None and is_name(setup.model):
        add(("model",), setup.model, "model")
    unknown = {left.key for left in imported.open}
    for part, fields in (("strategy", STRATEGY), ("workload", WORKLOAD), ("cluster", CLUSTER)):
        for field in fields:
            if field not in unknown:
                add((part, field), getattr(setup, field), field)
    for loc, value, field in _engine(imported, ours=ours):
        add(loc, value, field)
    if setup.adapter != "none":
        add(("workload", "method"), setup.adapter, "adapter")
        add(("workload", "lora", "rank"), setup.lora_rank, "lora_rank")
        add(("workload", "lora", "alpha"), setup.lora_alpha, "lora_alpha")
    return tuple(found)


def _engine(imported: ImportedSetup, *, ours: bool) -> list[tuple[tuple[str, str], Any, str]]:
    """The engine, whose scripts run it, and groups that share weights."""
    setup = imported.setup
    engine = setup.engine or "deepspeed"
    end = "megatron" if engine == "megatron" else "deepspeed"
    found: list[tuple[tuple[str, str], Any, str]] = [(("strategy", "back_end"), end, "engine")]
    if not ours:
        found.append((("strategy", "software"), "others", "engine"))
        found.append((("strategy", "trainer"), engine if engine in TRAINERS else None, "engine"))
        if engine == "fsdp" and setup.no_sync:
            found.append((("strategy", "no_sync"), True, "no_sync"))
        if engine not in ("megatron", "torchtune"):
            found.append((("strategy", "loss"), setup.loss or "plain", "loss"))
        if engine in ("deepspeed", "ddp", "fsdp"):
            found.append((("strategy", "kernels"), setup.kernels, "kernels"))
        if engine in ("ddp", "fsdp") and setup.bf16_states:  # DeepSpeed has a config of its own
            found.append((("strategy", "bf16_states"), True, "bf16_states"))
        if engine == "megatron" and setup.overlaps_tensor:
            found.append((("strategy", "overlaps_tensor"), True, "overlaps_tensor"))
    if engine in ("deepspeed", "ddp", "fsdp") and setup.recompute == "full":
        held = (name for name in ("offload_activations", "tiled_mlp") if getattr(setup, name))
        found += [(("strategy", name), True, name) for name in held]
    if engine == "deepspeed" and setup.zero_stage == 3:  # noqa: PLR2004 - hpZ is of stage 3
        found.append((("strategy", "hpz_partition_size"), setup.shard_group, "shard_group"))
    return found


def is_name(text: str) -> bool:
    """Whether a text is the name or hub id of a model, and no path that exists here."""
    return bool(NAME.fullmatch(text)) and ".." not in text and not os.path.lexists(text)


def request_of_files(asked: Asked, paths: Sequence[Path], *, ours: bool = False) -> Request:
    """The request of the files at some paths, under the flags. Raises SpecError."""
    return imported_request(asked, read_files(paths), ours=ours)


def imported_request(asked: Asked, imported: ImportedSetup, *, ours: bool = False) -> Request:
    """The request of files and flags, which win. Raises SpecError."""
    settings = settings_of(imported, ours=ours)
    if asked.cluster is not None or asked.hostfile is not None or asked.known.cluster is not None:
        settings = tuple(setting for setting in settings if setting.loc[0] != "cluster")
    if asked.known.model is not None:
        settings = tuple(setting for setting in settings if setting.loc[0] != "model")
    over = asked._replace(settings=(*settings, *asked.settings))
    request = read_request(over)
    batch = _batch(imported, request)
    if batch is not None:
        own = Setting(("workload", "global_batch_size"), batch, imported.files[0])
        request = read_request(over._replace(settings=(own, *over.settings)))
    return request.model_copy(update={"reasons": (*request.reasons, *_reasons(imported))})


def _batch(imported: ImportedSetup, request: Request) -> int | None:
    """Samples of a step: as said, else of micro batch, accumulation and the ranks."""
    setup = imported.setup
    said = {held.field: held.origin for held in imported.said}
    if setup.global_batch_size is not None and said.get("global_batch_size") == "said":
        return setup.global_batch_size
    fixed = request.constraints
    micro, steps = fixed.micro_batch_size, setup.gradient_accumulation_steps
    if not micro or not steps:
        return None
    sizes = (fixed.tensor_parallel_size, fixed.pipeline_parallel_size, fixed.context_parallel_size)
    return micro * steps * max(1, request.cluster.gpus // prod(size or 1 for size in sizes))


def _reasons(imported: ImportedSetup) -> tuple[Reason, ...]:
    """What the files leave open, so that it was chosen here."""
    if not imported.open:
        return ()
    names = ", ".join(left.key for left in imported.open[:OPEN_KEYS])
    message = f"the files leave open: {names}; chosen here unless a flag gives it"
    return (Reason(rule="default-imported", message=message),)
