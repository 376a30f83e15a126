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
from collections.abc import Iterator

from dsforge.errors import Problem, SpecError
from dsforge.estimate.params import parameters
from dsforge.plan import Reason
from dsforge.specs import ModelSpec
from dsforge.units import count, parse_count

HEAD_SIZE = 128
WIDTH_PER_LAYER = 128
FFN_MULTIPLE = 256
GROUPED_ABOVE, KV_HEADS = 30_000_000_000, 8
UNTIED_ABOVE = 1_000_000_000
SMALLEST, LARGEST = 100_000_000, 10_000_000_000_000
TOLERANCE = 0.03
HEAD_STEPS = ((32, 8), (16, 2), (0, 1))  # heads, and from there on a multiple of this

# (layers, and from there on a multiple of this), deepest first
LayerSteps = tuple[tuple[int, int], ...]
LLAMA_STEPS: LayerSteps = ((64, 8), (24, 4), (0, 2))  # its MLP takes up the rest
GPT_STEPS: LayerSteps = ((64, 4), (24, 2), (0, 1))  # its MLP is fixed

_SIZE = re.compile(r"(?P<kind>llama|gpt)?[-_ ]?(?P<size>\d+(?:\.\d+)?[mbt])", re.IGNORECASE)


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
        message = f"model size (={text.strip()}) must lie between 100m and 10t parameters"
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
    grouped = size > GROUPED_ABOVE
    usual_ffn = 3.5 if grouped else 8 / 3
    best: tuple[float, ModelSpec] | None = None
    for hidden, layers in _candidates(size, layer_steps=LLAMA_STEPS):
        heads = hidden // HEAD_SIZE
        model = ModelSpec(
            name="llama-like",
            model_type="llama",
            layers=layers,
            hidden_size=hidden,
            ffn_hidden_size=FFN_MULTIPLE,
            attention_heads=heads,
            kv_heads=KV_HEADS if grouped else heads,
            head_size=HEAD_SIZE,
            vocab_size=32000,
            embedding_size=hidden,
            max_position_embeddings=8192,
            tied_embeddings=size < UNTIED_ABOVE,
            gated_mlp=True,
        )
        least = parameters(model)
        rest = (size - least) / (3 * hidden * layers)
        ffn = FFN_MULTIPLE * (1 + max(0, round(rest / FFN_MULTIPLE)))
        model = model.model_copy(update={"ffn_hidden_size": ffn})
        whole = least + 3 * hidden * layers * (ffn - FFN_MULTIPLE)
        error = abs(whole / size - 1)
        best = _better(best, model, error, abs(math.log(ffn / (usual_ffn * hidden))))
    return _chosen(best, size)


def _gpt_like(size: int) -> ModelSpec:
    """The GPT-like shape (MLP of four hidden sizes) nearest to practice."""
    best: tuple[float, ModelSpec] | None = None
    for hidden, layers in _candidates(size, layer_steps=GPT_STEPS):
        model = ModelSpec(
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
        )
        best = _better(best, model, abs(parameters(model) / size - 1), 0.0)
    return _chosen(best, size)


def _candidates(size: int, *, layer_steps: LayerSteps) -> Iterator[tuple[int, int]]:
    """Hidden sizes and depths around the usual ratio: 12 x layers x hidden^2 parameters."""
    usual = (size * WIDTH_PER_LAYER / 12) ** (1 / 3)
    narrowest, widest = max(HEAD_SIZE, usual / 1.6), 1.6 * usual + 8 * HEAD_SIZE
    for heads in range(int(narrowest / HEAD_SIZE), math.ceil(widest / HEAD_SIZE)):
        hidden = heads * HEAD_SIZE
        if heads % next(step for least, step in HEAD_STEPS if heads >= least):
            continue
        depth = size / (12 * hidden**2)
        step = next(step for least, step in layer_steps if depth >= least)
        fewest = step * max(1, math.floor(depth * 0.7 / step))
        for layers in range(fewest, int(depth * 1.3) + step, step):
            yield hidden, layers


def _better(
    best: tuple[float, ModelSpec] | None, model: ModelSpec, error: float, unusual: float
) -> tuple[float, ModelSpec] | None:
    """The candidate where it is within the tolerance and more usual than the best so far."""
    if error > TOLERANCE:
        return best
    aspect = abs(math.log(model.hidden_size / model.layers / WIDTH_PER_LAYER))
    cost = aspect + unusual + 10 * error
    return (cost, model) if best is None or cost < best[0] else best


def _chosen(best: tuple[float, ModelSpec] | None, size: int) -> ModelSpec:
    if best is None:
        message = f"no well-shaped model has {count(size)} parameters within 3 %"
        raise SpecError((Problem("model-size", message, "try a size close to it"),))
    return best[1]
