"""LLaMA-Factory: the YAML of `llamafactory-cli train`, and the file that names the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsforge.plan import Plan
from dsforge.targets.hugging_face import DS_CONFIG, training_arguments
from dsforge.targets.run import (
    Option,
    Run,
    TextContext,
    adapted_modules,
    beyond,
    ds_config,
    from_target,
    run_of,
    saved_modules,
)
from dsforge.targets.target import Target, TargetFile

NAME = "llama-factory"
DATASET = "planned"
TEMPLATES = {"qwen2": "qwen", "qwen3": "qwen3", "mistral": "mistral", "gemma2": "gemma2"}


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """Arguments, data, the ds_config where DeepSpeed shards, and what starts the ranks."""
    run = run_of(plan)
    options = (*_model(run), *_data(run), *_adapters(run), *_arguments(run))
    config = (TargetFile(DS_CONFIG, TextContext(ds_config(plan))),) if run.on_deepspeed else ()
    return (
        TargetFile("train.yaml", run.listed(options)),
        TargetFile("dataset_info.json", run.listed((Option(DATASET, _columns(run)),))),
        *config,
        run.started(),
    )


def _model(run: Run) -> Iterator[Option]:
    yield Option("model_name_or_path", run.job.model)
    yield Option("flash_attn", "disabled" if run.job.attention == "eager" else "sdpa")
    yield Option("stage", "pt" if _is_text(run) else "sft")
    yield Option("do_train", value=True)
    yield Option("finetuning_type", "full" if run.lora is None else "lora")


def _is_text(run: Run) -> bool:
    """Whether rows are plain text, which is the stage of pretraining."""
    return run.job.data.shape in ("auto", "text")


def _data(run: Run) -> Iterator[Option]:
    yield Option("dataset_dir", run.folder)
    yield Option("dataset", DATASET)
    kind = run.plan.model.model_type or "llama"
    yield Option("template", "default" if _is_text(run) else TEMPLATES.get(kind, "llama3"))
    yield Option("cutoff_len", run.job.sequence_length)
    yield Option("packing", value=True)


def _columns(run: Run) -> dict[str, Any]:
    """The entry of dataset_info.json: the file, and what its columns are."""
    columns: dict[str, Any] = {"columns": {"prompt": "text"}}
    if run.job.data.shape == "messages":
        tags = {"role_tag": "role", "content_tag": "content"}
        names = {"user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}
        columns = {
            "formatting": "sharegpt",
            "columns": {"messages": "messages"},
            "tags": {**tags, **names},
        }
    elif run.job.data.shape == "prompt":
        columns = {"columns": {"prompt": "prompt", "response": "completion"}}
    return {"file_name": from_target(run.data), **columns}


def _adapters(run: Run) -> Iterator[Option]:
    lora = run.lora
    if lora is None:
        return
    yield Option("lora_rank", lora.rank)
    yield Option("lora_alpha", round(lora.alpha))
    yield Option("lora_dropout", lora.dropout)
    yield Option("lora_target", "all" if lora.is_on_all else ",".join(adapted_modules(lora)))
    if lora.modules_to_save:
        yield Option("additional_target", ",".join(saved_modules(lora)))
    base = run.workload.base
    if base is not None:
        yield Option("quantization_method", "bnb")
        yield Option("quantization_bit", lora.bits)
    if base in ("nf4", "fp4"):
        yield Option("quantization_type", base)
        yield Option("double_quantization", lora.double_quant)


def _arguments(run: Run) -> Iterator[Option]:
    """TrainingArguments; LLaMA-Factory recomputes unless it is told not to."""
    yield Option("disable_gradient_checkpointing", run.setup.recompute == "none")
    for option in training_arguments(run):
        if option.key != "gradient_checkpointing":
            yield option


TARGET = Target(
    name=NAME,
    label="LLaMA-Factory",
    kind="trainer",
    summary="YAML of `llamafactory-cli train`: full training, LoRA, QLoRA",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="llamafactory hparams/parser.py, get_train_args",
    proof="parsed by its own code",
    proved_by="tests/targets/test_real_parsers.py: parser of llamafactory 0.9.5; without it "
    "tests/targets/test_trainer_fields.py",
)
