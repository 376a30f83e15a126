"""Seconds that one rank computes: matrix products, memory-bound rest, launch overhead.

A product of T tokens with a weight of narrow side w (after tensor parallelism) reaches
`matmul_efficiency` x T/(T + T0) x w/(w + w0) of the card's peak: tiles and waves fill smoothly as a
product grows. The rest of a layer (norms, activations, residuals, rotary embedding) moves bytes and
reaches the memory bandwidth. Small layers wait for the host to launch kernels.

The constants were fitted together with those of `traffic.py` and `comm.py` on published step times:
BLOOM tuning (tr11), NVIDIA DGX Cloud and Megatron-Bridge recipes, llm-foundry, InternLM, Narayanan
et al. 2021, Korthikanti et al. 2022, SimuMax, torchtitan, vocabulary parallelism; sources weighted
equally, none has a constant of its own. Over all sources of trust A and B the median error is 16 %;
far too optimistic on nanotron's sweep, whose cluster was noisy and which was left out of the fit.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.activations import layer_token_bytes, logit_token_bytes
from dsforge.estimate.flops import (
    Product,
    attention_products,
    backward_factor,
    mlp_products,
    score_flops,
)
from dsforge.specs import GpuSpec, ModelSpec, Precision, Workload
from dsforge.strategy import FULLY_SHARDED, Strategy

HALF_TOKENS = 450.0  # tokens at which a product reaches half its efficiency
HALF_WIDTH = 550.0  # narrow side at which a product reaches half its efficiency
STEP_SHARE = 0.92  # of the best matrix product, over a whole step: clocks fall under load
ATTENTION_SHARE = 0.34  # of a matrix product's rate that flash attention reaches
ATTENTION_BACKWARD = 2.5  # passes
PASSES = 3.1  # each saved byte is moved so often in forward and backward of the memory-bound rest
BANDWIDTH_SHARE = 0.8  # of the memory bandwidth
LAUNCH_S = {"deepspeed": 0.9e-3, "megatron": 0.5e-3}  # host time of one layer, forward + backward
FETCH_HOOKS = 2  # ZeRO stage 3 runs Python before and after each module: twice the host time


class Compute(NamedTuple):
    """Seconds of one micro batch on one rank."""

    layer_s: float
    moe_layer_s: float
    head_s: float


def peak_flops(gpu: GpuSpec, precision: Precision) -> float:
    """The card's peak in a precision; fp16 and bf16 stand in for each other."""
    peaks = gpu.peak_flops
    fallback = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    return peaks.get(precision, fallback)


class _Rank(NamedTuple):
    """One rank's share of one micro batch, and the rates it computes at."""

    tokens: float
    tp: int
    rate: float  # FLOP/s of a large product
    half_tokens: float
    half_width: float
    attention_rate: float
    bandwidth: float
    passes: float  # forward, backward, recomputation, in forward passes


def _products_s(products: tuple[Product, ...], rank: _Rank, tp: int) -> float:
    """Forward seconds of products that `tp` ranks share."""
    fill = rank.tokens / (rank.tokens + rank.half_tokens)
    total = 0.0
    for product in products:
        narrow = product.narrow / tp
        total += product.elements * (narrow + rank.half_width) / narrow
    return 2.0 * rank.tokens * total / (fill * tp * rank.rate)


def _rank(workload: Workload, strategy: Strategy, gpu: GpuSpec) -> _Rank:
    """The share of one rank. A CPU core has no tiles and waves to fill."""
    layout = strategy.layout
    precision: Precision = "bf16" if workload.precision == "fp8" else workload.precision
    recomputed = 1 if strategy.recompute == "full" else 0
    samples = strategy.micro_batch_size / layout.context_parallel_size
    return _Rank(
        tokens=samples * workload.sequence_length,
        tp=layout.tensor_parallel_size,
        rate=peak_flops(gpu, workload.precision) * gpu.matmul_efficiency * STEP_SHARE,
        half_tokens=0.0 if gpu.is_cpu else HALF_TOKENS,
        half_width=0.0 if gpu.is_cpu else HALF_WIDTH,
        attention_rate=peak_flops(gpu, precision) * gpu.matmul_efficiency * ATTENTION_SHARE,
        bandwidth=gpu.memory_bytes_per_s * BANDWIDTH_SHARE,
        passes=1 + backward_factor(workload) + recomputed,
    )


def _layer_s(
    model: ModelSpec, workload: Workload, strategy: Strategy, rank: _Rank, *, moe_layer: bool
) -> float:
    """Seconds of one layer, forward, backward and recomputation, one micro batch.

    Flash attention computes five products backward for two forward: 2.5 passes (Dao 2022).
    """
    products = (*attention_products(model), *mlp_products(model, moe_layer))
    busy = rank.passes * _products_s(products, rank, rank.tp)
    scores = rank.tokens * score_flops(model, workload.sequence_length) / rank.tp
    recomputed = 1 if strategy.recompute == "full" else 0
    busy += (1 + ATTENTION_BACKWARD + recomputed) * scores / rank.attention_rate
    saved = layer_token_bytes(model, workload, strategy, moe_layer=moe_layer)
    busy += PASSES * rank.passes / 3 * rank.tokens * saved / rank.bandwidth
    return busy


def _head_s(model: ModelSpec, workload: Workload, strategy: Strategy, rank: _Rank) -> float:
    """Seconds of output head and loss, forward and backward, one micro batch."""
    tp = rank.tp if strategy.back_end == "megatron" else 1
    head = Product(model.hidden_size, model.vocab_size, model.hidden_size * tp)
    products = _products_s((head,), rank, tp) * (1 + backward_factor(workload))
    moved = 2 * rank.tokens * logit_token_bytes(model, workload, strategy)
    return products + moved / rank.bandwidth


def compute(model: ModelSpec, workload: Workload, strategy: Strategy, gpu: GpuSpec) -> Compute:
    """Seconds of one micro batch: a dense layer, a MoE layer, the head."""
    rank = _rank(workload, strategy, gpu)
    launch = 0.0 if gpu.is_cpu else LAUNCH_S[strategy.back_end] * rank.passes / 3
    launch *= FETCH_HOOKS if strategy.zero_stage == FULLY_SHARDED else 1
    dense = _layer_s(model, workload, strategy, rank, moe_layer=False)
    sparse = _layer_s(model, workload, strategy, rank, moe_layer=True) if model.moe else 0.0
    return Compute(
        layer_s=max(dense, launch),
        moe_layer_s=max(sparse, launch),
        head_s=_head_s(model, workload, strategy, rank),
    )


def optimizer_s(gpu: GpuSpec, trainable: float, state_bytes: float) -> float:
    """Seconds of the optimizer on the device: states read and written, gradients, weights."""
    moved = 2 * state_bytes + 8 * trainable
    return moved / (gpu.memory_bytes_per_s * BANDWIDTH_SHARE)
