"""The question: what the ranks measure, from the sizes that the plan's steps really move. Pure."""

from __future__ import annotations

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.flops import attention_products, mlp_products
from dsforge.estimate.states import loads
from dsforge.estimate.traffic import gradient_size
from dsforge.plan import Plan
from dsforge.probe.messages import Product, Question
from dsforge.specs import ClusterSpec, Collective, Precision
from dsforge.strategy import FULLY_SHARDED
from dsforge.units import MIB

BUDGET_S = 110.0  # of three minutes; a launch takes the better half of the last one
USUAL_BYTES, USUAL_CPU_BYTES = 256 * MIB, 16 * MIB  # where there is no plan
LEAST_BYTES, MOST_BYTES = 64 * 1024, 1024 * MIB
MEMORY_SHARE = 32  # a payload is at most this part of a rank's memory


def usual_question(cluster: ClusterSpec) -> Question:
    """What is worth knowing of a cluster before there is a plan."""
    cpu = cluster.gpu.is_cpu
    size = _bounded(USUAL_CPU_BYTES if cpu else USUAL_BYTES, cluster)
    kinds: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return Question(
        payload_bytes=dict.fromkeys(kinds, size),
        element_bytes=4 if cpu else 2,
        precisions=("fp32", "bf16") if cpu else ("bf16", "fp16", "fp32"),
        products=(),
        disk=cluster.nvme.path if cluster.nvme else None,
        budget_s=BUDGET_S,
    )


def question_of(plan: Plan) -> Question:
    """What the predictor needs for a plan: its payloads, its products, in its precision."""
    cluster, precision = plan.cluster, plan.workload.precision
    usual = usual_question(cluster)
    size = element_bytes(plan.workload)
    sent = gradient_size(plan.workload, plan.strategy)
    others = tuple(p for p in usual.precisions if p != precision)
    first: tuple[Precision, ...] = ("bf16",) if precision == "fp8" else (precision,)
    return usual.model_copy(
        update={
            "payload_bytes": _payloads(plan, sent, size),
            "element_bytes": max(2, sent),
            "precisions": first + tuple(p for p in others if p not in first),
            "products": _products(plan),
        }
    )


def _payloads(plan: Plan, gradient_bytes: int, weight_bytes: int) -> dict[Collective, int]:
    """Bytes that one collective of the plan carries: buckets, layers of ZeRO-3, activations."""
    strategy, model = plan.strategy, plan.model
    carried = loads(model, plan.cluster, plan.workload, strategy)
    held, buckets = max(carried, key=lambda load: load.held.total)[1:3]
    reduced = gradient_bytes * min(buckets.reduce_bucket_size, max(1, held.trainable))
    gathered = weight_bytes * min(buckets.allgather_bucket_size, held.total)
    if strategy.zero_stage == FULLY_SHARDED:
        gathered = weight_bytes * held.total // model.layers
    exchanged = weight_bytes * _tokens(plan) * model.hidden_size
    if model.moe is not None:
        exchanged *= model.moe.experts_per_token
    sizes: dict[Collective, int] = {
        "all_reduce": reduced,
        "all_gather": gathered,
        "reduce_scatter": reduced,
        "all_to_all": exchanged,
    }
    return {kind: _bounded(value, plan.cluster) for kind, value in sizes.items()}


def _bounded(payload_bytes: int, cluster: ClusterSpec) -> int:
    """A payload that is large enough to time and small enough to hold."""
    most = min(MOST_BYTES, cluster.gpu.memory_bytes // MEMORY_SHARE)
    return max(LEAST_BYTES, min(payload_bytes, most))


def _products(plan: Plan) -> tuple[Product, ...]:
    """The matrix products of a dense layer as one rank computes them."""
    tp = plan.strategy.layout.tensor_parallel_size
    found = (*attention_products(plan.model), *mlp_products(plan.model, False))
    return tuple(
        Product(
            rows=_tokens(plan),
            inputs=p.inputs // tp if p.narrow == p.inputs else p.inputs,
            outputs=p.outputs if p.narrow == p.inputs else -(-p.outputs // tp),
        )
        for p in dict.fromkeys(found)
    )


def _tokens(plan: Plan) -> int:
    """Tokens of one micro batch on one rank."""
    cp = plan.strategy.layout.context_parallel_size
    return max(1, plan.strategy.micro_batch_size * plan.workload.sequence_length // cp)
