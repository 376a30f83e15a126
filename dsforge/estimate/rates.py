"""The rates that a card holds over a whole training step, below what its data sheet says.

The best matrix product that anybody found by searching shapes (`matmul_efficiency`, stas00,
ml-engineering) is run alone and briefly. Over a step the card heats up: where it has many FLOP/s
for each watt, it lowers its clocks. Attention runs at a share of that rate; FlashAttention-2 was
written for A100 and uses less of the cards that came after it.

Each constant of `rates`, `layer_time`, `traffic` and `comm` that is not counted was fitted once,
over all published rows of trust A and B together, sources weighing the same
(`benchmarks/published/`). What tells most about each: power, A100 (rows bs-tr11, mlm, internlm)
against H100 (dgxc, foundry), H100 at 500 W (titan) and B200 to GB300 (simumax, mbridge); attention,
simumax and dgxc for cuDNN, foundry and titan for FlashAttention-2, mcore-gv for determinism;
logits, vocabpar and nano-pb; unfused kernels, titan and torchtune with and without torch.compile;
overlap, dgxc and internlm over 8 to 2304 accelerators. Fitted without one source, the errors on it
stay about as large.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.engines import BY_NAME
from dsforge.specs import GpuSpec, Precision
from dsforge.strategy import Execution
from dsforge.traced import Constant, minimum, named

FITTED = "estimate/rates.py: fitted over all published rows"
SDPA = "estimate/rates.py: training with and without a mask (transformers issue #30461)"
STEP_SHARE = Constant(
    0.926, "step_share", "share", f"{FITTED}; of the best product, reached by a step's large ones"
)
# Best bf16 FLOP/s for each watt up to which clocks hold (A100 0.68e12); beyond it they fall with
# that exponent (H100 1.14e12, the same at 500 W 1.59e12, B200 1.75e12).
POWER_KNEE = Constant(0.956e12, "power_knee", "FLOP/s/W", f"{FITTED}; clocks fall beyond it")
POWER_FALL = Constant(0.632, "power_fall", "", f"{FITTED}; exponent of that fall")
BANDWIDTH_SHARE = Constant(0.9, "bandwidth_share", "share", f"{FITTED}; of the memory bandwidth")
KERNEL_S = Constant(
    30e-6, "kernel_s", "s", f"{FITTED}; start and end of a product and of small kernels around it"
)
CUDNN_SHARE = Constant(
    0.801, "attention_share", "share", f"{FITTED}; of a product's rate: cuDNN's fused attention"
)
FLASH2_SHARE = Constant(
    0.462, "flash2_share", "share", f"{FITTED}; of a product's rate: FlashAttention-2 on A100"
)
FLASH2_FALL = Constant(
    0.353, "flash2_fall", "", f"{FITTED}; exponent by which it falls behind on faster cards"
)
# Mistral 7B with and without a mask: 94.8 us a token more at 4,096 tokens, 197 us at 8,192, of both
# halves of the scores in 4.5 passes (transformers issue #30461, A100).
MASKED_SHARE = Constant(
    0.3, "masked_share", "share", f"{SDPA}; of a product's rate: fused attention under a mask"
)
PRODUCTS = "large products, in the precision of the workload"
WIDE = "products that stay in 16 bits"
ATTENTION = "attention that keeps no scores, at a share of a product's rate"
A100_FLOPS = Constant(312e12, "a100_flops", "FLOP/s", "NVIDIA A100: peak in bf16")
DETERMINISTIC_SHARE = Constant(
    0.72, "deterministic_share", "share", f"{FITTED}; where backward must be reproducible"
)


class Rates(NamedTuple):
    """FLOP/s and bytes/s that one card holds, by kind of work."""

    products: float  # in the precision of the workload
    wide_products: float  # in 16 bits, where the workload's are 8
    attention: float
    bandwidth: float
    kernel_s: float


def peak_flops(gpu: GpuSpec, precision: Precision) -> float:
    """The card's peak in a precision; fp16 and bf16 stand in for each other."""
    peaks = gpu.peak_flops
    fallback = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    return peaks.get(precision, fallback)


def rates(gpu: GpuSpec, precision: Precision, execution: Execution) -> Rates:
    """The rates of a card in one precision under one software; a CPU core has no kernels."""
    products = named(_products_flops(gpu, precision), "products_flops", "FLOP/s", PRODUCTS)
    wide = _products_flops(gpu, "bf16") if precision == "fp8" else products
    wide = named(wide, "wide_products_flops", "FLOP/s", WIDE)
    attention = wide * _attention_share(peak_flops(gpu, "bf16"), execution)
    return Rates(
        products=products,
        wide_products=wide,
        attention=named(attention, "attention_flops", "FLOP/s", ATTENTION),
        bandwidth=memory_bytes_per_s(gpu),
        kernel_s=0.0 if gpu.is_cpu else KERNEL_S,
    )


def memory_bytes_per_s(gpu: GpuSpec) -> float:
    """Memory bandwidth that a step reaches: of a cluster card, else a share of the rating."""
    if gpu.measured is not None and gpu.measured.memory_bytes_per_s is not None:
        return gpu.measured.memory_bytes_per_s
    return named(gpu.memory_bytes_per_s * BANDWIDTH_SHARE, "memory_rate", "bytes/s")


def _products_flops(gpu: GpuSpec, precision: Precision) -> float:
    """FLOP/s of large products: a share of a cluster card's best, else of the peak."""
    if gpu.measured is not None and precision in gpu.measured.flops:
        return gpu.measured.flops[precision] * STEP_SHARE
    return _sustained_share(gpu) * peak_flops(gpu, precision)


def _sustained_share(gpu: GpuSpec) -> float:
    """Share of the peak that large products hold over a step."""
    share = gpu.matmul_efficiency * STEP_SHARE
    if gpu.power_w is None:
        return named(share, "sustained_share", "share")
    density = peak_flops(gpu, "bf16") * gpu.matmul_efficiency / gpu.power_w
    density = named(density, "flops_per_watt", "FLOP/s/W", "clocks fall beyond the knee")
    if density > POWER_KNEE:
        fall: float = (POWER_KNEE / density) ** POWER_FALL
        share *= fall
    return named(share, "sustained_share", "share")


def _attention_share(peak: float, execution: Execution) -> float:
    """Share of a product's rate that flash attention reaches."""
    if execution.attention == "masked":
        return MASKED_SHARE
    fused_by_cudnn = BY_NAME[execution.trainer].flash_kernels == "cudnn"
    if fused_by_cudnn and not execution.deterministic:
        return CUDNN_SHARE
    fall: float = minimum(1.0, A100_FLOPS / peak) ** FLASH2_FALL
    share = FLASH2_SHARE * fall
    share = share * DETERMINISTIC_SHARE if execution.deterministic else share
    return named(share, "attention_share", "share")
