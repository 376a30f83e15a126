"""The forward pass of a dense decoder on an autograd tape, written as transformers' Llama is.

The same local names and returns free the same tensors at the same time. Parameters come in the
order of `tensors.parameter_tensors`; `Weights` does what the engine does before and after each
module, in forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from dsforge.exact import torch_operations as ops
from dsforge.exact.autograd_sim import Block, Gradients, Value
from dsforge.exact.torch_operations import FLOAT32_BYTES, Matrix, OpContext
from dsforge.specs import LoraSpec, ModelSpec


class Weights(Protocol):
    """The engine's side of a module's parameters, by their place in the model."""

    def value(self, index: int) -> Value:
        """The parameter on the tape."""

    def before(self, indices: tuple[int, ...], *, forward: bool) -> None:
        """The module begins."""

    def after(self, indices: tuple[int, ...], *, forward: bool) -> None:
        """The module ends."""


class Decoder(NamedTuple):
    """The model, its micro batch and its weights."""

    context: OpContext
    model: ModelSpec
    lora: LoraSpec | None
    recompute: bool
    partitioned: bool  # ZeRO-3: linear layers are the engine's own
    adapter_bytes: int  # of an element of the adapters
    weights: Weights


class _Pair(NamedTuple):
    """Places of a linear layer's tensors: weight, bias, and the adapters A and B."""

    weight: int
    bias: int | None
    adapters: tuple[int, int] | None


class _Places(NamedTuple):
    """Places of a layer's tensors."""

    linears: tuple[_Pair, ...]
    norms: tuple[int, ...]


def loss(decoder: Decoder) -> Value:
    """The loss of one micro batch, with everything that its backward pass needs."""
    model, context = decoder.model, decoder.context
    counter = iter(range(10**9))
    embedded = next(counter)
    layers = [_places(decoder, counter) for _ in range(model.layers)]
    final = next(counter)
    head = embedded if model.tied_embeddings else next(counter)
    hidden = _hidden(decoder, embedded, layers, final)
    matrix = Matrix(model.hidden_size, model.vocab_size, decoder.weights.value(head))
    logits = _multiplied(decoder, (head,), hidden, matrix)
    wide = ops.cast(context, logits, context.element_bytes, to=FLOAT32_BYTES)
    return ops.cross_entropy(context, wide)


def _hidden(decoder: Decoder, embedded: int, layers: list[_Places], final: int) -> Value:
    """What leaves the last norm; the embedded tokens live until then."""
    context, weights = decoder.context, decoder.weights
    table = weights.value(embedded)
    tokens = _module(
        decoder,
        (embedded,),
        Value(None, 0),
        lambda _: ops.embedding(context, decoder.model.hidden_size, table),
    )
    hidden = tokens
    for places in layers:
        hidden = _layer(decoder, hidden, places)
    return _norm(decoder, hidden, final)


def _places(decoder: Decoder, counter: Iterator[int]) -> _Places:
    model, adapted = decoder.model, decoder.lora is not None
    biases = [model.qkv_bias] * 3 + [model.attention_out_bias]
    biases += [model.mlp_bias] * (3 if model.gated_mlp else 2)
    linears = []
    for biased in biases:
        weight = next(counter)
        bias = next(counter) if biased else None
        linears.append(_Pair(weight, bias, (next(counter), next(counter)) if adapted else None))
    return _Places(tuple(linears), tuple(next(counter) for _ in range(model.norms_per_layer)))


def _layer(decoder: Decoder, hidden: Value, places: _Places) -> Value:
    if decoder.recompute:
        return _recomputed(decoder, hidden, places)
    return _block(decoder, hidden, places)


def _block(decoder: Decoder, hidden: Value, places: _Places) -> Value:
    """LlamaDecoderLayer: attention and MLP, each added to what came in."""
    context, linears = decoder.context, places.linears
    residual = hidden
    hidden = _norm(decoder, hidden, places.norms[0])
    hidden = _module(decoder, (), hidden, lambda one: _attention(decoder, one, linears[:4]))
    hidden = ops.add(context, residual, hidden)
    residual = hidden
    hidden = _norm(decoder, hidden, places.norms[1])
    hidden = _module(decoder, (), hidden, lambda one: _mlp(decoder, one, linears[4:]))
    return ops.add(context, residual, hidden)


