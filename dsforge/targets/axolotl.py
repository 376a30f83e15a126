"""axolotl: one YAML file for full training, LoRA and QLoRA, on DeepSpeed or FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsforge.plan import Plan
from dsforge.specs import DataShape
from dsforge.targets.hugging_face import DS_CONFIG, OPTIMIZERS, accumulation, fsdp_values
from dsforge.targets.run import (
    Option,
    Run,
    TextContext,
    adam_values,
    adapted_modules,
    beyond,
    ds_config,
    run_of,
    saved_modules,
)
from dsforge.targets.target import Target, TargetFile

NAME = "axolotl"
# axolotl's dataset types of rows with `text`, a conversation, a prompt with its completion.
SHAPES: dict[DataShape, dict[str, Any]] = {
    "auto": {"type": "completion", "field": "text"},
    "text": {"type": "completion", "field": "text"},
    "messages": {"type": "chat_template", "field_messages": "messages"},
    "prompt": {"type": "input_output"},
}


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The YAML, the ds_config where DeepSpeed shards, and what starts the ranks."""
    run = run_of(plan)
    options = (*_model(run), *_data(run), *_adapters(run), *_training(run), *_sharding(run))
    config = (TargetFile(DS_CONFIG, TextContext(ds_config(plan))),) if run.on_deepspeed else ()
    return (TargetFile("axolotl.yaml", run.listed(options)), *config, run.started())


def _model(run: Run) -> Iterator[Option]:
    yield Option("base_model", run.job.model)
    yield Option("attn_implementation", "eager" if run.job.attention == "eager" else "sdpa")
    precision = run.setup.precision
    yield Option("bf16", precision == "bf16")
    yield Option("fp16", precision == "fp16")
    yield Option("tf32", value=False)


def _data(run: Run) -> Iterator[Option]:
    kind = "parquet" if run.data.endswith(".parquet") else "json"
    row = {"path": run.data, "ds_type": kind, **SHAPES[run.job.data.shape]}
    yield Option("datasets", [row])
    yield Option("dataset_prepared_path", "output/prepared")
    yield Option("sequence_len", run.job.sequence_length)
    yield Option("sample_packing", value=True)
    yield Option("pad_to_sequence_len", value=True)
    yield Option("output_dir", run.job.output)


def _adapters(run: Run) -> Iterator[Option]:
    lora = run.lora
    if lora is None:
        return
    yield Option("adapter", run.setup.adapter)
    yield Option("load_in_4bit", run.workload.base in ("nf4", "fp4"))
    yield Option("load_in_8bit", run.workload.base == "int8")
    yield Option("lora_r", lora.rank)
    yield Option("lora_alpha", round(lora.alpha))
    yield Option("lora_dropout", lora.dropout)
    if lora.is_on_all:
        yield Option("lora_target_linear", value=True)
    else:
        yield Option("lora_target_modules", adapted_modules(lora))
    if lora.modules_to_save:
        yield Option("lora_modules_to_save", saved_modules(lora))


def _training(run: Run) -> Iterator[Option]:
    work, job, setup = run.workload, run.job, run.setup
    yield Option("micro_batch_size", setup.micro_batch_size)
    yield Option("gradient_accumulation_steps", setup.gradient_accumulation_steps)
    yield Option("num_epochs", job.epochs)
    if job.steps is not None:
        yield Option("max_steps", job.steps)
    yield Option("optimizer", OPTIMIZERS[work.optimizer])
    yield Option("learning_rate", work.learning_rate)
    yield Option("lr_scheduler", "cosine")
    yield Option("cosine_min_lr_ratio", job.minimum_learning_rate_ratio)
    yield Option("warmup_steps", job.warmup_steps)
    yield Option("weight_decay", work.weight_decay)
    yield from adam_values()
    yield Option("max_grad_norm", work.gradient_clipping)
    yield Option("logging_steps", 1)
    if job.checkpoint_every is not None:
        yield Option("save_steps", job.checkpoint_every)
    yield Option("seed", work.seed)


def _sharding(run: Run) -> Iterator[Option]:
    """The ds_config, or FSDP2 with tensor and context ranks."""
    setup = run.setup
    if run.on_deepspeed:
        yield Option("gradient_checkpointing", setup.recompute != "none")
        if setup.offload_activations:
            yield Option("activation_offloading", True)
        if setup.tiled_mlp:
            yield Option("tiled_mlp", True)
        yield Option("deepspeed", f"{run.folder}/{DS_CONFIG}")
        return
    yield Option("fsdp_version", 2)
    values = fsdp_values(run)
    values.pop("version")
    yield Option("fsdp_config", values)
    yield from accumulation(run)
    layout = run.strategy.layout
    yield Option("dp_shard_size", layout.data_parallel_size)
    yield Option("tensor_parallel_size", setup.tensor_parallel_size)
    yield Option("context_parallel_size", setup.context_parallel_size)


TARGET = Target(
    name=NAME,
    label="axolotl",
    kind="trainer",
    summary="YAML of `axolotl train`: full training, LoRA, QLoRA",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="axolotl utils/schemas/config.py, AxolotlInputConfig",
    proof="parsed by its own code",
    proved_by="tests/targets/test_real_parsers.py: AxolotlInputConfig of axolotl 0.19; "
    "without it tests/targets/test_trainer_fields.py",
)
