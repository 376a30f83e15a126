"""Frozen matrices in 4 bits (QLoRA): which ones, their bytes, and what it costs to compute on them.

Products run in the compute precision, so each pass writes a matrix out in it first, one at a time
(bitsandbytes `MatMul4Bit`; its fused kernels serve micro batches of few tokens only). Embeddings,
norms, biases, the output head, routers and routed experts (stacks, not linear layers) stay as they
are in LoRA.
"""

from __future__ import annotations

from functools import lru_cache

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.flops import attention_products, mlp_products
from dsforge.estimate.params import moe_layers
from dsforge.specs import ModelSpec, Workload
from dsforge.traced import Constant, maximum, named

BLOCK = 64  # elements that share a scale
SCALES = 256  # scales in 8 bits that share one in float32
NF4_BYTES = Constant(
    4 / 8 + 1 / BLOCK + 4 / (BLOCK * SCALES),
    "nf4_bytes",
    "bytes",
    "nf4 with double quantisation, 4.127 bits (Dettmers et al. 2023, arXiv 2305.14314, section 3)",
)
# bitsandbytes compares until it knows an element, and does not reach the bandwidth.
DEQUANTISE_SHARE = Constant(
    1 / 1.7,
    "dequantise_share",
    "share",
    "of the bandwidth: look-ups in a table are 1.36 to 2.07 times as fast on A100 and H100 "
    "(bitsandbytes pull request #1747, September 2025)",
)


@lru_cache(maxsize=64)
def layer_quantised_elements(model: ModelSpec, *, moe_layer: bool) -> int:
    """Elements of the quantised matrices of one decoder layer: those that carry adapters."""
    attention = sum(product.elements for product in attention_products(model))
    if not moe_layer:
        dense = attention + sum(p.elements for p in mlp_products(model, moe_layer=False))
        return named(dense, "dense_quantised_elements", "elements")
    shared = model.moe.shared_ffn_hidden_size if model.moe else 0
    sparse = attention + (3 if model.gated_mlp else 2) * model.hidden_size * shared
    return named(sparse, "moe_quantised_elements", "elements")


def quantised_elements(model: ModelSpec) -> int:
    """Elements of all quantised matrices of a decoder."""
    sparse = moe_layers(model)
    dense = (model.layers - sparse) * layer_quantised_elements(model, moe_layer=False)
    whole = dense + sparse * layer_quantised_elements(model, moe_layer=True)
    return named(whole, "quantised_total", "elements")


def largest_matrix_elements(model: ModelSpec) -> int:
    """Elements of the largest quantised matrix: the widest of the MLP, or of attention."""
    hidden, moe = model.hidden_size, model.moe
    widths = [model.ffn_hidden_size] if model.moe_layers < model.layers else []
    widths += [moe.shared_ffn_hidden_size] if moe else []
    out = attention_products(model)[-1]
    largest = out.elements
    for width in widths:
        largest = maximum(largest, hidden * width)
    return named(largest, "largest_matrix", "elements")


def dequantised_bytes(model: ModelSpec, workload: Workload) -> float:
    """Bytes of one matrix at work in the compute precision, with its scales in float32."""
    if not workload.in_4_bits:
        return 0.0
    size = largest_matrix_elements(model) * (element_bytes(workload) + 4 / BLOCK)
    return named(size, "dequantised_bytes", "bytes")


def dequantising_bytes(workload: Workload) -> float:
    """Bytes that a pass moves for each element in 4 bits, as if at the bandwidth: read and written.

    The product itself reads the matrix like any other.
    """
    if not workload.in_4_bits:
        return 0.0
    moved = NF4_BYTES + element_bytes(workload)
    return named(moved / DEQUANTISE_SHARE, "dequantising_bytes", "bytes")
