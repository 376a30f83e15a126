"""DeepSpeed: a ds_config, and scripts whose program has no style of its own."""

from __future__ import annotations

from dsforge.importing.parts.engine_config import (
    say_engine_file,
    say_engine_settings,
)
from dsforge.importing.parts.trainer_keys import say_recompute
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

CONFIG = "deepspeed/runtime/config.py, DeepSpeedConfig"
CHAT = "DeepSpeedExamples applications/DeepSpeed-Chat/training, main.py, --dtype"
_BATCH = (
    *("train_micro_batch_size_per_gpu", "per_device_train_batch_size", "per_gpu_train_batch_size"),
    *("micro_batch_size", "micro_batch_size_per_gpu", "train_batch_size_per_gpu"),
)


def read(work: Work, settings: Settings) -> None:
    """The config itself."""
    from dsforge.importing.parts.trainer_keys import _nested

    say_engine_settings(work.draft, _nested(settings), settings, CONFIG)
    work.draft.assume("precision", "fp32", CONFIG)


def read_launch(work: Work, settings: Settings) -> None:
    """Arguments of a program that hands `--deepspeed_config` to DeepSpeed."""
    draft = work.draft
    value = settings.find("deepspeed_config", "ds_config", "deepspeed_config_file", "deepspeed")
    if value is not None and value.text:
        say_engine_file(work, value)
    draft.say("engine", "deepspeed", value.place if value else CONFIG)
    stage = settings.find("zero_stage")
    if stage is not None and stage.whole in (0, 1, 2, 3):
        draft.say("zero_stage", stage.whole, stage.place)
    offload = settings.find("offload", "offload_optimizer")
    if offload is not None and offload.truth and draft.value("zero_stage"):
        draft.say("offload_optimizer", "cpu", offload.place)
        if draft.value("zero_stage") == 3 and settings.at("offload") is not None:  # noqa: PLR2004
            draft.say("offload_parameters", "cpu", offload.place)
    draft.whole("micro_batch_size", settings.find(*_BATCH))
    draft.whole("gradient_accumulation_steps", settings.find("gradient_accumulation_steps"))
    draft.whole("sequence_length", settings.find("max_seq_len", "max_seq_length", "seq_length"))
    kind = settings.find("dtype")
    if kind is not None and kind.word in ("fp16", "bf16", "fp32"):
        draft.say("precision", kind.word, kind.place)
    if "data_split" in settings or "zero_stage" in settings:
        draft.assume("precision", "fp16", CHAT)
    rank = settings.find("lora_dim")
    if rank is not None and rank.whole:
        draft.say("adapter", "lora", rank.place)
        draft.whole("lora_rank", rank)
    say_recompute(draft, settings.find("gradient_checkpointing"))
    rate = settings.find("learning_rate", "lr")
    draft.number("learning_rate", rate)


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
