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
overlap, dgxc and internlm over 8 to 2304 accelerators. `benchmarks/leave_one_out.py` fits them
without each source in turn (`benchmarks/published/left_out.md`).
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
    0.926,
    "step_share",
    "share",
    f"{FITTED}; rate of large matrix products, relative to the best one",
)
# Best bf16 FLOP/s for each watt up to which clocks hold (A100 0.68e12); beyond it they fall with
# that exponent (H100 1.14e12, the same at 500 W 1.59e12, B200 1.75e12).
POWER_KNEE = Constant(
    0.956e12, "power_knee", "FLOP/s/W", f"{FITTED}; above it the clock rate drops"
)
POWER_FALL = Constant(0.632, "power_fall", "", f"{FITTED}; exponent of that fall")
# The best product of a V100 in 16 bits, 83 TFLOP/s, is seven times the best one in fp32: 11.9 of
# 15.7 TFLOP/s, a larger share than that of its tensor cores (Markidis et al. 2018).
OLDER_FP32_SHARE = Constant(
    0.755,
    "fp32_share",
    "share",
    "estimate/rates.py: best fp32 product of a V100, relative to its peak (arXiv:1803.04014)",
)
BANDWIDTH_SHARE = Constant(0.9, "bandwidth_share", "share", f"{FITTED}; of the memory bandwidth")
KERNEL_S = Constant(
    30e-6, "kernel_s", "s", f"{FITTED}; start and end of a matrix product and its small kernels"
)
CUDNN_SHARE = Constant(
    0.801,
    "attention_share",
    "share",
    f"{FITTED}; relative to the rate of matrix products: cuDNN's fused attention",
)
FLASH2_SHARE = Constant(
    0.65,
    "flash2_share",
    "share",
    f"{FITTED}; relative to the rate of matrix products: FlashAttention-2 on A100, long sequences",
)
# Blocks on the diagonal are half idle and short sequences occupy few multiprocessors: with it, runs
# of foundry from 512 to 65,536 tokens have one error, and those of titan from 2,048 to 65,536.
HALF_LENGTH = Constant(
    490.0,
    "flash_half_length",
    "tokens",
    f"{FITTED}; length at which FlashAttention reaches half of its rate",
)
DAO = "Dao 2023, arXiv:2307.08691, section 4.1"
FLASH1_SHARE = Constant(
    0.357,
    "flash1_share",
    "share",
    f"estimate/rates.py: FlashAttention-2 is 1.7 to 3.0 times as fast as FlashAttention ({DAO})",
)
TRITON_SHARE = Constant(
    0.67,
    "triton_share",
    "share",
    f"estimate/rates.py: FlashAttention-2 is 1.3 to 2.5 times as fast as its Triton kernel ({DAO})",
)
FLASH2_FALL = Constant(
    0.353, "flash2_fall", "", f"{FITTED}; exponent by which this share drops on faster GPUs"
)
# Mistral 7B with and without a mask: 94.8 us a token more at 4,096 tokens, 197 us at 8,192, of both
# halves of the scores in 4.5 passes (transformers issue #30461; its card is taken as an A100).
MASKED_SHARE = Constant(
    0.3, "masked_share", "share", f"{SDPA}; of a product's rate: fused attention under a mask"
)
PRODUCTS = "large matrix products, in the precision of the workload"
UNALIGNED = "16-bit products outside of the tensor cores (NVIDIA, matrix multiplication guide)"
WIDE = "matrix products that stay in 16 bits"
ATTENTION = "fused attention, as a share of the rate of matrix products"
A100_FLOPS = Constant(312e12, "a100_flops", "FLOP/s", "NVIDIA A100: peak in bf16")
DETERMINISTIC_SHARE = Constant(
    0.53, "deterministic_share", "share", f"{FITTED}; with a deterministic backward pass"
)

OF_DAO = {"flash1": FLASH1_SHARE, "triton": TRITON_SHARE}  # kernels before FlashAttention-2


class Rates(NamedTuple):
    """FLOP/s and bytes/s that one card holds, by kind of work."""

    products: float  # in the precision of the workload
    wide_products: float  # in 16 bits, where the workload's are 8
    attention: float  # of a long sequence
    unaligned: float  # products in 16 bits whose sides are no multiple of 8
    bandwidth: float
    kernel_s: float
    half_length: float  # tokens at which attention reaches half of that; 0: at once

    def attention_of(self, length: float) -> float:
        """FLOP/s of attention over samples of that many tokens."""
        return self.attention / (1 + self.half_length / length)


def peak_flops(gpu: GpuSpec, precision: Precision) -> float:
    """The card's peak in a precision; fp16 and bf16 stand in for each other."""
    peaks = gpu.peak_flops
    fallback = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    return peaks.get(precision, fallback)


