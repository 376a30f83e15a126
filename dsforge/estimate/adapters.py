"""Matrices that carry adapters, and what the adapters save of one token for backward.

peft computes `result + lora_B(lora_A(dropout(x))) * scaling` (`tuners/lora/layer.py`,
`Linear.forward`) around every matrix that carries an adapter.
"""

from __future__ import annotations

from functools import lru_cache

from dsforge.estimate.flops import attention_products
from dsforge.estimate.recurrence import adapted_sides
from dsforge.specs import AdapterTarget, LoraSpec, ModelSpec, Workload
from dsforge.traced import named

MASK_BYTES = 1  # of an element that dropout keeps or drops


@lru_cache(maxsize=256)
def _adapted(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> tuple[tuple[int, float], ...]:
    """Inputs of each matrix that carries an adapter, and how many such matrices a layer has.

    Routed experts carry none; of layers that differ it is the mean.
    """
    found = [(inputs, model.attentions) for inputs in _attention(model, lora.targets)]
    found += [(inputs, model.recurrences) for inputs, _ in adapted_sides(model, lora)]
    mlps = 1.0 if moe_layer else model.dense_mlps
    return (*found, *((inputs, mlps) for inputs in _mlp(model, lora, moe_layer=moe_layer)))


def _mlp(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> list[int]:
    """Inputs of the adapted matrices of an MLP."""
    found: list[int] = []
    width = model.ffn_hidden_size
    if moe_layer:
        width = model.moe.shared_ffn_hidden_size if model.moe else 0
    if width:
        inner: tuple[AdapterTarget, ...] = ("gate", "up") if model.gated_mlp else ("up",)
        found += [model.hidden_size for target in inner if target in lora.targets]
        found += [width] if "down" in lora.targets else []
    return found


def _attention(model: ModelSpec, targets: tuple[AdapterTarget, ...]) -> list[int]:
    """Inputs of the adapted matrices of one attention."""
    if model.mla is not None:
        *inner, out = [product.inputs for product in attention_products(model)]
        inside = any(target in targets for target in ("query", "key", "value"))
        return (inner if inside else []) + ([out] if "output" in targets else [])
    query = model.attention_heads * model.head_size
    read = [model.hidden_size for target in ("query", "key", "value") if target in targets]
    return read + ([query] if "output" in targets else [])


def adapted_matrices(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> float:
    """Matrices of a layer that carry adapters."""
    return sum(times for _, times in _adapted(model, lora, moe_layer=moe_layer))


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
    saved = 1.0 * size * lora.rank * sum(times for _, times in inputs)
    if lora.dropout:
        saved += (size + MASK_BYTES) * sum(times * width for width, times in inputs)
    return named(saved, "adapter_token_bytes", "bytes", "saved by adapters for one token")
