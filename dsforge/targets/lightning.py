"""PyTorch Lightning: a script with the strategy that shards: DeepSpeed, FSDP, or data x tensor."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON
from dsforge.targets.hugging_face import DS_CONFIG
from dsforge.targets.run import Run, TextContext, adapted_modules, beyond, ds_config, run_of
from dsforge.targets.target import Target, TargetFile
from dsforge.zero_stages import FULLY_SHARDED

NAME = "lightning"
HALVES = {"bf16": "bfloat16", "fp16": "float16"}
PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true"}
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "adafactor": "Adafactor"}


class LightningContext(NamedTuple):
    """Fields of for/lightning/train.py.j2."""

    model: str
    random_weights: bool
    data: str
    data_format: str  # as `datasets` names it
    sequence_length: int
    micro_batch_size: int
    accumulation: int
    nodes: int
    devices: int
    on_cpu: bool
    precision: str  # of the Trainer; under FSDP2 its own policy has the types
    half: str | None  # type of torch in which FSDP2 computes; none: float32
    on_deepspeed: bool
    config: str
    full_shard: bool
    offload: bool
    recompute: bool
    data_parallel_size: int
    tensor_parallel_size: int
    shards_matrices: bool  # tensor parallelism, which is without DeepSpeed
    optimizer: str
    adam: tuple[float, float, float] | None
    learning_rate: float
    weight_decay: float
    clip: float
    warmup_steps: int
    minimum_ratio: float
    steps: int | None
    epochs: int
    seed: int
    output: str
    lora: tuple[int, float, float] | None  # rank, alpha, dropout
    lora_modules: tuple[str, ...]  # none: all linear ones


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The script, the ds_config where DeepSpeed shards, and what starts the ranks."""
    run = run_of(plan)
    text = ds_config(plan, optimizer=False)
    config = (TargetFile(DS_CONFIG, TextContext(text)),) if run.on_deepspeed else ()
    return (TargetFile("train.py", _context(run)), *config, run.started())


def _context(run: Run) -> LightningContext:
    work, setup, job, lora = run.workload, run.setup, run.job, run.lora
    layout, cluster = run.strategy.layout, run.plan.cluster
    split = not run.on_deepspeed and layout.tensor_parallel_size > 1
    return LightningContext(
        model=job.model,
        random_weights=job.random_weights,
        data=run.data,
        data_format=run.data_format,
        sequence_length=job.sequence_length,
        micro_batch_size=run.strategy.micro_batch_size,
        accumulation=run.strategy.gradient_accumulation_steps,
        nodes=cluster.nodes,
        devices=cluster.gpus_per_node,
        on_cpu=cluster.gpu.is_cpu,
        precision="32-true" if split else PRECISIONS[setup.precision or "bf16"],
        half=HALVES.get(setup.precision or ""),
        on_deepspeed=run.on_deepspeed,
        config=f"{run.folder}/{DS_CONFIG}",
        full_shard=setup.zero_stage == FULLY_SHARDED,
        offload=setup.offload_parameters == "cpu",
        recompute=setup.recompute != "none",
        data_parallel_size=layout.data_parallel_size,
        tensor_parallel_size=layout.tensor_parallel_size,
        shards_matrices=not run.on_deepspeed and layout.tensor_parallel_size > 1,
        optimizer=OPTIMIZERS[work.optimizer],
        adam=(*ADAM_BETAS, ADAM_EPSILON) if work.optimizer == "adamw" else None,
        learning_rate=work.learning_rate,
        weight_decay=work.weight_decay,
        clip=work.gradient_clipping,
        warmup_steps=job.warmup_steps,
        minimum_ratio=job.minimum_learning_rate_ratio,
        steps=job.steps,
        epochs=max(1, round(job.epochs)),
        seed=work.seed,
        output=job.output,
        lora=None if lora is None else (lora.rank, lora.alpha, lora.dropout),
        lora_modules=() if lora is None or lora.is_on_all else adapted_modules(lora),
    )


TARGET = Target(
    name=NAME,
    label="PyTorch Lightning",
    kind="trainer",
    summary="script with DeepSpeedStrategy, FSDPStrategy or ModelParallelStrategy",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="lightning pytorch/strategies: deepspeed.py, fsdp.py, model_parallel.py",
    proof="trains",
    proved_by="tests/launch/test_trainers.py, where Lightning is installed: ModelParallelStrategy "
    "on two CPU ranks; the others need CUDA and are only made (tests/targets/test_real_parsers.py)",
)
