"""Seconds that one rank computes: matrix products, attention, memory-bound rest, host time.

Every product is a roofline: its FLOPs at the card's sustained rate, plus its bytes at the memory
bandwidth. A thin product (small micro batch, large tensor parallelism) moves more bytes for each
FLOP, so it falls below the peak without any fitted curve. The rest of a layer (norms, activation,
residuals, rotary embedding) moves bytes, more of them where each small operation is a kernel of its
own. A layer whose kernels end before the host has launched the next ones waits for the host.

Seconds are linear in the tokens of a micro batch, so a layer is kept as a line: the planner prices
many micro batches of one layout.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate import nanotron
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.flops import (
    Product,
    attention_products,
    backward_factor,
    mlp_products,
    score_flops,
)
from dsforge.specs import ClusterSpec, GpuSpec, ModelSpec, Precision, Workload
from dsforge.strategy import FULLY_SHARDED, Execution, Strategy

STEP_SHARE = 0.92  # of the best matrix product that large products of a step reach
FP32_SUM_BYTES = 8.0  # read and write the sum in every micro step
LOGIT_BYTES = [16.0, 36.0, 50.0]
A100_FLOPS = 312e12
FLASH2_FALL = 0.4
DETERMINISTIC = 0.6
POWER_KNEE = 0.7e12  # FLOP/s of bf16 for each watt: above it the card lowers its clocks
POWER_FALL = 0.3  # exponent of that fall
BANDWIDTH_SHARE = 0.8  # of the memory bandwidth
KERNEL_S = 6e-6  # ramp-up and tail of one matrix product
CUDNN_SHARE = 0.6  # of a product's rate that attention of cuDNN reaches
FLASH2_SHARE = 0.65  # and FlashAttention-2 on A100
ATTENTION_BACKWARD = 2.5  # passes: five products for two forward (Dao 2022)
SCORE_BYTES = (13.0, 20.0)  # per score, forward and backward, where attention keeps them (fp16)
UNFUSED_SHARE = 0.5  # of a product's rate: batched products of attention that keeps scores
SELECTIVE_SHARE = 0.5  # of a layer that FSDP's selective checkpointing repeats
QUANTISE_BYTES = 5.0  # per element of a product's operands in fp8: read, write, transposed copy
HOST_S = {
    "torchtune": 0.9e-3,
    "megatron": 0.5e-3,
    "deepspeed": 0.9e-3,
    "nanotron": 2.0e-3,
    "fsdp": 0.9e-3,
}
FETCH_HOOKS = 2  # DeepSpeed's stage 3 runs Python before and after each module: twice the host time


class Line(NamedTuple):
    """Seconds as a line in the tokens of a micro batch on one rank."""

    fixed_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Seconds at so many tokens."""
        return self.fixed_s + tokens * self.token_s


class Compute(NamedTuple):
    """Seconds of one micro batch on one rank, forward, backward and recomputation."""

    tokens: float  # on this rank
    layer_s: float
    moe_layer_s: float
    head_s: float
    host_s: float  # the host's time for one layer


class _Setting(NamedTuple):
    """What a line depends on beside the model."""

    execution: Execution
    rate: float  # FLOP/s of large products
    wide_rate: float  # the same in 16 bits, where products run in 8
    attention_rate: float
    bandwidth: float
    kernel_s: float
    size: int  # bytes of an element
    sequence_length: int
    tp: int
    ep: int
    cut: int  # ranks that share activations outside the products
    backward: float  # passes
    repeated: float  # share of the products computed again
    repeated_scores: float


def peak_flops(gpu: GpuSpec, precision: Precision) -> float:
    """The card's peak in a precision; fp16 and bf16 stand in for each other."""
    peaks = gpu.peak_flops
    fallback = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    return peaks.get(precision, fallback)


def sustained_flops(gpu: GpuSpec, precision: Precision) -> float:
    """The rate of large products over a whole step: the best product, less what power forbids."""
    best = gpu.matmul_efficiency * STEP_SHARE
    if gpu.power_w:
        density = peak_flops(gpu, "bf16") * gpu.matmul_efficiency / gpu.power_w
        best *= min(1.0, (POWER_KNEE / density) ** POWER_FALL)
    return peak_flops(gpu, precision) * best


def _attention_rate(gpu: GpuSpec, execution: Execution, rate: float) -> float:
    """FLOP/s of flash attention: cuDNN's kernels, or FlashAttention-2, written for A100."""
    if execution.trainer == "megatron" and not execution.deterministic:
        return rate * CUDNN_SHARE
    age = min(1.0, A100_FLOPS / peak_flops(gpu, "bf16"))
    return (
        rate * FLASH2_SHARE * age**FLASH2_FALL * (DETERMINISTIC if execution.deterministic else 1)
    )


