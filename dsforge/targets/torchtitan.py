"""torchtitan: a config function, and the same as the TOML of releases up to 0.2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsforge.execution import Recompute
from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON
from dsforge.targets.run import Option, Run, beyond, run_of
from dsforge.targets.target import Target, TargetFile
from dsforge.zero_stages import FULLY_SHARDED

NAME = "torchtitan"


class Flavor(NamedTuple):
    """A model of torchtitan: its module, and the config function of that size."""

    module: str
    config: str
    size: str  # `model.flavor` of older releases


# By kind, layers and hidden size (torchtitan 0.3, models/*/config_registry.py).
FLAVORS: dict[tuple[str, int, int], Flavor] = {
    ("llama", 32, 4096): Flavor("llama3", "llama3_8b", "8B"),
    ("llama", 80, 8192): Flavor("llama3", "llama3_70b", "70B"),
    ("llama", 126, 16384): Flavor("llama3", "llama3_405b", "405B"),
    ("qwen3", 28, 1024): Flavor("qwen3", "qwen3_0_6b", "0.6B"),
    ("qwen3", 28, 2048): Flavor("qwen3", "qwen3_1_7b", "1.7B"),
    ("qwen3", 40, 5120): Flavor("qwen3", "qwen3_14b", "14B"),
    ("qwen3", 64, 5120): Flavor("qwen3", "qwen3_32b", "32B"),
    ("qwen3_moe", 48, 2048): Flavor("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    ("deepseek_v3", 27, 2048): Flavor("deepseek_v3", "deepseek_v3_16b", "16B"),
    ("deepseek_v3", 61, 7168): Flavor("deepseek_v3", "deepseek_v3_671b", "671B"),
}
LLAMA_3_WORDS = 128_256  # its vocabulary; Llama 2 has the same shapes
SAVED_EVERY = 500  # steps, as torchtitan's own `checkpoint.interval` has it
UNKNOWN = Flavor("MODULE", "CONFIG", "FLAVOR")


class TitanContext(NamedTuple):
    """Fields of the templates of torchtitan: settings by their sections."""

    module: str
    config: str
    flavor: str
    known: bool  # whether torchtitan has a model of this size
    model: str
    data: str | None
    data_format: str
    placeholder_data: bool
    continues: bool  # from trained weights, not from random ones
    interval: int  # steps between checkpoints
    sections: tuple[tuple[str, tuple[Option, ...]], ...]
    recompute: Recompute
    selective: bool  # recomputation
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    epsilon: float
    warmup_steps: int
    minimum_ratio: float
    pipeline: bool


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """A config function, the TOML of older releases, and what starts the ranks."""
    run = run_of(plan)
    context = _context(run)
    return (
        TargetFile("planned.py", context),
        TargetFile("job.toml", context),
        run.started(needs_steps=run.job.steps is None),
    )


def _context(run: Run) -> TitanContext:
    flavor, work = _flavor(run.plan), run.workload
    return TitanContext(
        module=flavor.module,
        config=flavor.config,
        flavor=flavor.size,
        known=flavor != UNKNOWN,
        model=run.job.model,
        data=run.data if work.data is not None or run.continues else None,
        data_format=run.data_format,
        placeholder_data=work.data is None,
        continues=run.continues,
        interval=run.job.checkpoint_every or SAVED_EVERY,
        sections=(
            ("training", tuple(_training(run))),
            ("parallelism", tuple(_parallelism(run))),
            ("compile", (Option("enable", value=True),)),
            ("debug", (Option("seed", work.seed),)),
        ),
        recompute=run.setup.recompute,
        selective=run.setup.recompute == "selective",
        learning_rate=work.learning_rate,
        weight_decay=work.weight_decay,
        betas=ADAM_BETAS,
        epsilon=ADAM_EPSILON,
        warmup_steps=run.job.warmup_steps,
        minimum_ratio=run.job.minimum_learning_rate_ratio,
        pipeline=run.setup.pipeline_parallel_size > 1,
    )


def _flavor(plan: Plan) -> Flavor:
    """The flavor of the plan's model; placeholders where torchtitan has none of its size."""
    model = plan.model
    if model.model_type in (None, "llama") and model.vocab_size != LLAMA_3_WORDS:
        return UNKNOWN
    return FLAVORS.get((model.model_type or "llama", model.layers, model.hidden_size), UNKNOWN)


def _training(run: Run) -> Iterator[Option]:
    """Batch and precision; pipeline micro batches are parts of the local batch."""
    setup, strategy = run.setup, run.strategy
    local = strategy.micro_batch_size
    if setup.pipeline_parallel_size > 1:
        local *= strategy.gradient_accumulation_steps
    yield Option("local_batch_size", local)
    yield Option("global_batch_size", strategy.global_batch_size)
    yield Option("seq_len", run.job.sequence_length)
    yield Option("max_norm", run.workload.gradient_clipping)
    if run.job.steps is not None:
        yield Option("steps", run.job.steps)
    half = "bfloat16" if setup.precision == "bf16" else "float32"
    yield Option("mixed_precision_param", half)
    yield Option("enable_cpu_offload", setup.offload_parameters == "cpu")


def _parallelism(run: Run) -> Iterator[Option]:
    setup, layout = run.setup, run.strategy.layout
    reshard = "always" if setup.zero_stage == FULLY_SHARDED else "never"
    yield Option("data_parallel_shard_degree", layout.data_parallel_size)
    yield Option("fsdp_reshard_after_forward", reshard)
    yield Option("tensor_parallel_degree", layout.tensor_parallel_size)
    yield Option("pipeline_parallel_degree", layout.pipeline_parallel_size)
    yield Option("context_parallel_degree", layout.context_parallel_size)
    yield Option("expert_parallel_degree", layout.expert_parallel_size)
    if layout.pipeline_parallel_size > 1:
        yield Option("pipeline_parallel_schedule", "1F1B")
        yield Option("pipeline_parallel_microbatch_size", run.strategy.micro_batch_size)


TARGET = Target(
    name=NAME,
    label="torchtitan",
    kind="trainer",
    summary="config function of torchtitan, and a TOML file for releases up to 0.2",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="torchtitan config/manager.py, ConfigManager; config/configs.py",
    proof="parsed by its own code",
    proved_by="tests/targets/test_real_parsers.py: ConfigManager of torchtitan 0.3; job.toml "
    "for older releases is only well-formed",
)
