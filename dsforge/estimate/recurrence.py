"""Recurrent parts of layers: their parameters, products, states, saved tensors and moved bytes.

A recurrence is computed in chunks: inside a chunk as products of its tokens, between chunks through
the state (Mamba-2: arXiv:2405.21060, section 6; gated delta rule: arXiv:2412.06464, section 3.3).
Mamba-1 is a scan of elementwise operations (arXiv:2312.00752, section 3.3). Counted are the kernels
that transformers loads where they are installed: `mamba-ssm` 2.2, `causal-conv1d`,
`flash-linear-attention`. Nothing here was measured, so intervals are wider (`unmeasured.py`).
"""

from __future__ import annotations

from functools import lru_cache

from dsforge.estimate.product import Product
from dsforge.specs import LoraSpec, ModelSpec, RecurrentSpec
from dsforge.traced import Constant, named

SOURCE = "estimate/recurrence.py"
# Both gradients of each product, and the chunks once more: the kernels keep no states
# (mamba_ssm/ops/triton/ssd_combined.py, fla/ops/gated_delta_rule/chunk.py).
BACKWARD = Constant(
    3.0, "state_backward", "", f"{SOURCE}: gradients of both factors, and the chunks again"
)
SCAN_FLOPS = Constant(
    9.0, "scan_flops", "FLOP", f"{SOURCE}: of one element of the state (selective_scan_interface)"
)
# Elements read and written, forward and backward: of a channel of the convolution; of a value (it
# and its gate read, the output written); of a key and a query; of a state in float32.
CONVOLVED, VALUES, KEYS, STATES = (2.0, 4.0), (3.0, 6.0), (2.0, 4.0), (4.0, 8.0)
GATED_NORM = (3.0, 5.0)
FLOAT_ELEMENTS = 2  # of 16 bits


def _decay_parameters(spec: RecurrentSpec) -> int:
    """Parameters of the state: decay, time step and the skip of each head or channel."""
    if spec.kind == "mamba":
        return spec.width * spec.state_size + 2 * spec.width
    return {"mamba2": 3, "gated_delta": 2, "short_conv": 0}[spec.kind] * spec.heads


@lru_cache(maxsize=64)
def recurrent_parameters(model: ModelSpec) -> int:
    """Parameters of one recurrent part; 0 where the model has none."""
    spec = model.recurrent
    if spec is None:
        return 0
    inner = recurrent_products(model)
    found = sum(product.elements for product in inner)
    found += inner[0].outputs if spec.in_bias else 0
    found += model.hidden_size if spec.out_bias else 0
    found += spec.conv_width * (spec.conv_kernel + (1 if spec.conv_bias else 0))
    found += _decay_parameters(spec)
    found += {None: 0, "head": spec.head_size, "full": spec.width}[spec.inner_norm]
    found += spec.time_step_rank + 2 * spec.state_size if spec.state_norms else 0
    return named(found, "recurrent_parameters", "elements", "of one recurrent part of a layer")


def in_width(spec: RecurrentSpec) -> int:
    """Outputs of the input projection: values, gate, keys, queries, and numbers of each head."""
    if spec.kind == "mamba":
        return 2 * spec.width
    if spec.kind == "short_conv":
        return 3 * spec.width
    of_heads = 2 if spec.kind == "gated_delta" else 1
    return 2 * spec.width + 2 * spec.key_width + of_heads * spec.heads


@lru_cache(maxsize=64)
def recurrent_products(model: ModelSpec) -> tuple[Product, ...]:
    """Projections of one recurrent part; nothing where the model has none."""
    spec, hidden = model.recurrent, model.hidden_size
    if spec is None:
        return ()
    wide = in_width(spec)
    inner = spec.time_step_rank + 2 * spec.state_size
    steps = (
        (Product(spec.width, inner, inner), Product(spec.time_step_rank, spec.width, spec.width))
        if spec.kind == "mamba"
        else ()
    )
    return Product(hidden, wide, wide), *steps, Product(spec.width, hidden, spec.width)


def _chunk_flops(spec: RecurrentSpec) -> float:
    """FLOPs of one token in products of its chunk and with the state, forward."""
    chunk, keys = spec.chunk_size, spec.heads * spec.state_size
    through_state = spec.state_size * spec.width
    if spec.kind == "mamba2":  # C B^T of a group, its product with values; state written and read
        return 2.0 * (chunk * (spec.key_width + spec.width) + 2 * through_state)
    if spec.kind == "gated_delta":  # K K^T, T K, Q K^T; T V, scores V; three with the state
        return 2.0 * (chunk * (3 * keys + 2 * spec.width) + 3 * through_state)
    return 0.0


