"""One micro batch on the slowest pipeline stage: products, collectives inside layers, the host."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.activation_traffic import NOTHING, PerToken, layer_traffic
from dsforge.estimate.compute import expert_host_s, layer_host_s
from dsforge.estimate.cut import Stage
from dsforge.estimate.family_costs import FamilyCosts
from dsforge.estimate.layer_time import layer_times, setting_of, tower_s
from dsforge.estimate.linear_time import HeadTime, LinearTime
from dsforge.estimate.params import moe_layers
from dsforge.strategy import Strategy
from dsforge.traced import TRACED, label, maximum, named

MEAN = "mean of all pipeline stages"
INSIDE = "collectives inside the layers"
ALONE = "matrix products, attention and memory-bound kernels"
LAUNCHED = "with its collectives; at least the time in which the host launches it"


class MicroBatchTime(NamedTuple):
    """Seconds of one micro batch, forward and backward: what sets the pace of a step."""

    compute_s: float  # on the slowest stage
    exposed_s: float  # of collectives inside its layers
    mean_s: float  # of a stage, both together
    sent_bytes: float
    layers: int  # of the slowest stage


class StageTimes(NamedTuple):
    """Layers of both kinds and the head as lines in tokens, and the stages that have them."""

    kinds: tuple[Stage, ...]  # of stages: one of them is the slowest
    pipeline: int  # stages
    layers: int  # of the model
    moe_layers: int
    dense: LinearTime
    sparse: LinearTime
    exchanged: PerToken  # in a dense layer
    sparse_exchanged: PerToken
    head: HeadTime
    host_s: float  # the host's time for a layer: it takes no less
    expert_host_s: float  # more of it, for a layer with experts

    def at(self, tokens: float) -> MicroBatchTime:
        """The work of one micro batch of so many tokens on a rank."""
        dense_s, exposed_s, sparse_s, sparse_exposed_s = self._layers(tokens)
        head_s = self.head.at(tokens)
        slow = self._slowest(dense_s, sparse_s, head_s)
        inside_s = slow.dense_layers * exposed_s + slow.moe_layers * sparse_exposed_s
        sent = slow.dense_layers * self.exchanged.sent_bytes
        sent += slow.moe_layers * self.sparse_exchanged.sent_bytes
        slowest_s = slow.dense_layers * dense_s + slow.moe_layers * sparse_s
        slowest_s += slow.has_head * head_s
        all_s = (self.layers - self.moe_layers) * dense_s + self.moe_layers * sparse_s + head_s
        found = MicroBatchTime(
            slowest_s - inside_s, inside_s, all_s / self.pipeline, tokens * sent, slow.layers
        )
        if tokens.__class__ is TRACED:
            label(head_s, "head_s", "s", "output head and loss")
            label(inside_s, "micro_collectives_s", "s", INSIDE)
            label(found.compute_s, "micro_compute_s", "s", "on the slowest stage, no collectives")
            label(slowest_s, "slowest_stage_s", "s", "one micro batch on the slowest stage")
            label(found.mean_s, "mean_stage_s", "s", MEAN)
        return found

    def slowest(self, tokens: float) -> Stage:
        """The stage that takes longest with so many tokens."""
        dense_s, _, sparse_s, _ = self._layers(tokens)
        return self._slowest(dense_s, sparse_s, self.head.at(tokens))

    def _slowest(self, dense_s: float, sparse_s: float, head_s: float) -> Stage:
        """The stage that takes longest with such layers and such a head."""
        if len(self.kinds) == 1:
            return self.kinds[0]
        busy = [
            s.dense_layers * dense_s + s.moe_layers * sparse_s + s.has_head * head_s
            for s in self.kinds
        ]
        return self.kinds[busy.index(max(busy))]

    def _layers(self, tokens: float) -> tuple[float, float, float, float]:
        """Seconds of a layer and of the collectives in it: a dense one, one with experts."""
        exposed_s = self.exchanged.fixed_s + tokens * self.exchanged.token_s
        busy_s = self.dense.at(tokens)
        dense_s = maximum(busy_s + exposed_s, self.host_s)
        if tokens.__class__ is TRACED:
            label(exposed_s, "layer_collectives_s", "s", INSIDE)
            label(busy_s, "dense_layer_s", "s", ALONE)
            label(dense_s, "layer_s", "s", LAUNCHED)
        if not self.moe_layers:
            return dense_s, exposed_s, 0.0, 0.0
        more_s = self.sparse_exchanged.fixed_s + tokens * self.sparse_exchanged.token_s
        busy_s = self.sparse.at(tokens)
        sparse_s = maximum(busy_s + more_s, self.host_s + self.expert_host_s)
        if tokens.__class__ is TRACED:
            label(more_s, "moe_collectives_s", "s", f"{INSIDE}, one with experts")
            label(busy_s, "moe_layer_s", "s", f"a layer with experts: {ALONE}")
            label(sparse_s, "expert_stage_layer_s", "s", f"a layer with experts: {LAUNCHED}")
        return dense_s, exposed_s, sparse_s, more_s


def stage_times(costs: FamilyCosts, strategy: Strategy) -> StageTimes:
    """The work of any micro batch on the slowest of the pipeline's stages."""
    setting = setting_of(costs.cluster.gpu, costs.workload, strategy)
    each = layer_times(costs.model, setting)
    seen_s = tower_s(costs.model, costs.workload, setting)
    sparse = layer_traffic(costs, strategy, moe_layer=True) if costs.model.moe else NOTHING
    host_s = layer_host_s(costs.cluster, costs.workload, strategy, setting.passes)
    return StageTimes(
        kinds=tuple(load.stage for load in costs.loads),
        pipeline=strategy.layout.pipeline_parallel_size,
        layers=costs.model.depth,
        moe_layers=moe_layers(costs.model) if costs.model.moe else 0,
        dense=each.layer,
        sparse=each.moe_layer,
        exchanged=layer_traffic(costs, strategy, moe_layer=False),
        sparse_exchanged=sparse,
        head=each.head.beside(seen_s) if seen_s else each.head,
        host_s=named(host_s, "host_layer_s", "s", "the host launches a layer's kernels"),
        expert_host_s=expert_host_s(costs.model, strategy, setting.passes),
    )
