"""LitGPT: YAML of `litgpt finetune` and `litgpt pretrain`."""

from __future__ import annotations

import re

from dsforge.importing.parts.adapters import assume_lora, say_adapters
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.styles.lightning import _devices
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "litgpt litgpt/finetune/lora.py, setup"


def read(work: Work, settings: Settings) -> None:
    """Its keys; several devices are FSDP's, one is none's."""
    draft = work.draft
    model = settings.find("checkpoint_dir", "model_name")
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    devices = settings.find("devices")
    _devices(draft, devices)
    draft.whole("nodes", settings.find("num_nodes"))
    draft.assume("nodes", 1, ARGUMENTS)
    if devices is None:
        draft.assume("gpus_per_node", 1, ARGUMENTS)
    total = settings.find("train.global_batch_size")
    draft.whole("global_batch_size", total)
    draft.whole("micro_batch_size", settings.find("train.micro_batch_size"))
    draft.whole("sequence_length", settings.find("train.max_seq_length"))
    say_precision(draft, settings.find("precision"))
    say_optimizer(draft, settings.find("optimizer.class_path", "optimizer"))
    draft.number("learning_rate", settings.find("optimizer.init_args.lr", "train.learning_rate"))
    ranks = (draft.value("gpus_per_node") or 0) * (draft.value("nodes") or 1)
    if ranks > 1:
        draft.say("engine", "fsdp", ARGUMENTS)
        draft.assume("zero_stage", 3, ARGUMENTS)
        draft.assume("recompute", "full", ARGUMENTS)
    elif ranks == 1:
        draft.assume("zero_stage", 0, ARGUMENTS)
    elif devices is not None:
        draft.leave_open("zero_stage", devices, "FSDP with several devices, none with one")
    quantised = settings.find("quantize")
    rank = settings.at("lora_r")
    if rank is not None:
        base = quantised if quantised is not None and quantised.word.startswith("bnb") else None
        say_adapters(draft, settings, rank, base=base)
        assume_lora(draft, 8, 16, ARGUMENTS)
    draft.assume("adapter", "none", ARGUMENTS)
    draft.assume("recompute", "none", ARGUMENTS)
    draft.assume("micro_batch_size", 1, ARGUMENTS)


STYLE = Style(
    name="litgpt",
    label="LitGPT",
    read=read,
    keys=words(
        "checkpoint_dir quantize devices lora_r lora_alpha train eval precision out_dir data "
        "logger_name model_name tokenizer_dir"
    ),
    fewest=5,
    programs=re.compile(r"^(finetune|finetune_lora|finetune_full|pretrain)$|litgpt"),
    takes_files=True,
    evidence=ARGUMENTS,
)
