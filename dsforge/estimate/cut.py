"""The stages of a pipeline: one split of the model that memory, time and files use.

Every stage is listed, as any of them may be the fullest or the slowest: an uneven cut gives the
inner stages more layers than the ends, experts begin behind the dense layers, the last stage has
the head. Of stages that hold the same, the first one stands for all: it has the most micro batches
in flight. What another kind exceeds in everything is left out of `kinds`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from dsforge.engines.engine import even_stages
from dsforge.specs import ModelSpec
from dsforge.strategy import Strategy
from dsforge.traced import TRACED, counted

StageLayers = Callable[[ModelSpec, int, int], tuple[int, ...]]
LAYERS = "layers of the pipeline stage"
LATER = "later pipeline stages, each with one more micro batch in flight"


class Stage(NamedTuple):
    """A pipeline stage: how many layers, and what stands before and after them."""

    layers: int
    moe_layers: int
    has_embedding: bool
    has_head: bool
    later: int = 0  # stages behind it
    chunks: tuple[int, ...] = ()  # layers of each of its chunks, in the order of the model

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - self.moe_layers

    def named(self, of: float) -> Stage:
        """The same with a name for its numbers, where one that they follow from is traced."""
        if of.__class__ is not TRACED:
            return self
        sparse = self.moe_layers
        if sparse:
            sparse = counted(sparse, "stage_moe_layers", "layers", of=of, why="MoE layers")
        return self._replace(
            layers=counted(self.layers, "stage_layers", "layers", of=of, why=LAYERS),
            moe_layers=sparse,
            later=counted(self.later, "later_stages", "", of=of, why=LATER),
        )

    def exceeds(self, other: Stage) -> bool:
        """Whether it holds all that another stage holds, for as many micro batches."""
        return (
            self.dense_layers >= other.dense_layers
            and self.moe_layers >= other.moe_layers
            and self.has_embedding >= other.has_embedding
            and self.has_head >= other.has_head
            and self.later >= other.later
        )


def stages_of(model: ModelSpec, strategy: Strategy) -> tuple[Stage, ...]:
    """Every pipeline stage of a strategy, in order."""
    pp, virtual = strategy.layout.pipeline_parallel_size, strategy.virtual_stages
    return stages(model, pp, virtual, strategy.engine.stage_layers)


def kinds_of(model: ModelSpec, strategy: Strategy) -> tuple[Stage, ...]:
    """The stages of a strategy that no other of its stages exceeds."""
    pp, virtual = strategy.layout.pipeline_parallel_size, strategy.virtual_stages
    return kinds(model, pp, virtual, strategy.engine.stage_layers)


@lru_cache(maxsize=4096)
def stages(
    model: ModelSpec, pp: int, virtual: int = 1, split: StageLayers = even_stages
) -> tuple[Stage, ...]:
    """Every pipeline stage in order; interleaved, a stage holds every pp-th chunk of the model.

    `split` gives the layers of each chunk: `Engine.stage_layers`.
    """
    reached = [0, *accumulate(split(model, pp, virtual))]
    experts = [0, *accumulate(model.is_moe_layer(layer) for layer in range(model.depth))]
    found = []
    for index in range(pp):
        ends = [(reached[at], reached[at + 1]) for at in range(index, pp * virtual, pp)]
        found.append(
            Stage(
                layers=sum(end - start for start, end in ends),
                moe_layers=sum(experts[end] - experts[start] for start, end in ends),
                has_embedding=index == 0,
                has_head=index == pp - 1,
                later=pp - 1 - index,
                chunks=tuple(end - start for start, end in ends),
            )
        )
    return tuple(found)


@lru_cache(maxsize=4096)
def kinds(
    model: ModelSpec, pp: int, virtual: int = 1, split: StageLayers = even_stages
) -> tuple[Stage, ...]:
    """The stages that no other exceeds, in order: one of them is the fullest and the slowest."""
    first = {stage[:4]: stage for stage in reversed(stages(model, pp, virtual, split))}
    found = sorted(first.values(), key=lambda stage: -stage.later)
    return tuple(
        stage
        for stage in found
        if not any(other is not stage and other.exceeds(stage) for other in found)
    )
