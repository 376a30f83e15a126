"""OpenRLHF: flags of its `train_*` modules, in both spellings, and Ray's numbers of nodes."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.parts.adapters import quantised, say_adapters
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.trainer_keys import say_recompute
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "OpenRLHF openrlhf/cli/train_sft.py"
GROUPS = (
    "",
    "train.",
    "ds.",
    "model.",
    "actor.",
    "data.",
    "adam.",
    "ds.lora.",
    "ray.",
    "actor.adam.",
)

DEFAULTS = {
    "zero_stage": 2,
    "micro_batch_size": 8,
    "global_batch_size": 128,
    "precision": "bf16",
    "recompute": "none",
    "optimizer": "adamw",
    "learning_rate": 5e-6,
    "sequence_length": 2048,
}


def _find(settings: Settings, *names: str) -> Value | None:
    """A flag, in whichever group a release has it."""
    return settings.find(*(group + name for name in names for group in GROUPS))


def read(work: Work, settings: Settings) -> None:
    """The flags; accumulation follows from the batch of a step."""
    draft = work.draft
    draft.say("engine", "deepspeed", ARGUMENTS)
    model = _find(settings, "model_name_or_path", "pretrain")
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    _ray(draft, settings)
    draft.whole("zero_stage", _find(settings, "zero_stage"), 0)
    offload = _find(settings, "adam_offload")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)
    draft.whole("micro_batch_size", _find(settings, "micro_train_batch_size", "micro_batch_size"))
    draft.whole("global_batch_size", _find(settings, "train_batch_size", "batch_size"))
    draft.whole("sequence_length", _find(settings, "max_len"))
    draft.whole("context_parallel_size", _find(settings, "ring_attn_size"))
    draft.whole(
        "tensor_parallel_size", _find(settings, "tensor_parallel_size", "ds_tensor_parallel_size")
    )
    group = _find(settings, "zpg")
    if group is not None and (group.whole or 0) > 1:
        draft.whole("shard_group", group)
    kind = _find(settings, "param_dtype")
    for name in ("bf16", "fp16"):
        flag = settings.find(name)
        named = kind is not None and kind.word == name
        if named or (flag is not None and flag.truth):
            draft.say("precision", name, (kind if named and kind else flag or Value(1, "")).place)
    draft.number("learning_rate", _find(settings, "lr", "learning_rate", "actor_learning_rate"))
    say_optimizer(draft, settings.find("optim"))
    say_recompute(draft, _find(settings, "gradient_checkpointing", "gradient_checkpointing_enable"))
    _adapters(draft, settings)
    draft.assume_all(DEFAULTS, ARGUMENTS)


def _ray(draft: Draft, settings: Settings) -> None:
    """Ranks of the actor, which is what trains."""
    nodes = _find(settings, "actor_num_nodes", "num_nodes")
    devices = _find(settings, "actor_num_gpus_per_node", "num_gpus_per_node")
    draft.whole("nodes", nodes)
    draft.whole("gpus_per_node", devices)
    if nodes is not None or devices is not None:
        draft.assume("nodes", 1, ARGUMENTS)


def _adapters(draft: Draft, settings: Settings) -> None:
    rank = _find(settings, "lora_rank", "rank")
    if rank is None or not rank.whole:
        draft.assume("adapter", "none", ARGUMENTS)
        return
    four = _find(settings, "load_in_4bit")
    base = four if four is not None and four.truth else quantised(settings)
    say_adapters(draft, Settings({"lora_rank": rank}), rank, base=base)
    alpha = _find(settings, "lora_alpha", "alpha")
    draft.number("lora_alpha", alpha)
    draft.assume("lora_alpha", 16.0, ARGUMENTS)


STYLE = Style(
    name="openrlhf",
    label="OpenRLHF",
    read=read,
    keys=words(
        "micro_train_batch_size train_batch_size pretrain zero_stage adam_offload ds.zero_stage "
        "train.micro_batch_size train.batch_size rollout_batch_size micro_rollout_batch_size "
        "actor_num_nodes actor_num_gpus_per_node"
    ),
    programs=re.compile(r"openrlhf"),
    evidence=ARGUMENTS,
)
