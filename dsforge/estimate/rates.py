"""The rates that a card holds over a whole training step, below what its data sheet says.

The best matrix product that anybody found by searching shapes (`matmul_efficiency`, stas00,
ml-engineering) is run alone and briefly. Over a step the card heats up: where it has many FLOP/s
for each watt, it lowers its clocks. Attention runs at a share of that rate; FlashAttention-2 was
written for A100 and uses less of the cards that came after it.

Each constant of `rates`, `lines`, `traffic` and `comm` that is not counted was fitted once, over
all published rows of trust A and B together, sources weighing the same (`benchmarks/published/`).
What tells most about each: power, A100 (rows bs-tr11, mlm, internlm) against H100 (dgxc, foundry),
H100 at 500 W (titan) and B200 to GB300 (simumax, mbridge); attention, simumax and dgxc for cuDNN,
foundry and titan for FlashAttention-2, mcore-gv for determinism; logits, vocabpar and nano-pb;
unfused kernels, titan and torchtune with and without torch.compile; overlap, dgxc and internlm over
8 to 2304 accelerators. Fitted without one source, the errors on it stay about as large.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.engines import BY_NAME
from dsforge.specs import GpuSpec, Precision
from dsforge.strategy import Execution

STEP_SHARE = 0.926  # of the best product that large products of a step reach
POWER_KNEE = 0.956e12  # best bf16 FLOP/s for each watt up to which clocks hold (A100 0.68)
POWER_FALL = 0.632  # exponent beyond it (H100 1.14, the same at 500 W 1.59, B200 1.75)
BANDWIDTH_SHARE = 0.9  # of the memory bandwidth
KERNEL_S = 30e-6  # ramp-up and tail of one matrix product and of the small kernels around it
CUDNN_SHARE = 0.801  # of a product's rate that fused attention of cuDNN reaches
FLASH2_SHARE = 0.462  # and FlashAttention-2 on A100, with Triton's like
FLASH2_FALL = 0.353  # exponent of peak over A100's by which it falls behind on later cards
A100_FLOPS = 312e12
DETERMINISTIC_SHARE = 0.72  # of that rate where backward must give the same bits every time


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
    products = _products_flops(gpu, precision)
    wide = _products_flops(gpu, "bf16") if precision == "fp8" else products
    return Rates(
        products=products,
        wide_products=wide,
        attention=wide * _attention_share(peak_flops(gpu, "bf16"), execution),
        bandwidth=memory_bytes_per_s(gpu),
        kernel_s=0.0 if gpu.is_cpu else KERNEL_S,
    )


def memory_bytes_per_s(gpu: GpuSpec) -> float:
    """Memory bandwidth that a step reaches: of a cluster card, else a share of the rating."""
    if gpu.measured is not None and gpu.measured.memory_bytes_per_s is not None:
        return gpu.measured.memory_bytes_per_s
    return gpu.memory_bytes_per_s * BANDWIDTH_SHARE


def _products_flops(gpu: GpuSpec, precision: Precision) -> float:
    """FLOP/s of large products: a share of a cluster card's best, else of the peak."""
    if gpu.measured is not None and precision in gpu.measured.flops:
        return gpu.measured.flops[precision] * STEP_SHARE
    return _sustained_share(gpu) * peak_flops(gpu, precision)


def _sustained_share(gpu: GpuSpec) -> float:
    """Share of the peak that large products hold over a step."""
    share = gpu.matmul_efficiency * STEP_SHARE
    if gpu.power_w is None:
        return share
    density = peak_flops(gpu, "bf16") * gpu.matmul_efficiency / gpu.power_w
    return share if density <= POWER_KNEE else share * float((POWER_KNEE / density) ** POWER_FALL)


def _attention_share(peak: float, execution: Execution) -> float:
    """Share of a product's rate that flash attention reaches."""
    fused_by_cudnn = BY_NAME[execution.trainer].flash_kernels == "cudnn"
    if fused_by_cudnn and not execution.deterministic:
        return CUDNN_SHARE
    share = FLASH2_SHARE * float(min(1.0, A100_FLOPS / peak) ** FLASH2_FALL)
    return share * DETERMINISTIC_SHARE if execution.deterministic else share
