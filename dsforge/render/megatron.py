"""Plan -> arguments of Megatron-LM's pretrain_gpt.py.

Flags are those of megatron/training/arguments.py (2025 and 2026) and of megatron-core 0.16. What
pretrain_gpt.py cannot build never comes here: `constraints/megatron.py` refuses it.
"""

from __future__ import annotations

import re
from itertools import chain, groupby
from typing import NamedTuple

from dsforge.constraints.megatron import NO_ADAPTERS
from dsforge.errors import RenderError
from dsforge.job import TrainJob
from dsforge.layout import layer_split
from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON, MOMENTUM
from dsforge.render.job import WARMUP_FRACTION, train_job
from dsforge.specs import MlaSpec, ModelSpec, MoeSpec, RopeScaling, RouterSpec, Workload
from dsforge.strategy import Strategy

BLACKWELL = re.compile(r"g?b[123]00|rtx-50|rtx-pro-6000", re.IGNORECASE)
AUXILIARY_LOSS = 0.01  # weight of the load-balancing loss: Switch Transformer, section 2.2
SEQUENCE_LOSS = 0.0001  # beside a balance bias: DeepSeek-V3, arXiv 2412.19437, section 4.2
POSITION = {"rope": "rope", "learned": "learned_absolute"}
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}


class Argument(NamedTuple):
    """One line of args.txt: a flag and its value; an empty value is a switch."""

    flag: str
    value: str = ""

    @property
    def line(self) -> str:
        """The line of args.txt."""
        return f"{self.flag} {self.value}".rstrip()


class ArgsContext(NamedTuple):
    """Fields of megatron/args.txt.j2."""

    arguments: tuple[Argument, ...]


def needs_one_connection(plan: Plan, strategy: Strategy) -> bool:
    """Whether Megatron insists on CUDA_DEVICE_MAX_CONNECTIONS=1.

    It does for tensor and context parallelism before Blackwell (arguments.py, `validate_args`).
    """
    layout = strategy.layout
    split = layout.tensor_parallel_size > 1 or layout.context_parallel_size > 1
    return split and not BLACKWELL.match(plan.cluster.gpu.name)


def megatron_arguments(plan: Plan, strategy: Strategy) -> tuple[Argument, ...]:
    """All arguments in a fixed order: shape, parallel sizes, batch, optimizer, precision.

    Raises RenderError for adapters, which `pretrain_gpt.py` does not have.
    """
    model, workload = plan.model, plan.workload
    if workload.method == "lora":
        raise RenderError(NO_ADAPTERS.message, NO_ADAPTERS.hint)
    parts = (
        _shape(model, workload),
        _attention(model),
        () if model.moe is None else _experts(model, model.moe),
        () if model.mla is None else _latent_attention(model.mla),
        _parallel(strategy),
        _uneven_stages(model.layers, strategy.layout.pipeline_parallel_size),
        _batch(strategy, workload),
        _optimizer(workload, train_job(plan, strategy)),
        _precision(workload),
        _recompute(strategy),
    )
    return tuple(chain.from_iterable(parts))


def _switches(*pairs: tuple[bool, str]) -> tuple[Argument, ...]:
    """The flags whose condition holds."""
    return tuple(Argument(flag) for present, flag in pairs if present)


