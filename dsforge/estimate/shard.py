"""Parameters that one rank holds before ZeRO shards them: after tensor, pipeline, expert cuts.

The fullest rank is the first stage (embedding, most micro batches in flight) or the last one
(output head, logits); both are priced, and the fuller one counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.params import lora_parameters, parameter_counts
from dsforge.estimate.quantised import quantised_elements
from dsforge.layout import Layout, layer_split
from dsforge.specs import ModelSpec, Workload


class Stage(NamedTuple):
    """A pipeline stage: how many layers, and what stands before and after them."""

    layers: int
    moe_layers: int
    has_embedding: bool
    has_head: bool


class RankParameters(NamedTuple):
    """Elements on one rank. Experts are sharded over fewer ranks than the rest, so kept apart."""

    shared: int
    experts: int
    trainable_shared: int
    trainable_experts: int
    quantised: int = 0  # of the shared ones, frozen in 4 bits

    @property
    def total(self) -> int:
        """Elements in the compute precision."""
        return self.shared + self.experts

    @property
    def trainable(self) -> int:
        """Elements with a gradient."""
        return self.trainable_shared + self.trainable_experts


class _Pieces(NamedTuple):
    """Elements by where a pipeline puts them."""

    dense_layer: int
    moe_layer: int  # without its routed experts
    experts: int  # of one MoE layer
    before: int
    words: int
    after: int


@lru_cache(maxsize=1024)
def end_stages(model: ModelSpec, pp: int, by_cost: bool = False) -> tuple[Stage, ...]:
    """The first and the last pipeline stage; the same one where there is no pipeline.

    `by_cost`: nanotron fills stages up to an equal share of the matrix elements of layers and head.
    """
    if pp == 1:
        return (Stage(model.layers, model.moe_layers, has_embedding=True, has_head=True),)
    split = layer_split(model.layers, pp)
    first = last = -(-model.layers // pp)
    if by_cost:
        first, last = _by_cost(model, pp)
    elif split is not None:
        first, last = split.first, split.last
    layers = model.layers
    sparse = [sum(map(model.is_moe_layer, r)) for r in (range(first), range(layers - last, layers))]
    return (
        Stage(first, sparse[0], has_embedding=True, has_head=False),
        Stage(last, sparse[1], has_embedding=False, has_head=True),
    )


def _by_cost(model: ModelSpec, pp: int) -> tuple[int, int]:
    """Layers of the first and last stage in nanotron (`NanotronModel.get_block_compute_costs`).

    A stage is full with the layer that takes the sum beyond its share.
    """
    query = model.attention_heads * model.head_size
    layer = 4 * query * model.hidden_size + 3 * model.hidden_size * model.ffn_hidden_size
    total = model.layers * layer + model.vocab_size * model.hidden_size
    first, before_last = (
        min(model.layers, total * stages // (pp * layer) + 1) for stages in (1, pp - 1)
    )
    return first, model.layers - before_last


@lru_cache(maxsize=64)
def _pieces(model: ModelSpec) -> _Pieces:
    """The counts of the model, each computed once: the planner asks thousands of times."""
    counts = parameter_counts(model)
    return _Pieces(
        dense_layer=counts.dense_layer,
        moe_layer=counts.moe_layer_shared,
        experts=counts.moe_layer_experts,
        before=counts.embedding + counts.position_embedding + counts.other,
        words=counts.embedding,
        after=counts.head + counts.head_bias + counts.final_norm,
    )


def rank_parameters(
    model: ModelSpec, workload: Workload, layout: Layout, stage: Stage
) -> RankParameters:
    """Elements on one rank of a stage. A tied head on another stage is a copy of the embedding."""
    pieces, tp = _pieces(model), layout.tensor_parallel_size
    shared = (stage.layers - stage.moe_layers) * pieces.dense_layer
    shared += stage.moe_layers * pieces.moe_layer
    shared += pieces.before if stage.has_embedding else 0
    shared += pieces.after if stage.has_head else 0
    if stage.has_head and model.tied_embeddings and not stage.has_embedding:
        shared += pieces.words
    shared = -(-shared // tp)
    experts = -(-stage.moe_layers * pieces.experts // (tp * layout.expert_parallel_size))
    if workload.method == "full" or workload.lora is None:
        return RankParameters(shared, experts, shared, experts)
    adapters = lora_parameters(model, workload.lora) * stage.layers // model.layers // tp
    packed = quantised_elements(model) if workload.in_4_bits else 0
    packed = packed * stage.layers // model.layers // tp
    return RankParameters(shared + adapters, experts, adapters, 0, packed)