def rates(gpu: GpuSpec, precision: Precision, execution: Execution) -> Rates:
    """The rates of a card in one precision under one software; a CPU core has no kernels."""
    if precision == "bf16" and gpu.emulates_bf16:  # outside of the tensor cores
        precision = "fp32"
    products = named(_products_flops(gpu, precision), "products_flops", "FLOP/s", PRODUCTS)
    wide = _products_flops(gpu, "bf16") if precision == "fp8" else products
    wide = named(wide, "wide_products_flops", "FLOP/s", WIDE)
    attention = wide * _attention_share(gpu, execution)
    return Rates(
        products=products,
        wide_products=wide,
        attention=named(attention, "attention_flops", "FLOP/s", ATTENTION),
        unaligned=named(_unaligned_flops(gpu, wide), "unaligned_flops", "FLOP/s", UNALIGNED),
        bandwidth=memory_bytes_per_s(gpu),
        kernel_s=0.0 if gpu.is_cpu else KERNEL_S,
        half_length=HALF_LENGTH if _runs_flash(gpu, execution) else 0.0,
    )


def _unaligned_flops(gpu: GpuSpec, wide: float) -> float:
    """FLOP/s outside of the tensor cores: twice the fp32 peak (V100 15.7 and 31.4, NVIDIA)."""
    fp32 = gpu.peak_flops.get("fp32")
    return wide if fp32 is None else minimum(wide, 2.0 * fp32 * STEP_SHARE)


def memory_bytes_per_s(gpu: GpuSpec) -> float:
    """Memory bandwidth that a step reaches: of a cluster card, else a share of the rating."""
    if gpu.measured is not None and gpu.measured.memory_bytes_per_s is not None:
        return gpu.measured.memory_bytes_per_s
    return named(gpu.memory_bytes_per_s * BANDWIDTH_SHARE, "memory_rate", "bytes/s")


def _products_flops(gpu: GpuSpec, precision: Precision) -> float:
    """FLOP/s of large products: a share of a cluster card's best, else of the peak."""
    if gpu.measured is not None and precision in gpu.measured.flops:
        return gpu.measured.flops[precision] * STEP_SHARE
    if precision == "fp32" and _precedes_ampere(gpu):
        return OLDER_FP32_SHARE * STEP_SHARE * peak_flops(gpu, precision)
    return _sustained_share(gpu) * peak_flops(gpu, precision)


def _sustained_share(gpu: GpuSpec) -> float:
    """Share of the peak that large matrix products reach in a step."""
    share = gpu.matmul_efficiency * STEP_SHARE
    if gpu.power_w is None:
        return named(share, "sustained_share", "share")
    density = peak_flops(gpu, "bf16") * gpu.matmul_efficiency / gpu.power_w
    density = named(density, "flops_per_watt", "FLOP/s/W", "above the knee the clock rate drops")
    if density > POWER_KNEE:
        fall: float = (POWER_KNEE / density) ** POWER_FALL
        share *= fall
    return named(share, "sustained_share", "share")


def _precedes_ampere(gpu: GpuSpec) -> bool:
    """Whether it is a card without bf16."""
    return "bf16" not in gpu.peak_flops and not gpu.is_cpu


def _is_masked(gpu: GpuSpec, execution: Execution) -> bool:
    """Whether torch's other fused kernel runs.

    Cards before Ampere run it always: FlashAttention-2 does not support them (its README).
    """
    return execution.attention == "masked" or _precedes_ampere(gpu)


def _runs_cudnn(execution: Execution) -> bool:
    """Whether cuDNN computes attention."""
    by_cudnn = BY_NAME[execution.trainer].flash_kernels == "cudnn"
    return by_cudnn and execution.attention not in OF_DAO and not execution.deterministic


def _runs_flash(gpu: GpuSpec, execution: Execution) -> bool:
    """Whether a version of FlashAttention computes attention."""
    return not _is_masked(gpu, execution) and not _runs_cudnn(execution)


def _attention_share(gpu: GpuSpec, execution: Execution) -> float:
    """Share of a product's rate that flash attention reaches over a long sequence."""
    if _is_masked(gpu, execution):
        return MASKED_SHARE
    if _runs_cudnn(execution):
        return CUDNN_SHARE
    fall: float = minimum(1.0, A100_FLOPS / peak_flops(gpu, "bf16")) ** FLASH2_FALL
    share = FLASH2_SHARE * fall
    share = share * DETERMINISTIC_SHARE if execution.deterministic else share
    older = OF_DAO.get(execution.attention)
    return named(share if older is None else share * older, "attention_share", "share")