def compute(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> Compute:
    """Seconds of one micro batch: a dense layer, a MoE layer, the head."""
    setting = _setting(workload, strategy, cluster.gpu)
    samples = strategy.micro_batch_size / strategy.layout.context_parallel_size
    tokens = samples * workload.sequence_length
    dense, sparse, head = _lines(model, setting)
    return Compute(
        tokens=tokens,
        layer_s=dense.at(tokens),
        moe_layer_s=sparse.at(tokens),
        head_s=head.at(tokens),
        host_s=host_s(cluster, strategy, 1 + setting.backward + setting.repeated),
    )


@lru_cache(maxsize=4096)
def _lines(model: ModelSpec, setting: _Setting) -> tuple[Line, Line, Line]:
    """A dense layer, a MoE layer (nothing where there is none) and the head."""
    sparse = _layer(model, setting, moe_layer=True) if model.moe else Line(0.0, 0.0)
    return _layer(model, setting, moe_layer=False), sparse, _head(model, setting)


def host_s(cluster: ClusterSpec, strategy: Strategy, passes: float) -> float:
    """Seconds in which the host launches one layer's kernels, all passes."""
    trainer, layout = strategy.runs_as.trainer, strategy.layout
    if cluster.gpu.is_cpu:
        return 0.0
    seconds = HOST_S[trainer]
    if trainer == "deepspeed" and strategy.zero_stage == FULLY_SHARDED:
        seconds *= FETCH_HOOKS
    elif trainer == "nanotron":
        seconds += nanotron.layer_wait_s(cluster, layout)
    return seconds * passes / 3


def _setting(workload: Workload, strategy: Strategy, gpu: GpuSpec) -> _Setting:
    """What the lines of this workload and strategy depend on."""
    execution, layout = strategy.runs_as, strategy.layout
    repeated, scores = _repeated(strategy)
    wide = sustained_flops(gpu, "bf16")
    rate = wide * peak_flops(gpu, workload.precision) / peak_flops(gpu, "bf16")
    tp = layout.tensor_parallel_size
    return _Setting(
        execution=execution,
        rate=rate,
        wide_rate=min(wide, rate),
        attention_rate=_attention_rate(gpu, execution, min(wide, rate)),
        bandwidth=gpu.memory_bytes_per_s * BANDWIDTH_SHARE,
        kernel_s=0.0 if gpu.is_cpu else KERNEL_S,
        size=element_bytes(workload),
        sequence_length=workload.sequence_length,
        tp=tp,
        ep=layout.expert_parallel_size,
        cut=tp if strategy.sequence_parallel else 1,
        backward=backward_factor(workload),
        repeated=repeated,
        repeated_scores=scores,
    )


def _repeated(strategy: Strategy) -> tuple[float, float]:
    """Shares of a layer's products and of its scores that are computed again in backward.

    Selective checkpointing of Megatron repeats the scores (Korthikanti et al. 2022), that of FSDP
    trainers every second product and not the scores (torchtitan, per-op).
    """
    if strategy.recompute != "selective":
        share = 1.0 if strategy.recompute == "full" else 0.0
        return share, share
    fsdp = strategy.runs_as.trainer in ("fsdp", "torchtune")
    return (SELECTIVE_SHARE, 0.0) if fsdp else (0.0, 1.0)


def _product(product: Product, setting: _Setting, tp: int) -> Line:
    """One pass of a product that `tp` ranks share."""
    whole = product.inputs + product.outputs
    narrow = product.inputs if product.narrow == product.inputs else product.outputs
    sides = whole - narrow + narrow / tp
    bandwidth, rate = setting.bandwidth, setting.rate
    weight = product.elements / tp
    moved = setting.size * sides
    if rate > setting.wide_rate:
        moved += QUANTISE_BYTES * sides
    return Line(
        setting.kernel_s + setting.size * weight / bandwidth,
        2.0 * weight / rate + moved / bandwidth,
    )


def _layer(model: ModelSpec, setting: _Setting, *, moe_layer: bool) -> Line:
    """One layer, forward, backward and recomputation."""
    passes = 1 + setting.backward + setting.repeated
    fixed = slope = 0.0
    for product in (*attention_products(model), *mlp_products(model, moe_layer)):
        line = _product(product, setting, setting.tp)
        fixed += passes * line.fixed_s
        slope += passes * line.token_s
    fixed += _resident_s(model, setting, passes, moe_layer=moe_layer)
    slope += _attention_s(model, setting)
    forward, backward = _moved_elements(model, setting, moe_layer=moe_layer)
    moved = setting.size * (forward * (1 + setting.repeated) + backward)
    slope += moved / setting.bandwidth
    return Line(fixed, slope)


def _resident_s(model: ModelSpec, setting: _Setting, passes: float, *, moe_layer: bool) -> float:
    """Seconds to read the experts that no product counted, and to sum gradients in fp32."""
    products = (*attention_products(model), *mlp_products(model, moe_layer))
    weights = sum(product.elements for product in products)
    idle = 0.0
    if moe_layer and model.moe:
        expert = (
            model.hidden_size * model.moe.expert_ffn_hidden_size * (3 if model.gated_mlp else 2)
        )
        idle = max(0.0, model.moe.experts / setting.ep - model.moe.experts_per_token) * expert
    moved = passes * setting.size * idle
    if setting.execution.gradients == "fp32":
        moved += FP32_SUM_BYTES * (weights + idle)
    return moved / setting.tp / setting.bandwidth


def _attention_s(model: ModelSpec, setting: _Setting) -> float:
    """Seconds of one token in the scores of one layer, all passes."""
    rate = setting.wide_rate
    flops = score_flops(model, setting.sequence_length) / setting.tp
    forward = 1 + setting.repeated_scores
    if setting.execution.attention == "flash":
        return (forward + ATTENTION_BACKWARD) * flops / setting.attention_rate
    scores = model.attention_heads / setting.tp * setting.sequence_length
    moved = (forward * SCORE_BYTES[0] + SCORE_BYTES[1]) * scores * setting.size / 2
    products = (forward + 2) * 2 * flops / (rate * UNFUSED_SHARE)  # the masked half is computed
    return products + moved / setting.bandwidth


def _moved_elements(model: ModelSpec, setting: _Setting, *, moe_layer: bool) -> tuple[float, float]:
    """Elements that the memory-bound rest of a layer moves for one token: forward, backward."""
    execution = setting.execution
    fused = execution.compiled or execution.trainer in ("megatron", "nanotron")
    hidden, tp = model.hidden_size, setting.tp
    norm = (2.0, 3.0) if fused or model.norm != "rmsnorm" else (14.0, 24.0)
    outer = model.norms_per_layer * hidden / setting.cut
    width = _width(model, moe_layer=moe_layer) / tp
    gated = (3.0, 5.0) if fused else (5.0, 8.0)
    activation = gated if model.gated_mlp else (2.0, 3.0)
    rotated = (model.attention_heads + model.kv_heads) * model.head_size / tp
    rotary = ((2.0, 2.0) if fused else (10.0, 12.0)) if model.position == "rope" else (0.0, 0.0)
    return (
        outer * (norm[0] + 3) + width * activation[0] + rotated * rotary[0],
        outer * (norm[1] + 3) + width * activation[1] + rotated * rotary[1],
    )


def _width(model: ModelSpec, *, moe_layer: bool) -> float:
    """Width of the MLP that one token passes."""
    if not moe_layer or model.moe is None:
        return model.ffn_hidden_size
    routed = model.moe.experts_per_token * model.moe.expert_ffn_hidden_size
    return routed + model.moe.shared_ffn_hidden_size


def _head(model: ModelSpec, setting: _Setting) -> Line:
    """Output head and loss, forward and backward."""
    execution = setting.execution
    tp = setting.tp if execution.trainer in ("megatron", "nanotron", "fsdp") else 1
    head = Product(model.hidden_size, model.vocab_size, model.vocab_size)
    passes = 1 + setting.backward
    plain = setting._replace(rate=setting.wide_rate)
    line = _product(head, plain, tp)
    fused = execution.compiled or execution.loss != "plain"
    moved = (
        LOGIT_BYTES[0 if fused else 2 if execution.trainer == "megatron" else 1]
        * model.vocab_size
        / tp
    )
    slope = passes * line.token_s + moved / setting.bandwidth
    return Line(passes * line.fixed_s, slope)


def optimizer_s(gpu: GpuSpec, trainable: float, state_bytes: float) -> float:
    """Seconds of the optimizer on the device: states read and written, gradients, weights."""
    moved = 2 * state_bytes + 8 * trainable
    return moved / (gpu.memory_bytes_per_s * BANDWIDTH_SHARE)
