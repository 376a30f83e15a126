"""Megatron-Bridge (NeMo): a script with the config of its `pretrain` or `finetune`."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.specs import AdapterTarget, LoraSpec
from dsforge.targets.run import Option, Run, beyond, run_of
from dsforge.targets.target import Target, TargetFile

NAME = "megatron-bridge"
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
}
# Megatron's matrices: those of query, key and value are one, and so are gate and up.
MATRICES: dict[AdapterTarget, str] = {
    "query": "linear_qkv",
    "key": "linear_qkv",
    "value": "linear_qkv",
    "output": "linear_proj",
    "gate": "linear_fc1",
    "up": "linear_fc1",
    "down": "linear_fc2",
}


class BridgeContext(NamedTuple):
    """Fields of for/megatron-bridge/train.py.j2."""

    model: str
    random_weights: bool
    tuned: bool  # from trained weights, on rows of a file
    sections: dict[str, tuple[Option, ...]]  # of ConfigContainer
    sequence_length: int
    precision: str
    learning_rate: float
    lowest_rate: float
    warmup_steps: int
    lora: tuple[Option, ...]
    seed: int


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The script, and what starts the ranks."""
    run = run_of(plan)
    return (
        TargetFile("train.py", _context(run)),
        run.started(needs_steps=run.job.steps is None),
    )


def _context(run: Run) -> BridgeContext:
    work, job = run.workload, run.job
    lowest = work.learning_rate * job.minimum_learning_rate_ratio
    return BridgeContext(
        model=job.model,
        random_weights=job.random_weights,
        tuned=run.lora is not None or work.data is not None,
        sections={"model": _model(run), "train": _train(run), "optimizer": _optimizer(run)},
        sequence_length=job.sequence_length,
        precision=PRECISIONS[run.setup.precision or "bf16"],
        learning_rate=work.learning_rate,
        lowest_rate=float(f"{lowest:.6g}"),
        warmup_steps=job.warmup_steps,
        lora=() if run.lora is None else _adapters(run.lora),
        seed=work.seed,
    )


def _model(run: Run) -> tuple[Option, ...]:
    """Layout and recomputation: fields of megatron-core's TransformerConfig."""
    layout, setup = run.strategy.layout, run.setup
    virtual = Option("virtual_pipeline_model_parallel_size", setup.virtual_stages)
    whole = (Option("recompute_method", "uniform"), Option("recompute_num_layers", 1))
    granularity = None if setup.recompute == "none" else setup.recompute
    return (
        Option("seq_length", run.job.sequence_length),
        Option("tensor_model_parallel_size", layout.tensor_parallel_size),
        Option("pipeline_model_parallel_size", layout.pipeline_parallel_size),
        *((virtual,) if setup.virtual_stages > 1 else ()),
        Option("context_parallel_size", layout.context_parallel_size),
        Option("expert_model_parallel_size", layout.expert_parallel_size),
        Option("sequence_parallel", setup.sequence_parallel),
        Option("recompute_granularity", granularity),
        *(whole if setup.recompute == "full" else ()),
    )


def _train(run: Run) -> tuple[Option, ...]:
    steps = run.job.steps
    return (
        Option("micro_batch_size", run.strategy.micro_batch_size),
        Option("global_batch_size", run.strategy.global_batch_size),
        *(() if steps is None else (Option("train_iters", steps),)),
    )


def _optimizer(run: Run) -> tuple[Option, ...]:
    work, sharded = run.workload, (run.setup.zero_stage or 0) > 0
    return (
        Option("weight_decay", work.weight_decay),
        Option("clip_grad", work.gradient_clipping),
        Option("use_distributed_optimizer", sharded),
    )


def _adapters(lora: LoraSpec) -> tuple[Option, ...]:
    return (
        Option("target_modules", list(dict.fromkeys(MATRICES[name] for name in lora.targets))),
        Option("dim", lora.rank),
        Option("alpha", round(lora.alpha)),
        Option("dropout", lora.dropout),
    )


TARGET = Target(
    name=NAME,
    label="Megatron-Bridge (NeMo)",
    kind="trainer",
    summary="script with the ConfigContainer of pretrain or finetune",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="megatron-bridge training/config.py, ConfigContainer",
    proof="published schema",
    proved_by="tests/targets/test_trainer_fields.py: parameters of megatron-bridge 0.3.1",
)
