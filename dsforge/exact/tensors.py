"""The parameter tensors of a dense decoder, one by one, in the order that the engine sees.

Sums are enough for prices (`params`), but the engine pads tensor by tensor and keeps small ones
whole, so the simulator needs the list. Order: as transformers registers them in Llama and its
kin (Mistral, Qwen2, Qwen3, SmolLM): attention, MLP, norms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.errors import Problem, SpecError
from dsforge.estimate.params import parameter_counts
from dsforge.exact.residency import Tensor
from dsforge.specs import LoraSpec, ModelSpec

QKV_PROJECTIONS = 3  # query, key and value come first in a layer


class _Linear(NamedTuple):
    """A matrix with its bias, as far as it has one."""

    inputs: int
    outputs: int
    bias: bool


@lru_cache(maxsize=64)
def parameter_tensors(model: ModelSpec, lora: LoraSpec | None = None) -> tuple[Tensor, ...]:
    """Every parameter tensor of a model; with adapters only those are trainable.

    Raises SpecError for models that are not dense decoders like Llama.
    """
    trained = lora is None
    hidden = model.hidden_size
    found = [Tensor(model.vocab_size * hidden, trained, trained or model.tied_embeddings)]
    for layer in range(model.layers):
        for index, linear in enumerate(_linears(model)):
            # With adapters nothing before the first query, key and value wants a gradient.
            reads = trained or layer > 0 or index >= QKV_PROJECTIONS
            found += _linear(linear, lora, in_backward=reads)
        found += [Tensor(hidden, trained)] * model.norms_per_layer
    found += [Tensor(hidden, trained)] * model.final_norm
    found += [] if model.tied_embeddings else [Tensor(model.vocab_size * hidden, trained)]
    whole = sum(t.elements for t in found if trained or not t.trainable)
    if whole != parameter_counts(model).total:
        message = f"{model.name} is not a dense decoder like Llama: its tensors are not listed"
        hint = "`dsforge rehearse` counts them in the engine itself"
        raise SpecError((Problem("exact-model", message, hint),))
    return tuple(found)


def _linears(model: ModelSpec) -> tuple[_Linear, ...]:
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    query, key = model.attention_heads * model.head_size, model.kv_heads * model.head_size
    bias = model.qkv_bias
    return (
        _Linear(hidden, query, bias),
        _Linear(hidden, key, bias),
        _Linear(hidden, key, bias),
        _Linear(query, hidden, model.attention_out_bias),
        *(_Linear(hidden, ffn, model.mlp_bias) for _ in range(2 if model.gated_mlp else 1)),
        _Linear(ffn, hidden, model.mlp_bias),
    )


def _linear(linear: _Linear, lora: LoraSpec | None, *, in_backward: bool) -> list[Tensor]:
    """Matrix, bias and, with LoRA (arXiv 2106.09685), A of (r, inputs) and B of (outputs, r)."""
    tensors = [Tensor(linear.inputs * linear.outputs, lora is None, in_backward)]
    if linear.bias:
        tensors.append(Tensor(linear.outputs, lora is None, in_backward))
    if lora is not None:
        tensors += [Tensor(lora.rank * linear.inputs), Tensor(linear.outputs * lora.rank)]
    return tensors
