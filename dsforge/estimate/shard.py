"""Parameters that one rank holds before ZeRO shards them: after tensor, pipeline, expert cuts."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.cut import Stage
from dsforge.estimate.params import (
    lora_parameters,
    parameter_counts,
    saved_parameters,
    whole_layer_parameters,
)
from dsforge.estimate.quantised import packed_away, quantised_elements
from dsforge.estimate.vision import frozen_parameters, trained_beside_adapters
from dsforge.layout import Layout
from dsforge.specs import ModelSpec, Workload
from dsforge.traced import ceil_div, named


class RankParameters(NamedTuple):
    """Elements on one rank. Experts are sharded over fewer ranks than the rest, so kept apart."""

    shared: int
    experts: int
    trainable_shared: int
    trainable_experts: int
    quantised: int = 0  # of the shared ones, frozen in few bits
    packed_away: int = 0  # elements of the compute precision that packing saves: bits / 16

    @property
    def total(self) -> int:
        """Elements of the rank's layers before sharding."""
        return named(self.shared + self.experts, "held_parameters", "elements")

    @property
    def stored(self) -> int:
        """Elements of the compute precision that the weights take; packed ones count by bytes.

        So does the engine: `ds_numel` of a packed parameter counts elements of its storage.
        """
        return named(self.total - self.packed_away, "stored_parameters", "elements")

    @property
    def packed(self) -> int:
        """Elements of the compute precision that the packed matrices take."""
        return named(self.quantised - self.packed_away, "packed_parameters", "elements")

    @property
    def trainable(self) -> int:
        """Elements with a gradient."""
        trained = self.trainable_shared + self.trainable_experts
        return named(trained, "trained_parameters", "elements")


class _Pieces(NamedTuple):
    """Elements by where a pipeline puts them."""

    dense_layer: int
    moe_layer: int  # without its routed experts
    experts: int  # of one MoE layer
    before: int
    words: int
    norm: int  # the last one, part of `after`
    after: int


@lru_cache(maxsize=64)
def _pieces(model: ModelSpec) -> _Pieces:
    """The counts of the model, each computed once: the planner asks thousands of times."""
    counts = parameter_counts(model)
    return _Pieces(
        dense_layer=counts.dense_layer,
        moe_layer=counts.moe_layer_shared,
        experts=counts.moe_layer_experts,
        before=named(
            counts.embedding + counts.position_embedding + counts.other,
            "stage_embedding_parameters",
            "elements",
            "word and position embeddings, their norm",
        ),
        words=counts.embedding,
        norm=counts.final_norm,
        after=named(
            counts.head + counts.head_bias + counts.final_norm,
            "head_parameters",
            "elements",
            "output head (no matrix if it is tied to the embedding) and the final norm",
        ),
    )


def _copied(model: ModelSpec, stage: Stage) -> int:
    """Elements of a stage that every tensor rank holds: embeddings, and what layers add up with."""
    pieces = _pieces(model)
    found = stage.layers * whole_layer_parameters(model)
    found += pieces.before if stage.has_embedding else 0
    if stage.has_head:
        found += pieces.norm
        found += pieces.words if model.tied_embeddings and not stage.has_embedding else 0
    return named(found, "copied_parameters", "elements", "whole on each tensor rank")


def rank_parameters(
    model: ModelSpec,
    workload: Workload,
    layout: Layout,
    stage: Stage,
    *,
    copies_ends: bool = False,
    expert_modules: bool = False,
) -> RankParameters:
    """Elements on one rank of a stage. A tied head on another stage is a copy of the embedding.

    `copies_ends`: `Engine.copies_ends`; `expert_modules`: `Execution.expert_modules`.
    """
    pieces, tp = _pieces(model), layout.tensor_parallel_size
    shared = stage.dense_layers * pieces.dense_layer + stage.moe_layers * pieces.moe_layer
    shared += pieces.before if stage.has_embedding else 0
    shared += pieces.after if stage.has_head else 0
    if stage.has_head and model.tied_embeddings and not stage.has_embedding:
        shared += pieces.words
    whole = _copied(model, stage) if copies_ends and tp > 1 else 0
    shared = named(whole + ceil_div(shared - whole, tp), "shared_parameters", "elements")
    experts = ceil_div(stage.moe_layers * pieces.experts, tp * layout.expert_parallel_size)
    experts = named(experts, "expert_parameters", "elements")
    if workload.method == "full" or workload.lora is None:
        frozen = frozen_parameters(model, workload) if stage.has_embedding else 0
        trained = shared - ceil_div(frozen, tp) if frozen else shared
        return RankParameters(shared, experts, trained, experts)
    adapters = ceil_div(lora_parameters(model, workload.lora) * stage.layers, model.depth * tp)
    adapters = named(adapters, "adapter_parameters", "elements")
    ends = stage.has_embedding or stage.has_head
    saved = saved_parameters(model, workload.lora) if ends else 0
    saved += trained_beside_adapters(model, workload) if stage.has_embedding else 0
    packed = 0
    if workload.is_quantised:
        packed = quantised_elements(model, expert_modules=expert_modules)
    packed = named(packed * stage.layers // (model.depth * tp), "quantised_parameters", "elements")
    trained = adapters + ceil_div(saved, tp)
    away = packed_away(workload, packed)
    return RankParameters(shared + trained, experts, trained, 0, packed, away)
