"""Quantised frozen matrices (QLoRA): which ones, their bytes, and what it costs to compute on them.

Products run in the compute precision, so a pass writes a matrix out in it first, one at a time.
Embeddings, norms, biases, the output head, routers and routed experts (stacks, not linear layers,
unless each is a module of its own: `Execution.expert_modules`) stay as they are in LoRA. By format,
as their sources do it:

- nf4, fp4 (bitsandbytes `autograd/_functions.py`, `MatMul4Bit`): dequantised in every pass; its
  fused kernels serve micro batches of few tokens only.
- int8 (`MatMul8bitLt`): forward quantises its input and multiplies in int8; backward casts the
  matrix to the compute type and scales it in place.
- GPTQ, `torch` kernels (AutoGPTQ `qlinear_cuda_old.py`, `QuantLinear.forward`): shift, cast, mask,
  zero point and scale are an operation of torch each, on every element. Autograd keeps the result
  for backward, so that backward unpacks nothing, and all matrices of what is not computed again
  stay in 16 bits.
- GPTQ, `triton` (`triton_utils/dequant.py`), and AWQ (AutoAWQ `modules/linear/gemm.py`,
  `WQLinearMMFunction`): one kernel in forward, one in backward.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.flops import attention_products, layer_products, mlp_products
from dsforge.estimate.params import moe_layers
from dsforge.estimate.rates import peak_flops
from dsforge.estimate.recurrence import recurrent_products
from dsforge.specs import BITSANDBYTES_4_BIT, GpuSpec, LoraSpec, ModelSpec, Workload
from dsforge.traced import Constant, counted, maximum, named

BLOCK = 64  # elements that share a scale
SCALES = 256  # scales in 8 bits that share one in float32
NF4_BYTES = Constant(
    4 / 8 + 1 / BLOCK + 4 / (BLOCK * SCALES),
    "nf4_bytes",
    "bytes",
    "nf4 with double quantisation, 4.127 bits (Dettmers et al. 2023, arXiv 2305.14314, section 3)",
)
NF4_PLAIN_BYTES = Constant(
    4 / 8 + 4 / BLOCK, "nf4_bytes", "bytes", "nf4 or fp4, a float32 scale for each 64 elements"
)
PACKED_4_BIT = 4 / 8  # without scales
SCALE_BYTES = 2  # GPTQ, AWQ: fp16
# bitsandbytes compares until it knows an element, and does not reach the bandwidth.
DEQUANTISE_SHARE = Constant(
    1 / 1.7,
    "dequantise_share",
    "share",
    "of the bandwidth: look-ups in a table are 1.36 to 2.07 times as fast on A100 and H100 "
    "(bitsandbytes pull request #1747, September 2025)",
)
SHIFTED = 4  # bytes of an element in int32, which torch's shift of packed words gives
# An operation of torch with broadcast operands computes the place of each element: counted in
# ATen/native/cuda/Loops.cuh and OffsetCalculator.cuh for three operands over three dimensions, 8 a
# dimension for quotient, remainder and places, and 20 for bounds, loads, casts, operation, store.
BROADCAST_INSTRUCTIONS = Constant(
    3 * 8 + 20, "broadcast_instructions", "", "estimate/quantised.py: counted in torch's Loops.cuh"
)
FLOPS_OF_AN_INSTRUCTION = 2  # the plain fp32 peak counts a fused multiply-add as two
UNPACKED = "shift, cast, mask, zero point, scale (AutoGPTQ qlinear_cuda_old.py), as they move"
# LLM.int8, bytes beside the product: an input is read and written in 8 bits, a product's int32 is
# written, read and written in 16 bits (`int8_vectorwise_quant`, `int8_mm_dequant`).
INT8_INPUT_BYTES, INT8_OUTPUT_BYTES = 3.0, 8.0
INT8_BACKWARD = 1 + 3 * 2  # read in 8 bits, written in 16, scaled in place
# Launches beside the product in one pass of a matrix: nf4 with double quantisation dequantises the
# scales, adds their mean, then the matrix; GPTQ in torch has four operations on the zero points,
# five on the matrix and a cast of the input; int8 quantises, looks for outliers, dequantises.
LAUNCHES = {"nf4": 3, "fp4": 3, "int8": 6, "gptq": 2, "awq": 2}
TORCH_LAUNCHES = 10
LAYER_MATRICES = 7


class Pass(NamedTuple):
    """Seconds for each element of a matrix before it is multiplied."""

    forward_s: float  # and when it is computed again
    backward_s: float


@lru_cache(maxsize=64)
def layer_quantised_elements(
    model: ModelSpec, *, moe_layer: bool, expert_modules: bool = False
) -> float:
    """Elements of the quantised matrices of one decoder layer, the mean: all linear modules."""
    mixers = model.attentions * sum(product.elements for product in attention_products(model))
    if model.recurrent is not None:
        recurrent = sum(product.elements for product in recurrent_products(model))
        mixers += model.recurrences * recurrent
    if not moe_layer:
        mlp = sum(p.elements for p in mlp_products(model, moe_layer=False))
        return named(mixers + model.dense_mlps * mlp, "dense_quantised_elements", "elements")
    width = model.moe.shared_ffn_hidden_size if model.moe else 0
    if model.moe and expert_modules:
        width += model.moe.experts * model.moe.expert_ffn_hidden_size
    sparse = mixers + (3 if model.gated_mlp else 2) * model.hidden_size * width
    return named(sparse, "moe_quantised_elements", "elements")


def quantised_elements(model: ModelSpec, *, expert_modules: bool = False) -> int:
    """Elements of all quantised matrices of a decoder."""
    sparse = moe_layers(model)
    dense = (model.layers - sparse) * layer_quantised_elements(model, moe_layer=False)
    each = layer_quantised_elements(model, moe_layer=True, expert_modules=expert_modules)
    whole = round(dense + sparse * each)
    return named(whole, "quantised_total", "elements")


def largest_matrix_elements(model: ModelSpec) -> int:
    """Elements of the largest quantised matrix: the widest of the MLP, or of attention."""
    hidden, moe = model.hidden_size, model.moe
    widths = [model.ffn_hidden_size] if model.moe_layers < model.layers else []
    widths += [moe.shared_ffn_hidden_size] if moe else []
    out = [attention_products(model)[-1], *recurrent_products(model)]
    largest = out[0].elements
    for product in out[1:]:
        largest = maximum(largest, product.elements)
    for width in widths:
        largest = maximum(largest, hidden * width)
    return named(largest, "largest_matrix", "elements")


def packed_bytes(lora: LoraSpec) -> float:
    """Bytes of an element without its scales: what ZeRO stage 3 shards of a 4-bit parameter."""
    return PACKED_4_BIT if lora.frozen_format in BITSANDBYTES_4_BIT else lora.bits / 8


def packed_away(workload: Workload, packed: int) -> int:
    """Elements of the compute precision that so many packed ones take less, without scales."""
    if workload.lora is None or not workload.is_quantised:
        return 0
    left = round(packed * packed_bytes(workload.lora) / element_bytes(workload))
    return named(packed - left, "packed_away", "elements")


def stored_bytes(workload: Workload) -> float:
    """Bytes of a quantised element, its share of scales and zero points included."""
    lora = workload.lora
    if lora is None or lora.frozen_format in BITSANDBYTES_4_BIT:
        return NF4_BYTES if lora is None or lora.double_quant else NF4_PLAIN_BYTES
    if lora.frozen_format == "int8":
        return 1.0  # and a float32 a row
    scales = (SCALE_BYTES + lora.bits / 8) / lora.group_size
    return named(lora.bits / 8 + scales, "quantised_bytes", "bytes", "packed, scales, zero points")


def replicated_scale_bytes(workload: Workload, quantised: int) -> float:
    """Bytes of scales that FSDP does not shard: attributes of a 4-bit weight, no parameters.

    bitsandbytes `functional.QuantState`; they are on each device, wherever the weights are.
    """
    lora = workload.lora
    if lora is None or not quantised or lora.frozen_format not in BITSANDBYTES_4_BIT:
        return 0.0
    scales = (stored_bytes(workload) - packed_bytes(lora)) * quantised
    return named(scales, "replicated_scales", "bytes", "scales of 4-bit weights under FSDP")


def keeps_unpacked(workload: Workload) -> bool:
    """Whether autograd keeps the unpacked matrices for backward."""
    lora = workload.lora
    return workload.base == "gptq" and lora is not None and lora.kernel == "torch"


def dequantised_bytes(model: ModelSpec, workload: Workload) -> float:
    """Bytes of one matrix at work in the compute precision, and of what it is made from."""
    if workload.lora is None or not workload.is_quantised:
        return 0.0
    beside = 0.0
    if workload.base in BITSANDBYTES_4_BIT and workload.lora.double_quant:
        beside = 4 / BLOCK  # its scales in float32
    each = element_bytes(workload) + beside
    if keeps_unpacked(workload):
        each = SHIFTED + _code_bytes(workload.lora)
    size = largest_matrix_elements(model) * each
    return named(size, "dequantised_bytes", "bytes")


def unpacked_layer_bytes(model: ModelSpec, workload: Workload) -> float:
    """Bytes of the matrices of a layer that autograd keeps unpacked; 0 where it keeps none."""
    if not keeps_unpacked(workload):
        return 0.0
    elements = layer_quantised_elements(model, moe_layer=model.moe_layers == model.layers)
    size = element_bytes(workload) * elements
    return named(size, "unpacked_layer_bytes", "bytes", "GPTQ matrices that autograd keeps")


def dequantising_s(
    gpu: GpuSpec, workload: Workload, bandwidth: float, *, repeated: float, backward: float
) -> float:
    """Seconds of a micro step for each quantised element, beside the products.

    `repeated`: share of forward that is computed again; `backward`: its passes. The product itself
    reads the matrix like any other.
    """
    if workload.lora is None or not workload.is_quantised:
        return 0.0
    each = _passes(gpu, workload, workload.lora, bandwidth)
    whole = (1 + repeated) * each.forward_s + backward * each.backward_s
    return named(whole, "dequantising_s", "s", "of an element, all passes of a micro step")


def _passes(gpu: GpuSpec, workload: Workload, lora: LoraSpec, bandwidth: float) -> Pass:
    """Seconds of an element by format and kernel."""
    size = element_bytes(workload)
    if keeps_unpacked(workload):
        return Pass(_unpacking_s(gpu, lora, size, bandwidth), 0.0)
    if lora.frozen_format == "int8":
        return Pass(0.0, INT8_BACKWARD / bandwidth)
    moved = stored_bytes(workload) + size
    if lora.frozen_format in BITSANDBYTES_4_BIT:
        moved = moved / DEQUANTISE_SHARE
    each_s = named(moved / bandwidth, "dequantised_element_s", "s")
    return Pass(each_s, each_s)


def _code_bytes(lora: LoraSpec) -> int:
    """Bytes of an unpacked integer: int8 up to 4 bits, int16 for 8, int32 for 3."""
    found = 4 if lora.bits == 3 else 2 if lora.bits == 8 else 1  # noqa: PLR2004
    return counted(found, "code_bytes", "bytes", of=lora.bits, why=UNPACKED)


def _unpacking_s(gpu: GpuSpec, lora: LoraSpec, size: int, bandwidth: float) -> float:
    """Seconds of one element through torch's shift, cast, mask, zero point and scale.

    3 bits have no cast, but two masks more and a concatenation, all in int32. Shift, zero point and
    scale broadcast: such a kernel takes as long as its bytes or as its instructions do.
    """
    packed, code = lora.bits / 8, _code_bytes(lora)
    contiguous = 3 * 2 * code if code == SHIFTED else (SHIFTED + code) + 2 * code
    broadcast = (packed + SHIFTED, 2 * code, code + size)
    counted_s = BROADCAST_INSTRUCTIONS / (peak_flops(gpu, "fp32") / FLOPS_OF_AN_INSTRUCTION)
    seconds = contiguous / bandwidth
    for moved in broadcast:
        seconds += maximum(moved / bandwidth, counted_s)
    return named(seconds, "unpacking_s", "s", UNPACKED)


def int8_token_bytes(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> float:
    """Bytes of one token that a forward pass of a layer moves more around products in int8."""
    if lora.frozen_format != "int8":
        return 0.0
    products = layer_products(model, moe_layer=moe_layer).values()
    moved = sum(
        p.times * (INT8_INPUT_BYTES * p.inputs + INT8_OUTPUT_BYTES * p.outputs) for p in products
    )
    return named(moved, "int8_token_bytes", "bytes", "inputs quantised, products dequantised")


def dequantising_launches(workload: Workload, passes: float) -> float:
    """Kernels that the host launches more for a layer of quantised matrices, all passes."""
    base = workload.base
    if base is None:
        return 0.0
    if keeps_unpacked(workload):
        return LAYER_MATRICES * TORCH_LAUNCHES * (passes - 1)  # backward unpacks nothing
    return LAYER_MATRICES * LAUNCHES[base] * passes
