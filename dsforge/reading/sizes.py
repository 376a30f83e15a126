"""Models of which only the size is known: `7b` is a Llama-like one, `gpt-7b` a GPT-like one.

The shapes follow practice, so that what is planned for them holds for a real model of that size:
a hidden size of 128 per layer (Llama 7B and 13B, GPT-3 175B), heads of 128, an MLP of 8/3 hidden
sizes (Llama 1), or 3.5 with 8 key/value heads above 30 billion parameters (Llama 2 70B, Llama 3).
Heads come in eights (from a width of 4096 on), for tensor parallelism, and deep models have a
number of layers that pipeline stages divide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from dsforge.errors import Problem, SpecError
from dsforge.estimate.params import parameters
from dsforge.plan import Reason
from dsforge.specs import DropoutSpec, ModelSpec
from dsforge.units import count, parse_count

HEAD_SIZE = 128
WIDTH_PER_LAYER = 128
FFN_MULTIPLE = 256
GROUPED_ABOVE, KV_HEADS = 30_000_000_000, 8
UNTIED_ABOVE = 1_000_000_000
SMALLEST, LARGEST = 100_000_000, 10_000_000_000_000
TOLERANCE = 0.03
GPT_DROPOUT = DropoutSpec(attention=0.1, attention_output=0.1, mlp_output=0.1, embedding=0.1)
HEAD_STEPS = ((32, 8), (16, 2), (0, 1))  # heads, and from there on a multiple of this

# (layers, and from there on a multiple of this), deepest first
LayerSteps = tuple[tuple[int, int], ...]
LLAMA_STEPS: LayerSteps = ((64, 8), (24, 4), (0, 2))  # its MLP takes up the rest
GPT_STEPS: LayerSteps = ((64, 4), (24, 2), (0, 1))  # its MLP is fixed

_SIZE = re.compile(r"(?:(?P<kind>llama|gpt)[-_ ]?)?(?P<size>\d+(?:\.\d+)?[mbt])", re.IGNORECASE)


class _Shape(NamedTuple):
    """A candidate: sizes, how far its parameters are from those asked for, how odd its MLP is."""

    hidden: int
    layers: int
    ffn: int
    error: float
    unusual: float

    def cost(self) -> float:
        """Distance from practice; smaller is better."""
        aspect = abs(math.log(self.hidden / self.layers / WIDTH_PER_LAYER))
        return aspect + self.unusual + 10 * self.error


def sized_model(text: str) -> tuple[ModelSpec, tuple[Reason, ...]] | None:
    """A model for a text such as `7b` or `gpt-1.3b`; none where the text is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    try:
        size = parse_count(match["size"])
    except ValueError:  # larger than any count
        size = LARGEST + 1
    if not SMALLEST <= size <= LARGEST:
        message = f"model size (={text.strip()}) must be between 100m and 10t parameters"
        raise SpecError((Problem("model-size", message),))
    like_gpt = (match["kind"] or "").lower() == "gpt"
    model = _gpt_like(size) if like_gpt else llama_like(size)
    model = model.model_copy(update={"name": f"{model.name}-{match['size'].lower()}"})
    return model, (Reason(rule="model-size", message=_described(model)),)


def _described(model: ModelSpec) -> str:
    """The shape in words."""
    return (
        f"only a size was given: {model.name} has {model.layers} layers, hidden size "
        f"{model.hidden_size}, MLP {model.ffn_hidden_size}, {model.attention_heads} heads of "
        f"{model.head_size}, {model.kv_heads} key/value heads, vocabulary {model.vocab_size}: "
        f"{count(parameters(model))} parameters"
    )


