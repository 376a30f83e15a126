"""ms-swift: flags of `swift` and `megatron`, and its YAML."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.parts.adapters import (
    LORA,
    assume_lora,
    note_base,
    say_adapters,
)
from dsforge.importing.parts.engine_config import say_engine_file
from dsforge.importing.parts.megatron_keys import say_megatron, say_sharding
from dsforge.importing.parts.precisions import say_switches
from dsforge.importing.parts.trainer_keys import Defaults, say_trainer
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "ms-swift swift/trainers/arguments.py"
TUNER = "ms-swift swift/arguments/base_args/base_args.py"
MEGATRON = "ms-swift swift/megatron/arguments/megatron_args.py"
BUILT_IN = re.compile(r"zero([0-3])(_offload)?$")
TOTAL = 16  # samples of a step that the default accumulation aims at
DEFAULTS = Defaults(ARGUMENTS, micro_batch_size=1, precision="bf16", recompute="full")


def read(work: Work, settings: Settings) -> None:
    """Keys of TrainingArguments, its own defaults, and names of built-in ds_configs."""
    draft = work.draft
    engine = settings.find("deepspeed")
    built_in = BUILT_IN.fullmatch(engine.word) if engine is not None else None
    if built_in and engine is not None:
        draft.say("engine", "deepspeed", engine.place)
        draft.say("zero_stage", int(built_in[1]), engine.place)
        if built_in[2]:
            draft.say("offload_optimizer", "cpu", engine.place)
            if int(built_in[1]) == 3:  # noqa: PLR2004 - the stage that shards parameters
                draft.say("offload_parameters", "cpu", engine.place)
        settings = settings.without("deepspeed")
    elif engine is not None:
        say_engine_file(work, engine)
    settings = _with_fsdp(settings)
    ranks = settings.find("device_groups.nproc_per_node")
    if ranks is not None:
        draft.whole("gpus_per_node", ranks)
        draft.assume("nodes", 1, ARGUMENTS)
    draft.whole("sequence_length", settings.find("max_length"))
    draft.whole("context_parallel_size", settings.find("sequence_parallel_size"))
    if settings.find("per_device_train_batch_size") is None:
        draft.whole("micro_batch_size", settings.find("batch_size"))
    kind = settings.find("tuner_type", "train_type", "sft_type")
    word = kind.word if kind is not None else "lora"
    _assume_steps(draft, settings)
    rate = 1e-4 if word in LORA else 1e-5
    say_trainer(
        work, settings, DEFAULTS._replace(learning_rate=rate), types=("torch_dtype", "dtype")
    )
    _adapters(draft, settings, kind, word)


def _with_fsdp(settings: Settings) -> Settings:
    """The block `fsdp`, which has both of TrainingArguments' keys, as these keys."""
    if not settings.has_block("fsdp"):
        return settings
    return settings.renamed(
        {key: key.removeprefix("fsdp.") for key in settings.keys if key.startswith("fsdp.")}
    )


def _assume_steps(draft: Draft, settings: Settings) -> None:
    """Without a number of steps, as many as make 16 samples (1 for GRPO)."""
    if settings.at("gradient_accumulation_steps") is not None:
        return
    rlhf = settings.at("rlhf_type")
    if rlhf is not None and rlhf.word == "grpo":
        draft.assume("gradient_accumulation_steps", 1, ARGUMENTS)
        return
    micro = settings.at("per_device_train_batch_size", "batch_size")
    nodes, devices = draft.value("nodes"), draft.value("gpus_per_node")
    if nodes and devices:
        at_once = (micro.whole or 1 if micro is not None else 1) * nodes * devices
        draft.said.pop("gradient_accumulation_steps", None)
        draft.assume("gradient_accumulation_steps", max(1, -(-TOTAL // at_once)), ARGUMENTS)
    else:
        value = micro or Value("auto", ARGUMENTS)
        draft.leave_open("gradient_accumulation_steps", value, "16 samples a step over all ranks")


def _adapters(draft: Draft, settings: Settings, kind: Value | None, word: str) -> None:
    if word in LORA:
        say_adapters(draft, settings, kind, default=TUNER)
        assume_lora(draft, 8, 32, "ms-swift swift/arguments/tuner_args.py")
    else:
        draft.say("adapter", "none", kind.place if kind else TUNER)
        if kind is not None and word not in ("full", "none"):
            draft.lose("tuner_type", kind, "dsforge knows full training and LoRA")
        note_base(draft, settings)


def read_megatron(work: Work, settings: Settings) -> None:
    """`megatron sft`: Megatron's arguments with the defaults of ms-swift."""
    draft = work.draft
    draft.say("engine", "megatron", MEGATRON)
    say_megatron(draft, settings)
    say_sharding(draft, settings)
    say_switches(draft, settings, ("torch_dtype",))
    for field, value in (
        ("micro_batch_size", 1),
        ("global_batch_size", TOTAL),
        ("recompute", "selective"),
        ("zero_stage", 1),
        ("precision", "bf16"),
        ("optimizer", "adamw"),
    ):
        draft.assume(field, value, MEGATRON)
    kind = settings.find("tuner_type", "train_type")
    if kind is not None and kind.word in LORA:
        say_adapters(draft, settings, kind)
        assume_lora(draft, 8, 32, MEGATRON)
    else:
        draft.assume("adapter", "none", MEGATRON)


STYLE = Style(
    name="ms-swift",
    label="ms-swift",
    read=read,
    keys=words(
        "train_type tuner_type rlhf_type split_dataset_ratio torch_dtype model_author model_name "
        "freeze_vit target_modules sft_type val_dataset agent_template loss_scale"
    ),
    programs=re.compile(r"^(sft|pt|rlhf)$|swift/cli/|swift\.cli"),
    takes_files=True,
    evidence=ARGUMENTS,
)
MEGATRON_STYLE = Style(
    name="ms-swift",
    label="ms-swift (Megatron)",
    read=read_megatron,
    evidence=MEGATRON,
)
