"""Seconds that one rank computes: matrix products, memory-bound rest, launch overhead.

A product of T tokens with a weight of narrow side w (after tensor parallelism) reaches
`matmul_efficiency` x T/(T + T0) x w/(w + w0) of the card's peak: tiles and waves fill smoothly as a
product grows. The rest of a layer (norms, activations, residuals, rotary embedding) moves bytes and
reaches the memory bandwidth. Small layers wait for the host to launch kernels.

The constants were fitted on the published step times of trust A and B (sources nano-pb, foundry,
internlm, dgxc, mbridge, mlm-selrec, bs-tr11, titan, simumax, mcore-gv), sources weighted equally.
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
from dsforge.specs import GpuSpec, ModelSpec, Workload
from dsforge.strategy import Strategy

HALF_TOKENS = 450.0  # tokens at which a product reaches half its efficiency
HALF_WIDTH = 550.0  # narrow side at which a product reaches half its efficiency
STEP_SHARE = 0.92  # of the best matrix product, over a whole step: clocks fall under load
ATTENTION_SHARE = 0.34  # of a matrix product's rate that flash attention reaches
PASSES = 3.1  # each saved byte is moved so often in forward and backward of the memory-bound rest
BANDWIDTH_SHARE = 0.8  # of the memory bandwidth
LAUNCH_S = {"deepspeed": 0.9e-3, "megatron": 0.5e-3}  # host time of one layer, forward + backward


class Compute(NamedTuple):
    """Seconds of one micro batch on one rank."""

    layer_s: float
    moe_layer_s: float
    head_s: float
    forward_share: float


def peak_flops(gpu: GpuSpec, workload: Workload) -> float:
    """The card's peak in the workload's precision; fp16 and bf16 stand in for each other."""
    peaks = gpu.peak_flops
    fallback = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    return peaks.get(workload.precision, fallback)


def _products_s(products: tuple[Product, ...], tokens: float, tp: int, rate: float) -> float:
    """Forward seconds of products at a full rate in FLOP/s."""
    fill = tokens / (tokens + HALF_TOKENS)
    total = 0.0
    for product in products:
        narrow = product.narrow / tp
        total += product.elements / (fill * narrow / (narrow + HALF_WIDTH))
    return 2.0 * tokens * total / (tp * rate)


def _layer_s(
    model: ModelSpec, workload: Workload, strategy: Strategy, gpu: GpuSpec, *, moe_layer: bool
) -> float:
    """Seconds of one layer, forward, backward and recomputation, one micro batch."""
    layout = strategy.layout
    tp = layout.tensor_parallel_size
    tokens = strategy.micro_batch_size * workload.sequence_length / layout.context_parallel_size
    rate = peak_flops(gpu, workload) * gpu.matmul_efficiency * STEP_SHARE
    plain_rate = (
        peak_flops(gpu, workload.model_copy(update={"precision": "bf16"}))
        if (workload.precision == "fp8")
        else peak_flops(gpu, workload)
    )
    attention = tokens * score_flops(model, workload.sequence_length) / tp
    attention /= plain_rate * gpu.matmul_efficiency * ATTENTION_SHARE
    forward = _products_s(attention_products(model), tokens, tp, rate)
    forward += _products_s(mlp_products(model, moe_layer), tokens, tp, rate)
    passes = 1 + backward_factor(workload) + (1 if strategy.recompute == "full" else 0)
    moved = tokens * layer_token_bytes(model, workload, strategy, moe_layer=moe_layer)
    moved *= PASSES * passes / 3
    rest = moved / (gpu.memory_bytes_per_s * BANDWIDTH_SHARE)
    attention_passes = 1 + 2.5 + (1 if strategy.recompute == "full" else 0)  # flash: 5 products
    busy = forward * passes + attention * attention_passes + rest
    launch = 0.0 if gpu.is_cpu else LAUNCH_S[strategy.back_end] * passes / 3
    return max(busy, launch)


def _head_s(model: ModelSpec, workload: Workload, strategy: Strategy, gpu: GpuSpec) -> float:
    """Seconds of output head and loss, forward and backward, one micro batch."""
    layout = strategy.layout
    tp = layout.tensor_parallel_size if strategy.back_end == "megatron" else 1
    tokens = strategy.micro_batch_size * workload.sequence_length / layout.context_parallel_size
    rate = peak_flops(gpu, workload) * gpu.matmul_efficiency * STEP_SHARE
    head = Product(model.hidden_size, model.vocab_size, model.hidden_size * tp)
    products = _products_s((head,), tokens, tp, rate) * (1 + backward_factor(workload))
    moved = 2 * tokens * logit_token_bytes(model, workload, strategy)
    return products + moved / (gpu.memory_bytes_per_s * BANDWIDTH_SHARE)


def compute(model: ModelSpec, workload: Workload, strategy: Strategy, gpu: GpuSpec) -> Compute:
    """Seconds of one micro batch: a dense layer, a MoE layer, the head."""
    passes = 1 + backward_factor(workload) + (1 if strategy.recompute == "full" else 0)
    sparse = _layer_s(model, workload, strategy, gpu, moe_layer=True) if model.moe else 0.0
    return Compute(
        layer_s=_layer_s(model, workload, strategy, gpu, moe_layer=False),
        moe_layer_s=sparse,
        head_s=_head_s(model, workload, strategy, gpu),
        forward_share=1 / passes,
    )


def optimizer_s(gpu: GpuSpec, trainable: float, state_bytes: float) -> float:
    """Seconds of the optimizer on the device: states read and written, gradients, weights."""
    moved = 2 * state_bytes + 8 * trainable
    return moved / (gpu.memory_bytes_per_s * BANDWIDTH_SHARE)
