"""Dropout in training: which places of a model drop, and the masks that backward keeps of them.

On CUDA a mask has one byte an element (torch, `native_dropout`); flash attention keeps none of its
scores, but the state of the random numbers. What dropout of kept scores takes stands with the
scores, in `activations.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.specs import DropoutSpec, ModelSpec
from dsforge.strategy import Execution, Strategy

HALVES = 2
MASK_BYTES = 1  # of an element that is kept or dropped


class Dropped(NamedTuple):
    """Places that drop in a run."""

    attention: bool = False
    attention_output: bool = False
    mlp_inner: bool = False
    mlp_output: bool = False
    embedding: bool = False


# What scripts mean by dropout where the config has none: Megatron's --hidden-dropout and
# --attention-dropout.
STATED = Dropped(attention=True, attention_output=True, mlp_output=True, embedding=True)
NONE = Dropped()


def dropped(model: ModelSpec, run: Execution) -> Dropped:
    """Places that drop: none unless the run has dropout, else those of the model's config."""
    if not run.dropout:
        return NONE
    return _stated(model.dropout) if drops(model) else STATED


def drops(model: ModelSpec) -> bool:
    """Whether a model drops anything by its config."""
    return any(_stated(model.dropout))


def dropped_width(model: ModelSpec, run: Execution, *, moe_layer: bool = False) -> float:
    """Elements of the hidden size that a layer drops for one token."""
    places = dropped(model, run)
    mlps = 1 if moe_layer else model.dense_mlps
    vectors = places.attention_output * model.attentions + places.mlp_output * mlps
    return vectors * model.hidden_size


def inner_width(model: ModelSpec, run: Execution, *, moe_layer: bool = False) -> float:
    """Elements inside the MLP that a layer drops for one token; experts drop none there."""
    if moe_layer or not dropped(model, run).mlp_inner:
        return 0.0
    return 1.0 * model.ffn_hidden_size * model.dense_mlps


def layer_mask_bytes(model: ModelSpec, strategy: Strategy, *, moe_layer: bool) -> float:
    """Bytes of one token's masks in a layer on this rank, without those of kept scores."""
    run, tp = strategy.runs_as, strategy.layout.tensor_parallel_size
    whole = dropped_width(model, run, moe_layer=moe_layer)
    inner = inner_width(model, run, moe_layer=moe_layer) / tp
    return MASK_BYTES * (whole / (tp if strategy.sequence_parallel else 1) + inner)


def edge_mask_bytes(model: ModelSpec, strategy: Strategy) -> float:
    """Bytes of one token's masks where it enters the layers; T5's halves drop at both ends."""
    if not dropped(model, strategy.runs_as).embedding:
        return 0.0
    cut = strategy.layout.tensor_parallel_size if strategy.sequence_parallel else 1
    width = model.embedding_size if model.factored_embedding else model.hidden_size
    return MASK_BYTES * (2 * HALVES if model.is_two_halves else 1) * width / cut


def _stated(spec: DropoutSpec) -> Dropped:
    """The places with a probability above 0; both types name the same places."""
    return Dropped(**{place: chance > 0 for place, chance in spec})
