"""Hugging Face Trainer: TrainingArguments as JSON, and a script that trains by them."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.plan import Plan
from dsforge.targets.hugging_face import DS_CONFIG, training_arguments
from dsforge.targets.run import (
    Option,
    Run,
    TextContext,
    adapted_modules,
    beyond,
    ds_config,
    run_of,
    saved_modules,
)
from dsforge.targets.target import Target, TargetFile

NAME = "transformers"


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """Arguments, script, the ds_config where DeepSpeed shards, and what starts the ranks."""
    run = run_of(plan)
    options = (*_job(run), *training_arguments(run))
    config = (TargetFile(DS_CONFIG, TextContext(ds_config(plan))),) if run.on_deepspeed else ()
    return (
        TargetFile("training_arguments.json", run.listed(options)),
        TargetFile("train.py", run.listed(())),
        *config,
        run.started(),
    )


def _job(run: Run) -> Iterator[Option]:
    """What the script reads beside TrainingArguments (its class `Job`)."""
    yield Option("model", run.job.model)
    yield Option("random_weights", run.job.random_weights)
    yield Option("data", run.data)
    yield Option("sequence_length", run.job.sequence_length)
    yield Option("attention", "eager" if run.job.attention == "eager" else "sdpa")
    if run.lora is None:
        return
    yield Option("lora_rank", run.lora.rank)
    yield Option("lora_alpha", run.lora.alpha)
    yield Option("lora_dropout", run.lora.dropout)
    modules = ("all-linear",) if run.lora.is_on_all else adapted_modules(run.lora)
    yield Option("lora_modules", modules)
    yield Option("lora_saved", saved_modules(run.lora))
    if run.workload.base is not None:
        yield Option("base", run.workload.base)
        yield Option("double_quant", run.lora.double_quant)


TARGET = Target(
    name=NAME,
    label="Hugging Face Trainer",
    kind="trainer",
    summary="TrainingArguments with DeepSpeed or FSDP, and a training script",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="transformers training_args.py, HfArgumentParser.parse_json_file",
    proof="trains",
    proved_by="tests/launch/test_trainers.py: DeepSpeed and FSDP2 on two CPU ranks, full and "
    "LoRA; QLoRA is only parsed",
)