def _shape(model: ModelSpec, workload: Workload) -> tuple[Argument, ...]:
    """Sizes of the model."""
    longest = max(model.max_position_embeddings, workload.sequence_length)
    return (
        Argument("--num-layers", str(model.layers)),
        Argument("--hidden-size", str(model.hidden_size)),
        Argument("--ffn-hidden-size", str(model.ffn_hidden_size)),
        Argument("--seq-length", str(workload.sequence_length)),
        Argument("--max-position-embeddings", str(longest)),
        *_positions(model),
        Argument("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        Argument("--norm-epsilon", f"{model.norm_epsilon:g}"),
        Argument("--hidden-dropout", "0"),
        Argument("--attention-dropout", "0"),
        *_switches(
            (model.gated_mlp, "--swiglu"),
            (not model.mlp_bias, "--disable-bias-linear"),
            (model.qkv_bias and not model.mlp_bias, "--add-qkv-bias"),
            (not model.tied_embeddings, "--untie-embeddings-and-output-weights"),
        ),
    )


def _positions(model: ModelSpec) -> tuple[Argument, ...]:
    """Kind of positions; for rotary ones base, rotated share of a head, and scaling."""
    kind = Argument("--position-embedding-type", POSITION[model.position])
    if model.position != "rope":
        return (kind,)
    base = Argument("--rotary-base", str(round(model.rope_theta)))
    share = Argument("--rotary-percent", str(model.partial_rotary_factor))
    every = Argument("--no-rope-freq", str(model.no_rope_interval))
    return (
        kind,
        base,
        *((share,) if model.mla is None else ()),
        *(_latent_scaling if model.mla is not None else _scaling)(model.rope_scaling),
        *_switches((model.rotary_interleaved and model.mla is None, "--rotary-interleaved")),
        *((every,) if model.no_rope_interval else ()),
    )


def _scaling(scaling: RopeScaling | None) -> tuple[Argument, ...]:
    """Llama 3's scaling, of which Megatron-LM takes the factor; the rules refuse other ones."""
    if scaling is None:
        return ()
    return (
        Argument("--use-rope-scaling"),
        Argument("--rope-scaling-factor", f"{scaling.factor:g}"),
    )


def _latent_scaling(scaling: RopeScaling | None) -> tuple[Argument, ...]:
    """Latent attention has YaRN as its default; the rules refuse what has no flag."""
    if scaling is None:
        return (Argument("--rope-type", "rope"),)
    return (
        Argument("--rope-type", "yarn"),
        Argument("--rotary-scaling-factor", f"{scaling.factor:g}"),
        Argument("--mscale", f"{scaling.mscale:g}"),
        Argument("--mscale-all-dim", f"{scaling.mscale_all_dim:g}"),
    )


def _attention(model: ModelSpec) -> tuple[Argument, ...]:
    """Heads, groups and windows; latent attention has its own widths."""
    heads = [Argument("--num-attention-heads", str(model.attention_heads))]
    if model.mla is None:
        heads.append(Argument("--kv-channels", str(model.head_size)))
        if model.kv_heads != model.attention_heads:
            groups = Argument("--num-query-groups", str(model.kv_heads))
            heads += [Argument("--group-query-attention"), groups]
    if model.sliding_window is not None:
        heads.append(Argument("--window-size", f"({model.sliding_window},0)"))
        if model.sliding_window_pattern is not None:
            heads.append(Argument("--window-attn-skip-freq", str(model.sliding_window_pattern)))
    if model.attention_sinks:
        heads.append(Argument("--softmax-type", "learnable"))
    # DeepSeek's code normalises both latents, which Megatron does under this switch.
    normed = model.qk_norm == "head" or model.mla is not None
    return (*heads, *_switches((normed, "--qk-layernorm")))


def _experts(model: ModelSpec, moe: MoeSpec) -> tuple[Argument, ...]:
    """Mixture of experts, routed without dropping tokens."""
    runs = groupby(int(model.is_moe_layer(layer)) for layer in range(model.layers))
    pattern = "+".join(f"[{value}]*{len(list(run))}" for value, run in runs)
    shared = Argument("--moe-shared-expert-intermediate-size", str(moe.shared_ffn_hidden_size))
    return (
        Argument("--num-experts", str(moe.experts)),
        Argument("--moe-router-topk", str(moe.experts_per_token)),
        Argument("--moe-ffn-hidden-size", str(moe.expert_ffn_hidden_size)),
        Argument("--moe-layer-freq", f"({pattern})"),
        *((shared,) if moe.shared_ffn_hidden_size else ()),
        *_switches((moe.shared_gate, "--moe-shared-expert-gate")),
        *_routing(moe.router),
        *_balancing(moe.router),
        Argument("--moe-token-dispatcher-type", "alltoall"),
        Argument("--moe-grouped-gemm"),
    )


def _balancing(router: RouterSpec) -> tuple[Argument, ...]:
    """What keeps experts equally busy: a bias with a slight loss within a sequence, or a loss."""
    kind, weight = ("aux_loss", AUXILIARY_LOSS)
    if router.balance_bias:
        kind, weight = ("seq_aux_loss", SEQUENCE_LOSS)
    return (
        Argument("--moe-router-load-balancing-type", kind),
        Argument("--moe-aux-loss-coeff", str(weight)),
    )


def _routing(router: RouterSpec) -> tuple[Argument, ...]:
    """How tokens find their experts (megatron-core `topk_routing_with_score_function`).

    With softmax the chosen weights add up to 1 unless it comes before the choice; with sigmoid
    they always do.
    """
    score = Argument("--moe-router-score-function", router.score)
    factor = Argument("--moe-router-topk-scaling-factor", f"{router.scaling_factor:g}")
    groups = (
        Argument("--moe-router-num-groups", str(router.groups)),
        Argument("--moe-router-group-topk", str(router.groups_per_token)),
    )
    return (
        *((score,) if router.score == "sigmoid" else ()),
        *_switches(
            (router.score == "softmax" and not router.normalized, "--moe-router-pre-softmax"),
            (router.balance_bias, "--moe-router-enable-expert-bias"),
        ),
        *((factor,) if router.scaling_factor != 1 else ()),
        *(groups if router.groups > 1 else ()),
    )


def _latent_attention(mla: MlaSpec) -> tuple[Argument, ...]:
    """Multi-head latent attention."""
    query = () if mla.q_rank is None else (Argument("--q-lora-rank", str(mla.q_rank)),)
    return (
        Argument("--multi-latent-attention"),
        *query,
        Argument("--kv-lora-rank", str(mla.kv_rank)),
        Argument("--qk-head-dim", str(mla.nope_head_size)),
        Argument("--qk-pos-emb-head-dim", str(mla.rope_head_size)),
        Argument("--v-head-dim", str(mla.v_head_size)),
    )


def shards_optimizer(strategy: Strategy) -> bool:
    """Whether replicas share the optimizer state: Megatron's distributed optimizer."""
    return strategy.zero_stage > 0 and strategy.layout.shard_ranks > 1


def _parallel(strategy: Strategy) -> tuple[Argument, ...]:
    """Parallel sizes, and what the replicas share."""
    layout = strategy.layout
    virtual = Argument("--num-virtual-stages-per-pipeline-rank", str(strategy.virtual_stages))
    replicas = layout.shard_ranks > 1
    return (
        Argument("--tensor-model-parallel-size", str(layout.tensor_parallel_size)),
        Argument("--pipeline-model-parallel-size", str(layout.pipeline_parallel_size)),
        *((virtual,) if strategy.virtual_stages > 1 else ()),
        Argument("--context-parallel-size", str(layout.context_parallel_size)),
        Argument("--expert-model-parallel-size", str(layout.expert_parallel_size)),
        *_switches(
            (strategy.sequence_parallel, "--sequence-parallel"),
            (shards_optimizer(strategy), "--use-distributed-optimizer"),
            (replicas, "--overlap-grad-reduce"),
            (shards_optimizer(strategy), "--overlap-param-gather"),
        ),
    )


def _uneven_stages(layers: int, stages: int) -> tuple[Argument, ...]:
    """How layers fall on stages where they do not divide evenly."""
    split = layer_split(layers, stages)
    if split is None or split.even:
        return ()
    if split.ends_count:
        switch = "--account-for-{}-in-pipeline-split"
        return tuple(Argument(switch.format(end)) for end in ("embedding", "loss"))
    return (
        Argument("--decoder-first-pipeline-num-layers", str(split.first)),
        Argument("--decoder-last-pipeline-num-layers", str(split.last)),
    )


def _batch(strategy: Strategy, workload: Workload) -> tuple[Argument, ...]:
    """Batch sizes and length of the run; without a token budget the script asks for TRAIN_ITERS."""
    steps = () if workload.steps is None else (Argument("--train-iters", str(workload.steps)),)
    return (
        Argument("--micro-batch-size", str(strategy.micro_batch_size)),
        Argument("--global-batch-size", str(strategy.global_batch_size)),
        *steps,
    )


def _optimizer(workload: Workload, job: TrainJob) -> tuple[Argument, ...]:
    """Optimizer and schedule, the same as in ds_config.json and train.yaml."""
    lowest = workload.learning_rate * job.minimum_learning_rate_ratio
    own = {
        "adamw": (("--adam-beta1", ADAM_BETAS[0]), ("--adam-beta2", ADAM_BETAS[1])),
        "sgd": (("--sgd-momentum", MOMENTUM["sgd"]),),
    }
    return (
        Argument("--optimizer", OPTIMIZERS[workload.optimizer]),
        *(Argument(flag, str(value)) for flag, value in own[workload.optimizer]),
        *((Argument("--adam-eps", str(ADAM_EPSILON)),) if workload.optimizer == "adamw" else ()),
        Argument("--lr", str(workload.learning_rate)),
        Argument("--min-lr", f"{lowest:.6g}"),
        Argument("--lr-decay-style", job.schedule),
        Argument("--lr-warmup-fraction", str(WARMUP_FRACTION)),
        Argument("--weight-decay", str(workload.weight_decay)),
        Argument("--clip-grad", str(workload.gradient_clipping)),
        Argument("--seed", str(workload.seed)),
    )


def _precision(workload: Workload) -> tuple[Argument, ...]:
    """Compute precision; fp8 keeps bf16 outside the matrix products."""
    match workload.precision:
        case "bf16":
            return (Argument("--bf16"),)
        case "fp16":
            return (Argument("--fp16"), Argument("--initial-loss-scale", "65536"))
        case "fp8":
            return (Argument("--bf16"), Argument("--fp8-format", "hybrid"))
        case "fp32":
            return ()


def _recompute(strategy: Strategy) -> tuple[Argument, ...]:
    """Activation checkpointing."""
    match strategy.recompute:
        case "none":
            return ()
        case "selective":
            return (Argument("--recompute-granularity", "selective"),)
        case "full":
            return (
                Argument("--recompute-granularity", "full"),
                Argument("--recompute-method", "uniform"),
                Argument("--recompute-num-layers", "1"),
            )
