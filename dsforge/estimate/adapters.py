"""Matrices that carry adapters, and what the adapters save of one token for backward.

peft computes `result + lora_B(lora_A(dropout(x))) * scaling` (`tuners/lora/layer.py`,
`Linear.forward`) around every matrix that carries an adapter.
"""

from __future__ import annotations

from functools import lru_cache

from dsforge.estimate.flops import attention_products
from dsforge.specs import AdapterTarget, LoraSpec, ModelSpec, Workload
from dsforge.traced import named

MASK_BYTES = 1  # of an element that dropout keeps or drops


@lru_cache(maxsize=256)
def _adapted(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> tuple[int, ...]:
    """Inputs of each matrix of a layer that carries an adapter; routed experts carry none."""
    found = _attention(model, lora.targets)
    width = model.ffn_hidden_size
    if moe_layer:
        width = model.moe.shared_ffn_hidden_size if model.moe else 0
    if width:
        inner: tuple[AdapterTarget, ...] = ("gate", "up") if model.gated_mlp else ("up",)
        found += [model.hidden_size for target in inner if target in lora.targets]
        found += [width] if "down" in lora.targets else []
    return tuple(found)


def _attention(model: ModelSpec, targets: tuple[AdapterTarget, ...]) -> list[int]:
    """Inputs of the adapted matrices of one attention."""
    if model.mla is not None:
        *inner, out = [product.inputs for product in attention_products(model)]
        inside = any(target in targets for target in ("query", "key", "value"))
        return (inner if inside else []) + ([out] if "output" in targets else [])
    query = model.attention_heads * model.head_size
    read = [model.hidden_size for target in ("query", "key", "value") if target in targets]
    return read + ([query] if "output" in targets else [])


def adapted_matrices(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> int:
    """Matrices of a layer that carry adapters."""
    return len(_adapted(model, lora, moe_layer=moe_layer))


def adapter_token_bytes(
    model: ModelSpec, workload: Workload, size: int, *, moe_layer: bool
) -> float:
    """Bytes of one token that the adapters of a layer save for backward.

    Each `lora_A`'s result; with dropout also the mask and the input that is left, matrix by matrix.
    """
    lora = workload.lora
    if lora is None or workload.method != "lora":
        return 0.0
    inputs = _adapted(model, lora, moe_layer=moe_layer)
    saved = 1.0 * size * lora.rank * len(inputs)
    if lora.dropout:
        saved += (size + MASK_BYTES) * sum(inputs)
    return named(saved, "adapter_token_bytes", "bytes", "saved by adapters for one token")
