"""Attention on the pretended GPU takes the memory of CUDA's kernels.

torch would fall back to the mathematical form, which stores the s x s scores. CUDA chooses as
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp does: flash for 16-bit without a mask,
memory-efficient otherwise, the mathematical form where neither can (grouped heads in fp32).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as functional

ALIGNMENT = 8  # flash attention pads heads to a multiple of 8 (transformers/attention.cpp)
aten = torch.ops.aten


@lru_cache(maxsize=1)
def register_attention() -> None:
    """Make `attention` the device's kernel of scaled_dot_product_attention; once for a process."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    register_attention.library = library  # type: ignore[attr-defined] - it lives as long as the process


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention by the kernel that CUDA would choose. Shapes: batch, heads, tokens, head size."""
    if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if enable_gqa and query.shape[1] != key.shape[1]:
        found = aten._scaled_dot_product_attention_math(
            *(query, key, value, attn_mask, dropout_p, is_causal), scale=scale, enable_gqa=True
        )
        return found[0]
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    found = aten._scaled_dot_product_efficient_attention(
        *(query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal), scale=scale
    )
    return found[0]


def _flash(
    query: Any, key: Any, value: Any, dropout: float, is_causal: bool, scale: float | None
) -> Any:
    size = query.shape[-1]
    scale = scale if scale is not None else size**-0.5
    padded = [functional.pad(t, (0, -size % ALIGNMENT)) for t in (query, key, value)]
    tensors = padded if size % ALIGNMENT else [query, key, value]
    found = aten._scaled_dot_product_flash_attention(
        *tensors, dropout, is_causal, return_debug_mask=False, scale=scale
    )
    return found[0][..., :size] if size % ALIGNMENT else found[0]
