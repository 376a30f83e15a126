"""Megatron-LM: flags in launch scripts and argument files, and its YAML of arguments."""

from __future__ import annotations

import re

from dsforge.importing.parts.megatron_keys import ARGUMENTS, say_megatron, say_sharding
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

BLOCKS = ("language_model", "model_parallel")  # yaml_arguments.py


def read(work: Work, settings: Settings) -> None:
    """Megatron's arguments and defaults; data-parallel ranks follow from the world."""
    draft = work.draft
    settings = _at_the_top(settings)
    draft.say("engine", "megatron", ARGUMENTS)
    say_megatron(draft, settings)
    say_sharding(draft, settings)
    if settings.find("micro_batch_size", "batch_size") is not None and not draft.is_said(
        "global_batch_size"
    ):
        draft.assume(
            "gradient_accumulation_steps", 1, ARGUMENTS + ": global batch of one micro batch a rank"
        )
    for field, value in (
        ("precision", "fp32"),
        ("recompute", "none"),
        ("zero_stage", 0),
        ("optimizer", "adamw"),
        ("adapter", "none"),
    ):
        draft.assume(field, value, ARGUMENTS)


def _at_the_top(settings: Settings) -> Settings:
    """The blocks of a `--yaml-cfg` file, whose keys are arguments as those beside them."""
    inner = {key: key.partition(".")[2] for key in settings.keys if key.partition(".")[0] in BLOCKS}
    return settings.renamed({key: name for key, name in inner.items() if name not in settings})


STYLE = Style(
    name="megatron",
    label="Megatron-LM",
    read=read,
    keys=words(
        "num_layers hidden_size num_attention_heads seq_length micro_batch_size global_batch_size "
        "max_position_embeddings tensor_model_parallel_size pipeline_model_parallel_size "
        "train_iters "
        "lr_decay_style lr_decay_iters train_samples ffn_hidden_size use_distributed_optimizer "
        "transformer_impl tokenizer_type"
    ),
    fewest=3,
    programs=re.compile(r"^pretrain_\w+\.py$"),
    evidence=ARGUMENTS,
)
