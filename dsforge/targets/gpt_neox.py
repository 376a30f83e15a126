"""GPT-NeoX: one YAML file of model, layout, optimizer and ZeRO."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON
from dsforge.render.job import WARMUP_FRACTION, weights
from dsforge.specs import ModelSpec
from dsforge.targets.run import Option, Run, beyond, ds_config, run_of
from dsforge.targets.target import Target, TargetFile, Unsaid

NAME = "gpt-neox"
OPTIMIZERS = {"adamw": "Adam", "sgd": "SGD", "lion": "Lion"}
GATED_PARTS = 3  # NeoX divides `intermediate_size` of a gated MLP by it (model/transformer.py)


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The YAML, and what starts the ranks."""
    run = run_of(plan)
    config = json.loads(ds_config(plan))
    batch = (*_batch(run), *_types(run, config))
    options = (*_model(plan.model, run), *_layout(run, config), *batch, *_optimizer(run))
    return (
        TargetFile("neox.yml", run.listed(options)),
        run.started(needs_steps=run.job.steps is None),
    )


def _model(model: ModelSpec, run: Run) -> Iterator[Option]:
    length = run.job.sequence_length
    yield Option("num_layers", model.layers)
    yield Option("hidden_size", model.hidden_size)
    yield Option("num_attention_heads", model.attention_heads)
    yield Option("num_kv_heads", model.kv_heads)
    parts = GATED_PARTS if model.gated_mlp else 1
    yield Option("intermediate_size", parts * model.ffn_hidden_size)
    yield Option("mlp_multiple_of", 1)
    yield Option("seq_length", length)
    yield Option("max_position_embeddings", max(length, model.max_position_embeddings))
    yield Option("norm", model.norm)
    rms = model.norm == "rmsnorm"
    yield Option("rms_norm_epsilon" if rms else "layernorm_epsilon", model.norm_epsilon)
    yield Option("pos_emb", "rotary" if model.position == "rope" else "learned")
    if model.position == "rope":
        yield Option("rotary_pct", model.partial_rotary_factor)
        yield Option("rotary_emb_base", round(model.rope_theta))
    yield Option("activation", "swiglu" if model.gated_mlp else "gelu")
    yield Option("no_weight_tying", not model.tied_embeddings)
    yield Option("use_bias_in_attn_linear", model.qkv_bias)
    yield Option("use_bias_in_mlp", model.mlp_bias)
    yield Option("gpt_j_residual", value=False)
    yield Option("output_layer_parallelism", "column")
    yield Option("attention_config", [[["flash"], model.layers]])
    yield Option("attention_dropout", 0)
    yield Option("hidden_dropout", 0)
    tokenizer = weights(model)
    yield Option("tokenizer_type", "HFTokenizer")
    yield Option("vocab_file", f"{tokenizer or 'TOKENIZER'}/tokenizer.json")


def _layout(run: Run, config: Mapping[str, Any]) -> Iterator[Option]:
    """Stages from 1 on mean DeepSpeed's pipeline engine, which ZeRO 2 and 3 exclude."""
    layout, setup = run.strategy.layout, run.setup
    stages = layout.pipeline_parallel_size
    yield Option("pipe_parallel_size", stages if stages > 1 else 0)
    yield Option("model_parallel_size", layout.tensor_parallel_size)
    yield Option("zero_optimization", config["zero_optimization"])
    yield Option("checkpoint_activations", setup.recompute == "full")
    if setup.recompute == "full":
        yield Option("checkpoint_num_layers", 1)


def _batch(run: Run) -> Iterator[Option]:
    strategy, job = run.strategy, run.job
    yield Option("train_batch_size", strategy.global_batch_size)
    yield Option("train_micro_batch_size_per_gpu", strategy.micro_batch_size)
    yield Option("gradient_accumulation_steps", strategy.gradient_accumulation_steps)
    if job.steps is not None:
        yield Option("train_iters", job.steps)
        yield Option("lr_decay_iters", job.steps)


def _types(run: Run, config: Mapping[str, Any]) -> Iterator[Option]:
    """Compute precision, and the types of states, sums and messages as the ds_config has them."""
    if run.setup.precision == "bf16":
        yield Option("precision", "bfloat16")
        yield Option("bf16", config["bf16"])
    elif run.setup.precision == "fp16":
        yield Option("fp16", {"enabled": True, "loss_scale": 0})
    for key in ("data_types", "communication_data_type"):
        if key in config:
            yield Option(key, config[key])


def _optimizer(run: Run) -> Iterator[Option]:
    work, job = run.workload, run.job
    values = {"lr": work.learning_rate}
    adam = {"betas": ADAM_BETAS, "eps": ADAM_EPSILON} if work.optimizer == "adamw" else {}
    kind = OPTIMIZERS[work.optimizer]
    yield Option("optimizer", {"type": kind, "params": {**values, **adam}})
    lowest = work.learning_rate * job.minimum_learning_rate_ratio
    yield Option("min_lr", float(f"{lowest:.6g}"))
    yield Option("lr_decay_style", "cosine")
    yield Option("warmup", WARMUP_FRACTION)
    yield Option("weight_decay", work.weight_decay)
    yield Option("gradient_clipping", work.gradient_clipping)
    yield Option("seed", work.seed)
    yield Option("distributed_backend", "nccl")
    yield Option("checkpoint_factor", job.checkpoint_every or 1000)
    yield Option("save", "output/neox")
    yield Option("load", "output/neox")
    yield Option("hostfile", "hostfile")


TARGET = Target(
    name=NAME,
    label="GPT-NeoX",
    kind="trainer",
    summary="YAML of deepy.py train.py",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    unsaid=Unsaid(("model",), "the file has the sizes of its layers, and no name"),
    source="gpt-neox megatron/neox_arguments/arguments.py, NeoXArgs.from_ymls",
    proof="published schema",
    proved_by="tests/targets/test_trainer_fields.py: keys of megatron/neox_arguments",
)
