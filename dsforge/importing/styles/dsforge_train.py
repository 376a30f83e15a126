"""dsforge's own `train.yaml`: the job of `dsforge train`, whose ds_config says the rest."""

from __future__ import annotations

import re

from dsforge.importing.parts.adapters import quantised, say_adapters
from dsforge.importing.parts.engine_config import say_engine_file
from dsforge.importing.parts.trainer_keys import say_recompute, say_spared
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

JOB = "dsforge/job.py, TrainJob"


def read(work: Work, settings: Settings) -> None:
    """Model, length, checkpointing and adapters; sharding and batch stand in the ds_config."""
    draft = work.draft
    model = settings.find("model")
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    draft.whole("sequence_length", settings.find("sequence_length"))
    say_recompute(draft, settings.find("gradient_checkpointing"))
    say_spared(draft, settings)
    lora = settings.below("lora")
    rank = lora.find("rank")
    if rank is not None:
        say_adapters(draft, lora.renamed({"alpha": "lora_alpha"}), rank, base=quantised(lora))
    say_engine_file(work, settings.find("deepspeed_config"))
    for field, value in (("recompute", "none"), ("adapter", "none"), ("precision", "fp32")):
        draft.assume(field, value, JOB)


STYLE = Style(
    name="dsforge",
    label="dsforge",
    read=read,
    keys=words(
        "deepspeed_config on_bad_row batching minimum_learning_rate_ratio hang_after_s "
        "keep_checkpoints random_weights"
    ),
    fewest=3,
    programs=re.compile(r"^dsforge\.train$"),
    evidence=JOB,
)
