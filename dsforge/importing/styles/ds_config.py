"""DeepSpeed: a ds_config, and scripts whose program has no style of its own."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.parts.engine_config import (
    NAMED_FILES,
    say_engine_settings,
    say_named_engine,
)
from dsforge.importing.parts.trainer_keys import say_recompute
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

CONFIG = "deepspeed/runtime/config.py, DeepSpeedConfig"
CHAT = "DeepSpeedExamples applications/DeepSpeed-Chat/training, main.py, --dtype"
_BATCH = (
    *("per_device_training_batch_size", "per_device_mini_train_batch_size"),  # of DeepSpeed-Chat
    *("train_micro_batch_size_per_gpu", "per_device_train_batch_size", "per_gpu_train_batch_size"),
    *("micro_batch_size", "micro_batch_size_per_gpu", "train_batch_size_per_gpu"),
)
_OF_BATCH = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")
_CHAT = ("data_split", "per_device_train_batch_size", "per_device_training_batch_size")
_MODELS = ("model_name_or_path", "actor_model_name_or_path", "model_name")


def read(work: Work, settings: Settings) -> None:
    """The config itself."""
    from dsforge.importing.parts.trainer_keys import _nested

    say_engine_settings(work.draft, _nested(settings), settings, CONFIG)
    work.draft.assume("precision", "fp32", CONFIG)


def read_launch(work: Work, settings: Settings) -> None:
    """Arguments of a program that hands `--deepspeed_config` to DeepSpeed, whose file decides."""
    draft = work.draft
    named = say_named_engine(work, settings, *NAMED_FILES, "deepspeed_config_file")
    draft.say("engine", "deepspeed", named.place if named else CONFIG)
    model = settings.find(*_MODELS)
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    _stage(draft, settings)
    for field, names in (
        ("micro_batch_size", _BATCH),
        ("gradient_accumulation_steps", ("gradient_accumulation_steps",)),
    ):
        value = settings.find(*names)
        told = sum(map(draft.is_said, _OF_BATCH))  # two of them decide the third
        if not draft.is_said(field) and told < len(_OF_BATCH) - 1:
            draft.whole(field, value)
    _length(draft, settings)
    _precision(draft, settings)
    rank = settings.find("lora_dim", "actor_lora_dim")
    if rank is not None and rank.whole:
        draft.say("adapter", "lora", rank.place)
        draft.whole("lora_rank", rank)
    say_recompute(draft, settings.find("gradient_checkpointing", "actor_gradient_checkpointing"))
    rate = settings.find("learning_rate", "lr", "actor_learning_rate")
    draft.number("learning_rate", rate)


def _stage(draft: Draft, settings: Settings) -> None:
    """DeepSpeed-Chat's flags for stage and offload, of the actor where several models train."""
    stage = settings.find("zero_stage", "actor_zero_stage")
    if stage is not None and stage.whole in (0, 1, 2, 3):
        draft.say("zero_stage", stage.whole, stage.place)
    elif stage is not None and stage.is_open:
        draft.leave_open("zero_stage", stage)
    offload = settings.find("offload", "offload_optimizer")
    if offload is not None and offload.truth and draft.value("zero_stage"):
        draft.say("offload_optimizer", "cpu", offload.place)
        if draft.value("zero_stage") == 3 and settings.at("offload") is not None:  # noqa: PLR2004
            draft.say("offload_parameters", "cpu", offload.place)


def _length(draft: Draft, settings: Settings) -> None:
    """The length of a sample, or those of prompt and answer."""
    draft.whole("sequence_length", settings.find("max_seq_len", "max_seq_length", "seq_length"))
    parts = [settings.find(f"max_{part}_seq_len") for part in ("prompt", "answer")]
    lengths = [part.whole for part in parts if part is not None and part.whole]
    if len(lengths) == len(parts) and parts[0] is not None:
        draft.say("sequence_length", sum(lengths), parts[0].place)


def _precision(draft: Draft, settings: Settings) -> None:
    """`--dtype` of DeepSpeed-Chat, else a switch where no ds_config says it."""
    kind = settings.find("dtype")
    if kind is not None and kind.word in ("fp16", "bf16", "fp32"):
        draft.say("precision", kind.word, kind.place)
    for name in ("bf16", "fp16"):
        switch = settings.find(name)
        if switch is not None and switch.truth and not draft.is_said("precision"):
            draft.say("precision", name, switch.place)
    if is_chat(settings):
        draft.assume("precision", "fp16", CHAT)


def is_chat(settings: Settings) -> bool:
    """Whether flags are those of DeepSpeed-Chat, or of a program that has them from there."""
    if "actor_zero_stage" in settings:
        return True
    switch = settings.at("deepspeed")
    by_switch = switch is not None and switch.truth is True
    return "zero_stage" in settings and (by_switch or any(name in settings for name in _CHAT))


STYLE = Style(
    name="deepspeed",
    label="DeepSpeed",
    read=read,
    keys=words(
        "zero_optimization train_micro_batch_size_per_gpu train_batch_size bf16 fp16 optimizer "
        "gradient_accumulation_steps gradient_clipping steps_per_print wall_clock_breakdown "
        "scheduler activation_checkpointing zero_allow_untested_optimizer"
    ),
    fewest=1,
    evidence=CONFIG,
)