def _recomputed(decoder: Decoder, hidden: Value, places: _Places) -> Value:
    """A layer of which only the input is kept; its backward pass runs it again first."""
    tape, size = decoder.context.tape, hidden.size
    wanted = hidden.node is not None

    def again(gradient: Block, saved: Block | None = hidden.block) -> Gradients:
        arrived: Gradients = []
        entry = tape.parameter(size, arrived.append)
        entry.block = saved
        result = _block(decoder, entry if wanted else Value(saved, size), places)
        if result.node is not None:
            tape.backward(result.node, gradient)
        return arrived if wanted else [None]

    with tape.unrecorded():
        result = _block(decoder, Value(hidden.block, size), places)
    return tape.step(result, (hidden,), again)


def _attention(decoder: Decoder, hidden: Value, linears: tuple[_Pair, ...]) -> Value:
    model, context = decoder.model, decoder.context
    queries, keys = model.attention_heads * model.head_size, model.kv_heads * model.head_size
    query = _linear(decoder, hidden, linears[0], (model.hidden_size, queries))
    key = _linear(decoder, hidden, linears[1], (model.hidden_size, keys))
    value = _linear(decoder, hidden, linears[2], (model.hidden_size, keys))
    turned = ops.rotary(context, query), ops.rotary(context, key)
    query, key = turned
    del turned
    hidden = ops.attention(context, query, key, value, heads=model.attention_heads)
    return _linear(decoder, hidden, linears[3], (queries, model.hidden_size))


def _mlp(decoder: Decoder, hidden: Value, linears: tuple[_Pair, ...]) -> Value:
    model, context = decoder.model, decoder.context
    wide = (model.hidden_size, model.ffn_hidden_size)
    inner = ops.activation(context, _linear(decoder, hidden, linears[0], wide))
    if model.gated_mlp:
        inner = ops.multiply(context, inner, _linear(decoder, hidden, linears[1], wide))
    return _linear(decoder, inner, linears[-1], wide[::-1])


def _norm(decoder: Decoder, hidden: Value, place: int) -> Value:
    weight = decoder.weights.value(place)
    return _module(
        decoder, (place,), hidden, lambda one: ops.rms_norm(decoder.context, one, weight)
    )


def _linear(decoder: Decoder, value: Value, pair: _Pair, shape: tuple[int, int]) -> Value:
    """A linear layer, with its adapters where it has them (peft/tuners/lora/layer.py)."""
    weights = decoder.weights
    bias = None if pair.bias is None else weights.value(pair.bias)
    matrix = Matrix(*shape, weights.value(pair.weight), bias)
    own = (pair.weight,) if pair.bias is None else (pair.weight, pair.bias)
    result = _multiplied(decoder, own, value, matrix)
    if pair.adapters is None or decoder.lora is None:
        return result
    rank, (down, up) = decoder.lora.rank, pair.adapters
    low = Matrix(shape[0], rank, weights.value(down))
    high = Matrix(rank, shape[1], weights.value(up))
    context, size = decoder.context, decoder.context.element_bytes
    value = ops.cast(context, value, size, to=decoder.adapter_bytes)
    added = _multiplied(decoder, (up,), _multiplied(decoder, (down,), value, low), high)
    result = ops.add(context, result, ops.scale(context, added))
    return ops.cast(context, result, decoder.adapter_bytes, to=size)


def _multiplied(decoder: Decoder, places: tuple[int, ...], value: Value, matrix: Matrix) -> Value:
    """A matrix product as a module."""
    context, own = decoder.context, decoder.partitioned
    return _module(
        decoder, places, value, lambda one: ops.linear(context, one, matrix, partitioned=own)
    )


def _module(
    decoder: Decoder, places: tuple[int, ...], value: Value, work: Callable[[Value], Value]
) -> Value:
    """A module with parameters: the engine is told as it begins and ends, both ways."""
    tape, weights = decoder.context.tape, decoder.weights

    def leave(gradient: Block) -> Gradients:
        weights.after(places, forward=False)
        return [gradient]

    def enter(gradient: Block) -> Gradients:
        weights.before(places, forward=False)
        return [gradient]

    weights.before(places, forward=True)
    if decoder.partitioned:
        value = tape.view(value, (value,), leave)
    found = work(value)
    if decoder.partitioned:
        found = tape.view(found, (found,), enter)
    weights.after(places, forward=True)
    return found
