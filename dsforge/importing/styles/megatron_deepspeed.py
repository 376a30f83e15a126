"""Megatron-DeepSpeed: Megatron's flags with `--deepspeed_config` and `--zero-stage`."""

from __future__ import annotations

from dsforge.importing.parts.engine_config import say_engine
from dsforge.importing.parts.megatron_keys import say_megatron
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "Megatron-DeepSpeed megatron/arguments.py"


def read(work: Work, settings: Settings) -> None:
    """Megatron's flags, and the engine's config where it is there."""
    draft = work.draft
    say_megatron(draft, settings)
    config = settings.find("deepspeed_config")
    draft.say("engine", "deepspeed", config.place if config else ARGUMENTS)
    found = work.files.beside(config.text) if config is not None and config.text else None
    if found is not None and found.form == "json" and "CONFIG_" not in found.text:
        say_engine(draft, found)
    stage = settings.find("zero_stage")
    if stage is not None and not (found and draft.is_said("zero_stage")):
        draft.whole("zero_stage", stage, 0)
    if config is not None and found is None and stage is None:
        draft.leave_open("zero_stage", config, "the file was not given")
    draft.assume("zero_stage", 1, ARGUMENTS)
    offload = settings.find("cpu_optimizer")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)
    draft.whole("context_parallel_size", settings.find("ds_sequence_parallel_size"))
    draft.whole("expert_parallel_size", settings.find("moe_expert_parallel_size"))
    plain = settings.find("no_pipeline_parallel")
    if plain is not None and plain.truth:
        draft.say("pipeline_parallel_size", 1, plain.place)
    if settings.at("micro_batch_size") is not None and not draft.is_said("global_batch_size"):
        draft.assume("gradient_accumulation_steps", 1, ARGUMENTS)
    for field, value in (
        ("precision", "fp32"),
        ("recompute", "none"),
        ("optimizer", "adamw"),
        ("adapter", "none"),
    ):
        draft.assume(field, value, ARGUMENTS)


STYLE = Style(
    name="megatron-deepspeed",
    label="Megatron-DeepSpeed",
    read=read,
    keys=words(
        "deepspeed_config zero_stage deepspeed_activation_checkpointing ds_sequence_parallel_size"
    ),
    fewest=1,
    evidence=ARGUMENTS,
)
