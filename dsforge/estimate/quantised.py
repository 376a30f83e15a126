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
from dsforge.specs import ModelSpec, Workload

BLOCK = 64  # elements that share a scale
SCALES = 256  # scales in 8 bits that share one in float32
# Dettmers et al. 2023 (arXiv 2305.14314), section 3: nf4 with double quantisation, 4.127 bits.
NF4_BYTES = 4 / 8 + 1 / BLOCK + 4 / (BLOCK * SCALES)


@lru_cache(maxsize=64)
def layer_quantised_elements(model: ModelSpec, *, moe_layer: bool) -> int:
    """Elements of the quantised matrices of one decoder layer: those that carry adapters."""
    attention = sum(product.elements for product in attention_products(model))
    if not moe_layer:
        return attention + sum(p.elements for p in mlp_products(model, moe_layer=False))
    shared = model.moe.shared_ffn_hidden_size if model.moe else 0
    return attention + (3 if model.gated_mlp else 2) * model.hidden_size * shared


def quantised_elements(model: ModelSpec) -> int:
    """Elements of all quantised matrices of a decoder."""
    dense = (model.layers - model.moe_layers) * layer_quantised_elements(model, moe_layer=False)
    return dense + model.moe_layers * layer_quantised_elements(model, moe_layer=True)


def largest_matrix_elements(model: ModelSpec) -> int:
    """Elements of the largest quantised matrix: the widest of the MLP, or of attention."""
    hidden, moe = model.hidden_size, model.moe
    widths = [model.ffn_hidden_size] if model.moe_layers < model.layers else []
    widths += [moe.shared_ffn_hidden_size] if moe else []
    out = attention_products(model)[-1]
    return max(out.elements, *(hidden * width for width in widths))


def dequantised_bytes(model: ModelSpec, workload: Workload) -> float:
    """Bytes of one matrix at work in the compute precision, with its scales in float32."""
    if not workload.in_4_bits:
        return 0.0
    return largest_matrix_elements(model) * (element_bytes(workload) + 4 / BLOCK)
