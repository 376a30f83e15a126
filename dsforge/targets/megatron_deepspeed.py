"""Megatron-DeepSpeed: arguments of its pretrain_gpt.py, a ds_config, and the script."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON
from dsforge.render.job import weights
from dsforge.render.megatron import ArgsContext, Argument
from dsforge.specs import ModelSpec
from dsforge.targets.hugging_face import DS_CONFIG
from dsforge.targets.run import Run, TextContext, beyond, ds_config, run_of
from dsforge.targets.target import Target, TargetFile, Unsaid

NAME = "megatron-deepspeed"


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """Arguments line by line, the ds_config, and what starts the ranks."""
    run = run_of(plan)
    arguments = (*_model(plan.model, run), *_layout(run), *_batch(run), *_optimizer(run))
    return (
        TargetFile("args.txt", ArgsContext(arguments)),
        TargetFile(DS_CONFIG, TextContext(ds_config(plan, optimizer=False))),
        run.started(needs_steps=run.job.steps is None),
    )


def _model(model: ModelSpec, run: Run) -> Iterator[Argument]:
    length = run.job.sequence_length
    yield Argument("--num-layers", str(model.layers))
    yield Argument("--hidden-size", str(model.hidden_size))
    yield Argument("--ffn-hidden-size", str(model.ffn_hidden_size))
    yield Argument("--num-attention-heads", str(model.attention_heads))
    yield Argument("--num-key-value-heads", str(model.kv_heads))
    yield Argument("--seq-length", str(length))
    yield Argument("--max-position-embeddings", str(max(length, model.max_position_embeddings)))
    yield Argument("--normalization", model.norm)
    yield Argument("--layernorm-epsilon", f"{model.norm_epsilon:g}")
    if model.position == "rope":
        yield Argument("--use-rotary-position-embeddings")
        yield Argument("--rotary-position-embeddings-theta", str(round(model.rope_theta)))
    if model.gated_mlp:
        yield Argument("--swiglu")
    if not model.mlp_bias:
        yield Argument("--disable-bias-linear")
    if not model.tied_embeddings:
        yield Argument("--untie-embeddings-and-output-weights")
    yield Argument("--attention-dropout", "0")
    yield Argument("--hidden-dropout", "0")
    yield Argument("--use-flash-attn-v2")
    tokenizer = weights(model)
    if tokenizer is not None:
        yield Argument("--tokenizer-type", "HFTokenizer")
        yield Argument("--tokenizer-model", tokenizer)


def _layout(run: Run) -> Iterator[Argument]:
    layout, setup = run.strategy.layout, run.setup
    yield Argument("--tensor-model-parallel-size", str(layout.tensor_parallel_size))
    yield Argument("--pipeline-model-parallel-size", str(layout.pipeline_parallel_size))
    if layout.pipeline_parallel_size == 1:
        yield Argument("--no-pipeline-parallel")
    if layout.context_parallel_size > 1:
        yield Argument("--ds-sequence-parallel-size", str(layout.context_parallel_size))
    yield Argument("--zero-stage", str(setup.zero_stage))
    if setup.offload_optimizer == "cpu":
        yield Argument("--cpu-optimizer")
    if setup.recompute == "full":
        yield Argument("--checkpoint-activations")
        yield Argument("--deepspeed-activation-checkpointing")


def _batch(run: Run) -> Iterator[Argument]:
    yield Argument("--micro-batch-size", str(run.strategy.micro_batch_size))
    yield Argument("--global-batch-size", str(run.strategy.global_batch_size))
    if run.job.steps is not None:
        yield Argument("--train-iters", str(run.job.steps))
    if run.setup.precision in ("bf16", "fp16"):
        yield Argument(f"--{run.setup.precision}")


def _optimizer(run: Run) -> Iterator[Argument]:
    work, job = run.workload, run.job
    lowest = work.learning_rate * job.minimum_learning_rate_ratio
    yield Argument("--optimizer", "sgd" if work.optimizer == "sgd" else "adam")
    yield Argument("--adam-beta1", str(ADAM_BETAS[0]))
    yield Argument("--adam-beta2", str(ADAM_BETAS[1]))
    yield Argument("--adam-eps", str(ADAM_EPSILON))
    yield Argument("--lr", str(work.learning_rate))
    yield Argument("--min-lr", f"{lowest:.6g}")
    yield Argument("--lr-decay-style", "cosine")
    yield Argument("--lr-warmup-iters", str(job.warmup_steps))
    yield Argument("--weight-decay", str(work.weight_decay))
    yield Argument("--clip-grad", str(work.gradient_clipping))
    yield Argument("--seed", str(work.seed))


TARGET = Target(
    name=NAME,
    label="Megatron-DeepSpeed",
    kind="trainer",
    summary="arguments of pretrain_gpt.py, a ds_config and a script",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    unsaid=Unsaid(("model",), "the file has the sizes of its layers, and no name"),
    source="Megatron-DeepSpeed megatron/arguments.py, parse_args",
    proof="published schema",
    proved_by="tests/targets/test_trainer_fields.py: flags of megatron/arguments.py",
)
