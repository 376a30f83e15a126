"""FSDP's words: sharding strategy, offload and checkpointing as stages of ZeRO."""

from __future__ import annotations

import re
from typing import Any

from dsforge.importing.draft import Draft
from dsforge.importing.values import Settings, Value

STAGES = {  # accelerate utils/constants.py, FSDP_SHARDING_STRATEGY: numbers count from 1
    **dict.fromkeys(("full_shard", "1", "fully_shard"), 3),
    **dict.fromkeys(("shard_grad_op", "2", "grad_op"), 2),
    **dict.fromkeys(("no_shard", "3", "ddp"), 0),
    **dict.fromkeys(("hybrid_shard", "4", "hsdp"), 3),
    **dict.fromkeys(("hybrid_shard_zero2", "_hybrid_shard_zero2", "5"), 2),
}
HYBRID = ("hybrid_shard", "hybrid_shard_zero2", "_hybrid_shard_zero2", "4", "5", "hsdp")
EACH_BATCH = re.compile(r'"sync_each_batch": {0,4}(?P<value>true|false)')
NO_SYNC = "transformers trainer.py: no_sync but in the last micro step, unless sync_each_batch"
NODE = "torch/distributed/fsdp/api.py, ShardingStrategy: within a node"


def say_strategy(draft: Draft, value: Value) -> None:
    """A sharding strategy by its name or number."""
    word = (value.word or str(value.value)).rpartition(".")[2]
    stage = STAGES.get(word)
    if value.is_open or stage is None:
        draft.leave_open("zero_stage", value)
        return
    draft.say("zero_stage", stage, value.place)
    if word in HYBRID:
        draft.said.pop("shard_group", None)
        draft.open["shard_group"] = _within_a_node(value)


def _within_a_node(value: Value) -> Any:
    from dsforge.importing.draft import Left

    return Left(key="shard_group", value="a node", place=value.place, reason="ranks of a node")


def reshards(draft: Draft, value: Value | None) -> None:
    """FSDP2's `reshard_after_forward`: false keeps weights, which is stage 2."""
    if value is None:
        return
    if value.truth is not None:
        draft.say("zero_stage", 3 if value.truth else 2, value.place)
    elif value.whole is not None and value.whole > 1:
        draft.say("zero_stage", 3, value.place)
        draft.whole("shard_group", value)
    elif value.word in STAGES:
        say_strategy(draft, value)


def say_offload(draft: Draft, value: Value | None) -> None:
    """FSDP's CPU offload moves parameters, gradients and the optimizer."""
    if value is not None and value.truth:
        draft.say("offload_parameters", "cpu", value.place)
        draft.say("offload_optimizer", "cpu", value.place)


def say_fsdp(draft: Draft, settings: Settings, prefix: str = "") -> None:
    """A block of FSDP's settings, with or without `fsdp_` before each name."""

    def find(*names: str) -> Value | None:
        return settings.find(*(f"{prefix}{n}" for n in names), *names)

    draft.assume("zero_stage", 3, "accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin")
    strategy = find("sharding_strategy")
    reshard = find("reshard_after_forward")
    if strategy is not None:
        say_strategy(draft, strategy)
    if reshard is not None and strategy is None:
        reshards(draft, reshard)
    offload = find("offload_params", "cpu_offload", "offload_parameters")
    say_offload(draft, offload)
    checkpointing = find("activation_checkpointing")
    if checkpointing is not None and checkpointing.truth:
        draft.say("recompute", "full", checkpointing.place)
    for key in ("mp_policy", "mixed_precision_policy"):
        find(key)


def say_reduction(draft: Draft, settings: Settings) -> None:
    """Whether the Trainer's FSDP sums whole gradients: where several micro steps make a step."""
    each = settings.find("accelerator_config.gradient_accumulation_kwargs.sync_each_batch")
    text = settings.find("accelerator_config")  # JSON on a command line
    if text is not None and (said := EACH_BATCH.search(text.word)):
        each = text._replace(value=said["value"] == "true")
    steps = draft.value("gradient_accumulation_steps")
    if draft.value("engine") != "fsdp" or not steps or steps == 1:
        return
    if each is None:
        draft.assume("no_sync", value=True, source=NO_SYNC)
    elif each.is_open:
        draft.leave_open("no_sync", each)
    else:
        draft.say("no_sync", not each.truth, each.place)


def say_words(draft: Draft, value: Value) -> None:
    """Transformers' `fsdp: full_shard auto_wrap offload`."""
    words = value.value if isinstance(value.value, list) else value.word.replace(",", " ").split()
    for word in map(str, words):
        if word in STAGES:
            say_strategy(draft, value._replace(value=word))
        elif word == "offload":
            say_offload(draft, value._replace(value=True))
    if not words or value.truth:
        draft.say("zero_stage", 3, value.place)
