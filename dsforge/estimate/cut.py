"""The one cut of a model into pipeline stages, that memory, time and files rest on.

Every stage is listed, as any of them may be the fullest or the slowest: an uneven cut gives the
inner stages more layers than the ends, experts begin behind the dense layers, the last stage has
the head. Of stages that hold the same, the first one stands for all: it has the most micro batches
in flight. What another kind exceeds in everything is left out of `kinds`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from dsforge.layout import layer_split
from dsforge.specs import ModelSpec
from dsforge.strategy import Strategy, Trainer
from dsforge.traced import counted


LAYERS = "layers of the pipeline stage"
LATER = "pipeline stages behind it: it holds a micro batch for each"


class Stage(NamedTuple):
    """A pipeline stage: how many layers, and what stands before and after them."""

    layers: int
    moe_layers: int
    has_embedding: bool
    has_head: bool
    later: int = 0  # stages behind it

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - self.moe_layers

    def named(self, of: float) -> Stage:
        """The same with a name for its numbers, where one that they follow from is traced."""
        sparse = self.moe_layers
        if sparse:
            sparse = counted(sparse, "stage_moe_layers", "layers", of=of, why="those with experts")
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
    return stages(model, pp, strategy.runs_as.trainer, virtual)


def kinds_of(model: ModelSpec, strategy: Strategy) -> tuple[Stage, ...]:
    """The stages of a strategy that no other of its stages exceeds."""
    pp, virtual = strategy.layout.pipeline_parallel_size, strategy.virtual_stages
    return kinds(model, pp, strategy.runs_as.trainer, virtual)


@lru_cache(maxsize=4096)
def stages(
    model: ModelSpec, pp: int, trainer: Trainer = "megatron", virtual: int = 1
) -> tuple[Stage, ...]:
    """Every pipeline stage in order; interleaved, a stage holds every pp-th chunk of the model."""
    reached = [0, *accumulate(_chunks(model, pp, trainer, virtual))]
    experts = [0, *accumulate(model.is_moe_layer(layer) for layer in range(model.layers))]
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
            )
        )
    return tuple(found)


@lru_cache(maxsize=4096)
def kinds(
    model: ModelSpec, pp: int, trainer: Trainer = "megatron", virtual: int = 1
) -> tuple[Stage, ...]:
    """The stages that no other exceeds, in order: one of them is the fullest and the slowest."""
    first = {stage[:4]: stage for stage in reversed(stages(model, pp, trainer, virtual))}
    found = sorted(first.values(), key=lambda stage: -stage.later)
    return tuple(
        stage
        for stage in found
        if not any(other is not stage and other.exceeds(stage) for other in found)
    )


def _chunks(model: ModelSpec, pp: int, trainer: Trainer, virtual: int) -> tuple[int, ...]:
    """Layers of each chunk in the order in which a token passes them."""
    if trainer == "nanotron" and pp > 1:
        return _by_cost(model, pp)
    split, idle = layer_split(model.layers, pp), (0,) * pp * (virtual - 1)
    if split is None:  # no engine takes it; a price is asked for all the same
        share, more = divmod(model.layers, pp)
        return tuple(share + (stage < more) for stage in range(pp)) + idle
    if virtual == 1 or not split.interleaves(virtual):
        return split.of_stages(pp) + idle
    share, ends = split.middle // virtual, int(split.ends_count)
    return (share - ends, *(share,) * (pp * virtual - 2), share - ends)


def _by_cost(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of each stage in nanotron (`NanotronModel.get_block_compute_costs`).

    A stage is full with the layer that takes the sum beyond its share, the head counted in it.
    """
    query = model.attention_heads * model.head_size
    layer = 4 * query * model.hidden_size + 3 * model.hidden_size * model.ffn_hidden_size
    total = model.layers * layer + model.vocab_size * model.hidden_size
    filled, reached, stage = [0] * pp, 0, 0
    for _ in range(model.layers):
        filled[stage] += 1
        reached += layer
        if reached * pp > total * (stage + 1) and stage < pp - 1:
            stage += 1
    return tuple(filled)
