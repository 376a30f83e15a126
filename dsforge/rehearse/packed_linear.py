"""Matrices in 4 bits on fake tensors: bitsandbytes' own operators on packed data without values.

`Params4bit` is a subclass of Tensor, as fake tensors are, and no tensor is both. So a packed matrix
is a plain parameter of the same shape, type and attributes in a `Linear4bit`, which peft and the
engine treat alike. bitsandbytes declares what its operators return for fake tensors; the matrix
that its CUDA kernels dequantise inside a product of many tokens (`backends/cuda/ops.py`,
`gemm_4bit`) is made here, so that it is counted.
"""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes import functional, matmul_4bit
from bitsandbytes.nn import Linear4bit
from torch import nn

from dsforge.estimate.quantised import BLOCK, SCALES
from dsforge.specs import LoraSpec

STORAGE = {
    "uint8": torch.uint8,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
LEVELS = 16  # values of a 4-bit code


class PackedLinear(Linear4bit):
    """A `Linear4bit` whose packed matrix is a fake tensor."""

    def __init__(self, linear: nn.Linear, lora: LoraSpec, storage: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight
        self.compute_dtype, self.compute_type_is_set = weight.dtype, True
        self.quant_storage, self.bias = storage, linear.bias
        size = weight.numel() // 2 // storage.itemsize
        packed = torch.empty((size, 1), dtype=storage, device=weight.device)
        self.weight: Any = nn.Parameter(packed, requires_grad=False)
        self.weight.quant_type, self.weight.compress_statistics = (
            lora.frozen_format,
            lora.double_quant,
        )
        self.weight.quant_state = _state(weight, lora)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, beside the matrix in the compute type."""
        state = self.weight.quant_state
        whole = functional.dequantize_4bit(self.weight, state)
        result: torch.Tensor = matmul_4bit(x, self.weight, bias=self.bias, quant_state=state)
        del whole
        return result


def _state(weight: torch.Tensor, lora: LoraSpec) -> Any:
    """Scales of a packed matrix, quantised themselves or not."""
    blocks = -(-weight.numel() // BLOCK)
    on: dict[str, Any] = {"device": weight.device}
    shared: dict[str, Any] = {
        "shape": weight.shape,
        "code": torch.empty(LEVELS, **on),
        "blocksize": BLOCK,
        "quant_type": lora.frozen_format,
        "dtype": weight.dtype,
    }
    if not lora.double_quant:
        return functional.QuantState(absmax=torch.empty(blocks, **on), **shared)
    second = functional.QuantState(
        absmax=torch.empty(-(-blocks // SCALES), **on),
        code=torch.empty(SCALES, **on),
        blocksize=SCALES,
        dtype=torch.float32,
    )
    scales = torch.empty(blocks, dtype=torch.uint8, **on)
    return functional.QuantState(
        absmax=scales, offset=torch.empty((), **on), state2=second, **shared
    )


def pack(model: nn.Module, lora: LoraSpec, *, sharded: bool) -> None:
    """Pack the matrices of a model in place, all linear layers but the head, as transformers does.

    Stored in the compute type where ZeRO stage 3 shards them, unless `quant_storage` says else.
    """
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or child is head:
                continue
            usual = child.weight.dtype if sharded else torch.uint8
            storage = STORAGE[lora.quant_storage] if lora.quant_storage else usual
            setattr(module, name, PackedLinear(child, lora, storage))
    model.is_loaded_in_4bit = True  # what peft asks