def state_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one token in the recurrence of a layer, mean of all layers."""
    spec = model.recurrent
    if spec is None:
        return 0.0
    found = _chunk_flops(spec)
    if spec.kind == "mamba":
        found = SCAN_FLOPS * spec.width * spec.state_size
    return named(model.recurrences * found, "state_token_flops", "FLOP", "in the recurrence")


def state_s(model: ModelSpec, matrix_rate: float, vector_rate: float, forward: float) -> float:
    """Seconds of one token in the recurrence of a layer, so often forward and once backward."""
    spec = model.recurrent
    if spec is None:
        return 0.0
    rate = vector_rate if spec.kind == "mamba" else matrix_rate
    return named((forward + BACKWARD) * state_flops(model) / rate, "state_token_s", "s")


def moved_elements(model: ModelSpec) -> tuple[float, float]:
    """Elements that convolution, gate, norm and states of a layer move: forward, backward."""
    spec = model.recurrent
    if spec is None:
        return 0.0, 0.0
    states = spec.state_size * spec.width / spec.chunk_size if _chunk_flops(spec) else 0.0
    normed = spec.width if spec.inner_norm else 0
    forward, backward = (
        model.recurrences
        * (
            CONVOLVED[way] * spec.conv_width
            + VALUES[way] * spec.width
            + KEYS[way] * spec.key_width
            + STATES[way] * states
            + GATED_NORM[way] * normed
        )
        for way in (0, 1)
    )
    return forward, backward


def saved_elements(model: ModelSpec) -> float:
    """Elements per token that the recurrent part of a layer saves, mean of all layers."""
    spec = model.recurrent
    if spec is None:
        return 0.0
    found = model.recurrences * _SAVED[spec.kind](spec)
    return named(found, "recurrent_width", "elements", "saved by the recurrent part")


def _saved_mamba(spec: RecurrentSpec) -> float:
    """One function keeps projection, steps and output (`MambaInnerFn`); Jamba's norms part it."""
    small = spec.time_step_rank + 4 * spec.state_size
    return 6 * spec.width + 2 * small if spec.state_norms else 3 * spec.width + small


def _saved_mamba2(spec: RecurrentSpec) -> float:
    """Projection and output before gate and norm (`MambaSplitConv1dScanCombinedFn`)."""
    return in_width(spec) + spec.width


def _saved_delta(spec: RecurrentSpec) -> float:
    """Input of the convolution, queries, keys and values by head, gate, output, normed output.

    Beside them the inverse matrices of chunks and float32 numbers of each head
    (`ChunkGatedDeltaRuleFunction`).
    """
    by_head = 2 * spec.heads * spec.state_size + spec.heads * (spec.chunk_size + 6)
    return spec.conv_width + by_head + 4 * spec.width


def _saved_short(spec: RecurrentSpec) -> float:
    """Three projections, the gated input, what the convolution gives, and the gated result."""
    return 6 * spec.width


_SAVED = {
    "mamba": _saved_mamba,
    "mamba2": _saved_mamba2,
    "gated_delta": _saved_delta,
    "short_conv": _saved_short,
}


def working_elements(model: ModelSpec) -> float:
    """Elements per token that the backward of one recurrent part holds beside what was saved.

    Gradients of projection and convolution, the convolution's result again, and the float32 states
    of all chunks with their gradients.
    """
    spec = model.recurrent
    if spec is None:
        return 0.0
    states = 2 * FLOAT_ELEMENTS * spec.state_size * spec.width / spec.chunk_size
    states = states if _chunk_flops(spec) else 0.0
    return named(in_width(spec) + 2 * spec.conv_width + states, "recurrent_work", "elements")


def adapted_sides(model: ModelSpec, lora: LoraSpec) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of each projection that carries an adapter: where all matrices do.

    Mamba's kernels multiply with the weights of all but the input projection themselves, beside
    any adapter (`selective_scan_interface.py`, `ssd_combined.py`).
    """
    spec = model.recurrent
    if spec is None or not lora.is_on_all:
        return ()
    first, *_, last = [(each.inputs, each.outputs) for each in recurrent_products(model)]
    # Only the sums over matrices count, not which of them is how wide.
    read = (first, *((first[0], 0),) * (spec.in_projections - 1))
    return read if spec.kind in ("mamba", "mamba2") else (*read, last)
