"""What adapters cost beside their parameters: elements moved and saved for one token.

peft computes `result + lora_B(lora_A(dropout(x))) * scaling` (`tuners/lora/layer.py`,
`Linear.forward`), an operation of torch each, around every matrix that carries an adapter. The
products are thin, so that their time is that of their sides; the bytes of a matrix's own product
are not counted here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.flops import attention_products
from dsforge.specs import AdapterTarget, LoraSpec, ModelSpec, Workload
from dsforge.traced import named

MASK_BYTES = 1  # of an element that dropout keeps or drops
# Elements of one token for an output and an input of a matrix. Forward: lora_A reads the input;
# lora_B writes, the scale reads and writes, the sum reads two and writes. Backward: the scale reads
# and writes, lora_B's two products read; lora_A's product for its weight reads, that for its input
# writes, and the sum with the matrix's own gradient reads two and writes.
FORWARD, BACKWARD = (6.0, 1.0), (4.0, 5.0)
COMPILED_FORWARD, COMPILED_BACKWARD = (4.0, 1.0), (3.0, 3.0)  # scale and sums in one kernel
DROPPED = 2.0  # elements for an input: dropout reads and writes, forward and backward
WIDTHS = "inputs and outputs of the matrices of a layer that carry adapters"


class Sides(NamedTuple):
    """Widths of the matrices of one layer that carry adapters, summed."""

    inputs: float
    outputs: float
    matrices: int


class AdapterTraffic(NamedTuple):
    """Elements moved for one token of a layer, and FLOPs of the adapters' products in forward."""

    forward: float
    backward: float
    flops: float
    matrices: int


@lru_cache(maxsize=256)
def adapter_sides(model: ModelSpec, lora: LoraSpec, *, moe_layer: bool) -> Sides:
    """The sides of the adapted matrices of a layer; routed experts carry none."""
    found = _attention(model, lora.targets)
    width = model.ffn_hidden_size
    if moe_layer:
        width = model.moe.shared_ffn_hidden_size if model.moe else 0
    if width:
        hidden = model.hidden_size
        inner: tuple[AdapterTarget, ...] = ("gate", "up") if model.gated_mlp else ("up",)
        found += [(hidden, width) for target in inner if target in lora.targets]
        found += [(width, hidden)] if "down" in lora.targets else []
    inputs, outputs = sum(pair[0] for pair in found), sum(pair[1] for pair in found)
    kind = "moe" if moe_layer else "dense"
    return Sides(
        named(1.0 * inputs, f"{kind}_adapter_inputs", "elements", WIDTHS),
        named(1.0 * outputs, f"{kind}_adapter_outputs", "elements", WIDTHS),
        len(found),
    )


def _attention(model: ModelSpec, targets: tuple[AdapterTarget, ...]) -> list[tuple[int, int]]:
    """Inputs and outputs of the adapted matrices of one attention."""
    hidden = model.hidden_size
    if model.mla is not None:
        *inner, out = [(p.inputs, p.outputs) for p in attention_products(model)]
        inside = any(target in targets for target in ("query", "key", "value"))
        return (inner if inside else []) + ([out] if "output" in targets else [])
    query, keys = model.attention_heads * model.head_size, model.kv_heads * model.head_size
    sides: dict[AdapterTarget, tuple[int, int]] = {
        "query": (hidden, query),
        "key": (hidden, keys),
        "value": (hidden, keys),
        "output": (query, hidden),
    }
    return [pair for target, pair in sides.items() if target in targets]


def adapter_traffic(
    model: ModelSpec, lora: LoraSpec, *, moe_layer: bool, compiled: bool
) -> AdapterTraffic:
    """What the adapters of a layer move and multiply for one token."""
    sides = adapter_sides(model, lora, moe_layer=moe_layer)
    forward, backward = (COMPILED_FORWARD, COMPILED_BACKWARD) if compiled else (FORWARD, BACKWARD)
    dropped = DROPPED * sides.inputs if lora.dropout else 0.0
    kind = "moe" if moe_layer else "dense"
    ahead = forward[0] * sides.outputs + forward[1] * sides.inputs + dropped
    back = backward[0] * sides.outputs + backward[1] * sides.inputs + dropped
    flops = 2.0 * lora.rank * (sides.inputs + sides.outputs)
    return AdapterTraffic(
        named(ahead, f"{kind}_adapters_forward", "elements", "moved for one token"),
        named(back, f"{kind}_adapters_backward", "elements", "moved for one token"),
        named(flops, f"{kind}_adapter_flops", "FLOP", "of one token, forward"),
        sides.matrices,
    )


def adapter_token_bytes(
    model: ModelSpec, workload: Workload, size: int, *, moe_layer: bool
) -> float:
    """Bytes of one token that the adapters of a layer save for backward.

    Each `lora_A`'s result; with dropout also the mask and the input that is left, matrix by matrix.
    """
    if workload.lora is None or workload.method != "lora":
        return 0.0
    sides = adapter_sides(model, workload.lora, moe_layer=moe_layer)
    saved = 1.0 * size * workload.lora.rank * sides.matrices
    if workload.lora.dropout:
        saved += (size + MASK_BYTES) * sides.inputs
    return named(saved, "adapter_token_bytes", "bytes", "saved by adapters for one token")
