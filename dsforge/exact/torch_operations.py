"""The operations of a decoder: what each saves for backward, and the temporaries it allocates.

In the order in which torch 2.13 allocates and frees on CUDA (derivatives.yaml and
FunctionsManual.cpp), as transformers' Llama and its kin call them. Sizes are in bytes; masks,
positions and single numbers are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.exact.autograd_sim import Block, Gradients, Tape, Value

FLOAT32_BYTES = 4


class Matrix(NamedTuple):
    """The weight of a linear layer, and its bias if it has one."""

    inputs: int
    outputs: int
    weight: Value
    bias: Value | None = None


class OpContext(NamedTuple):
    """The tape, and the size of the micro batch that is recorded on it."""

    tape: Tape
    tokens: int
    element_bytes: int


def cast(context: OpContext, value: Value, element_bytes: int, *, to: int) -> Value:
    """The value in elements of another size; itself where they are the same."""
    if element_bytes == to:
        return value
    tape, size = context.tape, value.size
    return tape.result(size // element_bytes * to, (value,), lambda _: [tape.block(size)])


def multiply(context: OpContext, left: Value, right: Value) -> Value:
    """The product, element by element; `right` may be repeated along `left`."""
    tape, wide, narrow = context.tape, left.size, right.size
    wants = left.node is not None, right.node is not None
    kept = (right.block if wants[0] else None, left.block if wants[1] else None)

    def rule(_: Block, saved: object = kept) -> Gradients:
        first = tape.block(wide) if wants[0] else None
        if not wants[1]:
            return [first, None]
        whole = tape.block(wide)
        return [first, whole if narrow == wide else tape.block(narrow)]

    return tape.result(wide, (left, right), rule)


def scale(context: OpContext, value: Value) -> Value:
    """The product with a number."""
    tape, size = context.tape, value.size
    return tape.result(size, (value,), lambda _: [tape.block(size)])


def add(context: OpContext, left: Value, right: Value) -> Value:
    """The sum, in the wider type; both get its gradient, the narrower one a copy in its type."""
    tape, sizes = context.tape, (left.size, right.size)
    wide = max(sizes)

    def rule(gradient: Block) -> Gradients:
        return [gradient if size == wide else tape.block(size) for size in sizes]

    return tape.result(wide, (left, right), rule)


def _inverse_rms(context: OpContext, wide: Value) -> Value:
    """One over the root of the mean square of each row, in float32."""
    tape, size = context.tape, wide.size
    tape.meter.allocate_and_free(size)  # the squares

    def rule(_: Block, saved: object = wide.block) -> Gradients:
        spread, power = tape.block(size), tape.block(size)
        doubled = tape.block(size)
        found = tape.block(size)
        del spread, power, doubled
        return [found]

    return tape.result(FLOAT32_BYTES * context.tokens, (wide,), rule)


def rms_norm(context: OpContext, hidden: Value, weight: Value) -> Value:
    """LlamaRMSNorm: in float32, back in the compute precision, times the weight."""
    size = context.element_bytes
    hidden = cast(context, hidden, size, to=FLOAT32_BYTES)
    hidden = multiply(context, hidden, _inverse_rms(context, hidden))
    return multiply(context, cast(context, hidden, FLOAT32_BYTES, to=size), weight)


def linear(context: OpContext, value: Value, matrix: Matrix, *, partitioned: bool = False) -> Value:
    """A matrix product.

    ZeRO-3's own (runtime/zero/linear.py) keeps its input even for a frozen weight, and makes the
    input's gradient first.
    """
    tape, size = context.tape, value.size
    weight, bias = matrix.weight, matrix.bias
    wants = value.node is not None, weight.node is not None
    biased = bias is not None and bias.node is not None
    out = size // matrix.inputs * matrix.outputs
    kept = value.block if wants[1] or (partitioned and wants[0]) else None

    def rule(_: Block, saved: object = kept) -> Gradients:
        first = tape.block(size) if wants[0] and partitioned else None
        second = tape.block(weight.size) if wants[1] else None
        if wants[0] and not partitioned:
            first = tape.block(size)
        third = [tape.block(bias.size) if biased and bias is not None else None]
        return [first, second, *(third if bias is not None else ())]

    inputs = (value, weight) if bias is None else (value, weight, bias)
    return tape.result(out, inputs, rule)


def embedding(context: OpContext, hidden_size: int, weight: Value) -> Value:
    """The vectors of the tokens; its gradient is as large as the table."""
    tape = context.tape
    size = context.element_bytes * context.tokens * hidden_size
    return tape.result(size, (weight,), lambda _: [tape.block(weight.size)])


def rotary(context: OpContext, value: Value) -> Value:
    """Rotary positions: x cos + (half of it turned round) sin, from a transposed view."""
    tape, size = context.tape, value.size
    held = tape.block(size)  # x cos
    half = tape.block(size // 2)
    turned = tape.block(size)
    del half
    other = tape.block(size)
    del turned

    def rule(_: Block) -> Gradients:
        by_sine, negative = tape.block(size), tape.block(size // 2)
        front = tape.block(size)
        del negative
        back = tape.block(size)
        del by_sine
        both = tape.block(size)
        del front, back
        by_cosine = tape.block(size)
        found = tape.block(size)
        del both, by_cosine
        return [found]

    found = tape.result(size, (_transposed(context, value),), rule)
    del held, other
    return found


def _transposed(context: OpContext, value: Value) -> Value:
    """A transposed view; its gradient is copied into contiguous rows before a matrix takes it."""
    tape, size = context.tape, value.size
    return tape.view(value, (value,), lambda _: [tape.block(size)])


def attention(context: OpContext, query: Value, key: Value, value: Value, *, heads: int) -> Value:
    """Fused attention: keeps its inputs, its result, and a float32 number per head and token."""
    tape = context.tape
    sizes = query.size, key.size, value.size
    statistics = tape.block(FLOAT32_BYTES * heads * context.tokens)
    saved = [query.block, key.block, value.block, statistics]

    def rule(_: Block, saved: list[Block | None] = saved) -> Gradients:
        return [tape.block(size) for size in sizes]

    found = tape.result(query.size, (query, key, value), rule)
    if found.node is not None:
        saved.append(found.block)
    return found


def activation(context: OpContext, value: Value) -> Value:
    """SiLU or GELU as one kernel."""
    tape, size = context.tape, value.size
    kept = value.block if value.node is not None else None

    def rule(_: Block, saved: object = kept) -> Gradients:
        return [tape.block(size)]

    return tape.result(size, (value,), rule)


def cross_entropy(context: OpContext, logits: Value) -> Value:
    """The loss of float32 logits: keeps their log-softmax."""
    tape, size = context.tape, logits.size
    logarithm = tape.block(size)

    def rule(_: Block, saved: object = logarithm) -> Gradients:
        picked = tape.block(size)
        found = tape.block(size)
        del picked
        return [found]

    return tape.result(FLOAT32_BYTES, (logits,), rule)
