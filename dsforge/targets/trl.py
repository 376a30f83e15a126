"""TRL: a config of its `sft` script, for full training, LoRA and QLoRA."""

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

NAME = "trl"


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The config, the ds_config where DeepSpeed shards, and what starts the ranks."""
    run = run_of(plan)
    options = (*_model(run), *_data(run), *_adapters(run), *training_arguments(run))
    config = (TargetFile(DS_CONFIG, TextContext(ds_config(plan))),) if run.on_deepspeed else ()
    return (TargetFile("sft.yaml", run.listed(options)), *config, run.started())


def _model(run: Run) -> Iterator[Option]:
    """FSDP trains float32 weights; DeepSpeed keeps its own."""
    in_32_bits = not run.on_deepspeed and run.lora is None
    compute = {"bf16": "bfloat16", "fp16": "float16"}.get(run.setup.precision or "", "float32")
    yield Option("model_name_or_path", run.job.model)
    yield Option("dtype", "float32" if in_32_bits else compute)
    yield Option("attn_implementation", "eager" if run.job.attention == "eager" else "sdpa")


def _data(run: Run) -> Iterator[Option]:
    """Rows of a file, joined to samples of full length."""
    kind = "parquet" if run.data.endswith(".parquet") else "json"
    yield Option("datasets", [{"path": kind, "data_files": run.data}])
    yield Option("max_length", run.job.sequence_length)
    yield Option("packing", value=True)
    yield Option("packing_strategy", "wrapped")
    yield Option("loss_type", "nll")


def _adapters(run: Run) -> Iterator[Option]:
    lora = run.lora
    if lora is None:
        return
    yield Option("use_peft", value=True)
    yield Option("lora_r", lora.rank)
    yield Option("lora_alpha", round(lora.alpha))
    yield Option("lora_dropout", lora.dropout)
    yield Option("lora_target_modules", ["all-linear"] if lora.is_on_all else adapted_modules(lora))
    if lora.modules_to_save:
        yield Option("lora_modules_to_save", saved_modules(lora))
    base = run.workload.base
    if base == "int8":
        yield Option("load_in_8bit", value=True)
    elif base is not None:
        yield Option("load_in_4bit", value=True)
        yield Option("bnb_4bit_quant_type", base)
        yield Option("use_bnb_nested_quant", lora.double_quant)
        compute = "bfloat16" if run.setup.precision == "bf16" else "float16"
        yield Option("bnb_4bit_quant_storage", compute)


TARGET = Target(
    name=NAME,
    label="TRL",
    kind="trainer",
    summary="config of `trl sft`: full training, LoRA, QLoRA",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    proof="trains",
    proved_by="tests/launch/test_trainers.py, where TRL is installed: DeepSpeed and FSDP2 on two "
    "CPU ranks; QLoRA is only parsed (tests/targets/test_real_parsers.py)",
    source="trl scripts/sft.py, TrlParser of SFTConfig and ModelConfig",
)
