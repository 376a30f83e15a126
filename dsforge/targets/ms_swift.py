"""ms-swift: the YAML of `swift sft`, or of `megatron sft`."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.plan import Plan
from dsforge.targets.hugging_face import DS_CONFIG, training_arguments
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

NAME = "ms-swift"
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The YAML of one of both commands, the ds_config, and what starts the ranks."""
    run = run_of(plan)
    own = _megatron(run) if _on_megatron(run) else _transformers(run)
    options = (*_model(run), *_adapters(run), *own)
    config = (TargetFile(DS_CONFIG, TextContext(ds_config(plan))),) if run.on_deepspeed else ()
    name = "megatron_sft.yaml" if _on_megatron(run) else "sft.yaml"
    start = run.started()
    if _on_megatron(run):
        start = start._replace(template="run_megatron.sh")
    return (TargetFile(name, run.listed(options)), *config, start)


def _on_megatron(run: Run) -> bool:
    """Whether Megatron's core trains."""
    return run.strategy.back_end == "megatron"


def _model(run: Run) -> Iterator[Option]:
    yield Option("model", run.job.model)
    yield Option("torch_dtype", TYPES[run.setup.precision or "bf16"])
    yield Option("dataset", [run.data])
    yield Option("max_length", run.job.sequence_length)
    yield Option("packing", value=True)
    yield Option("attn_impl", "eager" if run.job.attention == "eager" else "flash_attn")


def _adapters(run: Run) -> Iterator[Option]:
    lora = run.lora
    yield Option("tuner_type", "full" if lora is None else "lora")
    if lora is None:
        return
    yield Option("lora_rank", lora.rank)
    yield Option("lora_alpha", lora.alpha)
    yield Option("lora_dropout", lora.dropout)
    yield Option("target_modules", ["all-linear"] if lora.is_on_all else adapted_modules(lora))
    if lora.modules_to_save:
        yield Option("modules_to_save", saved_modules(lora))
    base = run.workload.base
    if base is not None:
        yield Option("quant_method", "bnb")
        yield Option("quant_bits", lora.bits)
    if base in ("nf4", "fp4"):
        yield Option("bnb_4bit_quant_type", base)
        yield Option("bnb_4bit_use_double_quant", lora.double_quant)


def _transformers(run: Run) -> Iterator[Option]:
    """TrainingArguments; ms-swift takes FSDP's settings in one value, and lists of reports."""
    yield Option("sequence_parallel_size", run.setup.context_parallel_size)
    for option in training_arguments(run):
        if option.key == "fsdp":
            continue
        if option.key == "fsdp_config":
            yield Option("fsdp", {"fsdp": "full_shard auto_wrap", "fsdp_config": option.value})
        elif option.key == "report_to":
            yield Option("report_to", ["none"])
        else:
            yield option


def _megatron(run: Run) -> Iterator[Option]:
    """Layout, batch and optimizer in the words of Megatron's core."""
    setup, work, layout = run.setup, run.workload, run.strategy.layout
    lowest = work.learning_rate * run.job.minimum_learning_rate_ratio
    yield Option("tensor_model_parallel_size", layout.tensor_parallel_size)
    yield Option("pipeline_model_parallel_size", layout.pipeline_parallel_size)
    yield Option("context_parallel_size", layout.context_parallel_size)
    yield Option("expert_model_parallel_size", layout.expert_parallel_size)
    if setup.virtual_stages > 1:
        yield Option("virtual_pipeline_model_parallel_size", setup.virtual_stages)
    yield Option("sequence_parallel", setup.sequence_parallel)
    yield Option("micro_batch_size", setup.micro_batch_size)
    yield Option("global_batch_size", run.strategy.global_batch_size)
    yield Option("accumulate_allreduce_grads_in_fp32", value=True)
    yield Option("recompute_granularity", setup.recompute)
    if setup.recompute == "full":
        yield Option("recompute_method", "uniform")
        yield Option("recompute_num_layers", 1)
    if run.job.steps is None:
        yield Option("num_train_epochs", max(1, round(run.job.epochs)))
    else:
        yield Option("train_iters", run.job.steps)
    yield Option("optimizer", "sgd" if work.optimizer == "sgd" else "adam")
    yield Option("lr", work.learning_rate)
    yield Option("min_lr", float(f"{lowest:.6g}"))
    yield Option("lr_warmup_iters", run.job.warmup_steps)
    yield Option("weight_decay", work.weight_decay)
    yield Option("clip_grad", work.gradient_clipping)
    beta1, beta2, epsilon = adam_values()
    yield from (beta1, beta2, Option("adam_eps", epsilon.value))
    yield Option("output_dir", run.job.output)
    yield Option("seed", work.seed)


TARGET = Target(
    name=NAME,
    label="ms-swift",
    kind="trainer",
    summary="YAML of `swift sft` or `megatron sft`",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="ms-swift cli/main.py, SftArguments; megatron/arguments, MegatronSftArguments",
    proof="parsed by its own code",
    proved_by="tests/targets/test_real_parsers.py: YAML reader and SftArguments of ms-swift "
    "4.6; on Megatron only names are compared",
)
