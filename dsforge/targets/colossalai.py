"""Colossal-AI: a script with the plugin that does what the plan says."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON
from dsforge.targets.run import Option, Run, adapted_modules, beyond, run_of
from dsforge.targets.target import Target, TargetFile, Unsaid
from dsforge.zero_stages import FULLY_SHARDED

NAME = "colossalai"
PLAIN = "TorchDDPPlugin"  # replicas, computing in the type of the weights


class ColossalContext(NamedTuple):
    """Fields of for/colossalai/train.py.j2."""

    plugin: str
    settings: tuple[Option, ...]  # of the plugin
    autocast: bool  # whether the forward pass runs in bf16 although the plugin knows no types
    scaled: bool  # whether the booster scales the loss for fp16
    pipeline: bool
    model: str
    random_weights: bool
    data: str
    data_format: str  # as `datasets` names it
    sequence_length: int
    batch_size: int  # samples of a rank that the script loads at once
    accumulation: int
    recompute: bool
    adam: tuple[float, float, float] | None
    learning_rate: float
    weight_decay: float
    warmup_steps: int
    minimum_ratio: float
    steps: int | None
    epochs: int
    seed: int
    lora: tuple[int, float, float] | None  # rank, alpha, dropout
    lora_modules: tuple[str, ...]


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The script, and what starts the ranks."""
    run = run_of(plan)
    return (TargetFile("train.py", _context(run)), run.started())


def _plugin(run: Run) -> tuple[str, tuple[Option, ...]]:
    """The plugin and its settings: 3D, chunks (Gemini), bucketed ZeRO, or plain replicas."""
    layout, setup = run.strategy.layout, run.setup
    common = (
        Option("precision", setup.precision),
        Option("max_norm", run.workload.gradient_clipping),
    )
    moved = setup.offload_optimizer == "cpu"
    if layout.model_ranks > 1:
        return "HybridParallelPlugin", (*_split(run), *common, Option("cpu_offload", moved))
    if setup.zero_stage == FULLY_SHARDED:
        shares = (
            Option("placement_policy", "static"),
            Option("shard_param_frac", 1.0),
            Option("offload_optim_frac", float(moved)),
            Option("offload_param_frac", float(setup.offload_parameters == "cpu")),
            Option("enable_gradient_accumulation", run.strategy.gradient_accumulation_steps > 1),
        )
        return "GeminiPlugin", (*common, *shares)
    if setup.zero_stage:
        stage = Option("stage", setup.zero_stage)
        return "LowLevelZeroPlugin", (stage, *common, Option("cpu_offload", moved))
    return PLAIN, ()


def _split(run: Run) -> tuple[Option, ...]:
    """Sizes and micro batches of HybridParallelPlugin."""
    layout, setup = run.strategy.layout, run.setup
    stages = layout.pipeline_parallel_size
    micro = (Option("microbatch_size", run.strategy.micro_batch_size),) if stages > 1 else ()
    return (
        Option("tp_size", layout.tensor_parallel_size),
        Option("pp_size", stages),
        Option("zero_stage", setup.zero_stage),
        *micro,
    )


def _context(run: Run) -> ColossalContext:
    work, job, lora = run.workload, run.job, run.lora
    plugin, settings = _plugin(run)
    pipeline = run.strategy.layout.pipeline_parallel_size > 1
    micro, steps = run.strategy.micro_batch_size, run.strategy.gradient_accumulation_steps
    return ColossalContext(
        plugin=plugin,
        autocast=plugin == PLAIN and run.setup.precision == "bf16",
        scaled=plugin == PLAIN and run.setup.precision == "fp16",
        settings=settings,
        pipeline=pipeline,
        model=job.model,
        random_weights=job.random_weights,
        data=run.data,
        data_format=run.data_format,
        sequence_length=job.sequence_length,
        batch_size=micro * steps if pipeline else micro,
        accumulation=1 if pipeline else steps,
        recompute=run.setup.recompute != "none",
        adam=(*ADAM_BETAS, ADAM_EPSILON) if work.optimizer == "adamw" else None,
        learning_rate=work.learning_rate,
        weight_decay=work.weight_decay,
        warmup_steps=job.warmup_steps,
        minimum_ratio=job.minimum_learning_rate_ratio,
        steps=job.steps,
        epochs=max(1, round(job.epochs)),
        seed=work.seed,
        lora=None if lora is None else (lora.rank, lora.alpha, lora.dropout),
        lora_modules=() if lora is None else adapted_modules(lora),
    )


TARGET = Target(
    name=NAME,
    label="Colossal-AI",
    kind="trainer",
    summary="script with GeminiPlugin, LowLevelZeroPlugin or HybridParallelPlugin",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    unsaid=Unsaid(("engine",), "Colossal-AI trains by itself; dsforge prices it as DeepSpeed"),
    source="colossalai booster/plugin",
    proof="parsed by its own code",
    proved_by="tests/targets/test_real_parsers.py: plugins of colossalai 0.5",
)
