"""Which pipeline stage is the slowest, and how long the others wait for it.

Layers rarely divide evenly over stages, and a large vocabulary makes the last stage the slowest:
its head costs as much as several layers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.params import parameter_counts
from dsforge.layout import layer_split
from dsforge.specs import ModelSpec
from dsforge.strategy import Trainer


class Stages(NamedTuple):
    """Layers of the fullest stage without the head, of the stage with it, mean over stages."""

    body: int
    last: int
    mean: float
    moe_share: float  # of the layers


@lru_cache(maxsize=1024)
def stages(model: ModelSpec, pp: int, trainer: Trainer) -> Stages:
    """How the layers of a model fall on pipeline stages.

    Nanotron cuts by parameters, the head included.
    """
    layers, share = model.layers, model.moe_layers / model.layers
    if pp == 1:
        return Stages(0, layers, layers, share)
    if trainer == "nanotron":
        return _by_cost(model, pp, share)
    split = layer_split(layers, pp)
    if split is None:  # no engine takes it; a price is asked for all the same
        return Stages(-(-layers // pp), layers // pp, layers / pp, share)
    return Stages(max(split.first, split.middle), split.last, layers / pp, share)


def _by_cost(model: ModelSpec, pp: int, share: float) -> Stages:
    """A stage is full as soon as it reaches its share of all parameters that multiply."""
    counts = parameter_counts(model)
    head = model.vocab_size * model.hidden_size / counts.layers[0].total
    costs = [1.0] * model.layers + [head]
    full, reached, stage = sum(costs) / pp, 0.0, 0
    filled = [0] * pp
    for cost in costs[:-1]:
        filled[stage] += 1
        reached += cost
        if reached >= full * (stage + 1) - 1e-9 and stage < pp - 1:
            stage += 1
    body = max((count for index, count in enumerate(filled) if index != stage), default=0)
    return Stages(body, filled[stage], model.layers / pp, share)
