"""Attention and SiLU on the pretended GPU take the memory of CUDA's kernels.

torch would fall back to the mathematical form, which stores the s x s scores. CUDA chooses as
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp does: flash for 16-bit without a mask and with
heads of one size up to 256 (values of latent attention are smaller than its queries),
memory-efficient otherwise, the mathematical form where neither can: grouped heads in fp32, and one
key head that is broadcast (Falcon).
SiLU's gradient is one kernel on CUDA (native_functions.yaml), six products elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional

LARGEST_FLASH_HEAD = 256
ALIGNMENT = 8  # flash attention pads heads to a multiple of 8 (transformers/attention.cpp)
aten = torch.ops.aten


@lru_cache(maxsize=1)
def register_kernels() -> torch.library.Library:
    """The library of these kernels, registered once; cached, as kernels end with their library."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    library.impl("silu_backward", lambda gradient, _: torch.empty_like(gradient), "PrivateUse1")
    return library


class _Call(NamedTuple):
    """The arguments of torch's attention. Shapes: batch, heads, tokens, head size."""

    query: Any
    key: Any
    value: Any
    attn_mask: Any = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def attention(*values: Any, **options: Any) -> Any:
    """Attention by the kernel that CUDA would choose; takes what torch's own takes."""
    call = _Call(*values, **options)
    query, key, mask = call.query, call.key, call.attn_mask
    fewer = query.shape[1] != key.shape[1]  # keys than queries; flash takes them where it is told
    short = query.dtype in (torch.float16, torch.bfloat16)
    alike = query.shape[-1] == call.value.shape[-1] <= LARGEST_FLASH_HEAD
    if short and alike and mask is None and (call.enable_gqa or not fewer):
        return _flash(call)
    if fewer:
        found = aten._scaled_dot_product_attention_math(  # noqa: SLF001 - torch's own kernels
            *call[:6], scale=call.scale, enable_gqa=call.enable_gqa
        )
        return found[0]
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)
    found = aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        *call[:3],
        mask,
        query.requires_grad,
        call.dropout_p,
        call.is_causal,
        scale=call.scale,
    )
    return found[0]


def _flash(call: _Call) -> Any:
    size = call.query.shape[-1]
    scale = size**-0.5 if call.scale is None else call.scale
    tensors = call[:3]
    if size % ALIGNMENT:
        tensors = tuple(functional.pad(tensor, (0, -size % ALIGNMENT)) for tensor in tensors)
    found = aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *tensors, call.dropout_p, call.is_causal, return_debug_mask=False, scale=scale
    )
    return found[0][..., :size] if size % ALIGNMENT else found[0]