def llama_like(size: int) -> ModelSpec:
    """The Llama-like shape nearest to practice within 3 % of a size. SpecError if none is."""
    usual_ffn = 3.5 if size > GROUPED_ABOVE else 8 / 3
    shapes = []
    for hidden, depths in _widths(size, LLAMA_STEPS):
        fixed, each = _line(partial(_llama, size, hidden, FFN_MULTIPLE))
        for layers in depths:
            least = fixed + layers * each
            steps = max(0, round((size - least) / (3 * hidden * layers * FFN_MULTIPLE)))
            ffn = FFN_MULTIPLE * (1 + steps)
            whole = least + 3 * hidden * layers * (ffn - FFN_MULTIPLE)
            unusual = abs(math.log(ffn / (usual_ffn * hidden)))
            shapes.append(_Shape(hidden, layers, ffn, abs(whole / size - 1), unusual))
    best = _chosen(shapes, size)
    return _llama(size, best.hidden, best.ffn, best.layers)


def _llama(size: int, hidden: int, ffn: int, layers: int) -> ModelSpec:
    heads = hidden // HEAD_SIZE
    return ModelSpec(
        name="llama-like",
        model_type="llama",
        layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        attention_heads=heads,
        kv_heads=KV_HEADS if size > GROUPED_ABOVE else heads,
        head_size=HEAD_SIZE,
        vocab_size=32000,
        embedding_size=hidden,
        max_position_embeddings=8192,
        tied_embeddings=size < UNTIED_ABOVE,
        gated_mlp=True,
    )


def _gpt_like(size: int) -> ModelSpec:
    """The GPT-like shape (MLP of four hidden sizes) nearest to practice."""
    shapes = []
    for hidden, depths in _widths(size, GPT_STEPS):
        fixed, each = _line(partial(_gpt, hidden))
        shapes += [
            _Shape(hidden, layers, 4 * hidden, abs((fixed + layers * each) / size - 1), 0.0)
            for layers in depths
        ]
    best = _chosen(shapes, size)
    return _gpt(best.hidden, best.layers)


def _gpt(hidden: int, layers: int) -> ModelSpec:
    return ModelSpec(
        name="gpt-like",
        model_type="gpt2",
        layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        attention_heads=hidden // HEAD_SIZE,
        kv_heads=hidden // HEAD_SIZE,
        head_size=HEAD_SIZE,
        vocab_size=50257,
        embedding_size=hidden,
        max_position_embeddings=2048,
        tied_embeddings=True,
        activation="gelu_new",
        gated_mlp=False,
        norm="layernorm",
        position="learned",
        qkv_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        dropout=GPT_DROPOUT,
        narrow_softmax=True,
    )


def _line(model_of: Callable[[int], ModelSpec]) -> tuple[int, int]:
    """Parameters outside the layers, and of each of them: all are alike."""
    one, two = parameters(model_of(1)), parameters(model_of(2))
    return 2 * one - two, two - one


def _widths(size: int, layer_steps: LayerSteps) -> Iterator[tuple[int, range]]:
    """Hidden sizes with depths around the usual ratio: 12 x layers x hidden^2 parameters."""
    usual = (size * WIDTH_PER_LAYER / 12) ** (1 / 3)
    narrowest, widest = max(HEAD_SIZE, usual / 1.6), 1.6 * usual + 8 * HEAD_SIZE
    for heads in range(int(narrowest / HEAD_SIZE), math.ceil(widest / HEAD_SIZE)):
        hidden = heads * HEAD_SIZE
        if heads % next(step for least, step in HEAD_STEPS if heads >= least):
            continue
        depth = size / (12 * hidden**2)
        step = next(step for least, step in layer_steps if depth >= least)
        fewest = step * max(1, math.floor(depth * 0.7 / step))
        yield hidden, range(fewest, int(depth * 1.3) + step, step)


def _chosen(shapes: list[_Shape], size: int) -> _Shape:
    """The most usual shape within the tolerance."""
    close = [shape for shape in shapes if shape.error <= TOLERANCE]
    if not close:
        message = f"no standard model shape has {count(size)} parameters within 3 %"
        raise SpecError((Problem("model-size", message, "try a size close to it"),))
    return min(close, key=_Shape.cost)
