"""One micro batch on the slowest pipeline stage: products, collectives inside layers, the host."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.compute import layer_host_s
from dsforge.estimate.frame import Frame
from dsforge.estimate.lines import Line, lines, setting_of
from dsforge.estimate.schedule import Stages, stages
from dsforge.estimate.traffic import PerToken, layer_traffic
from dsforge.strategy import Strategy


class Work(NamedTuple):
    """Seconds of one micro batch, forward and backward: what sets the pace of a step."""

    compute_s: float  # on the slowest stage
    exposed_s: float  # of collectives inside its layers
    mean_s: float  # of a stage, both together
    sent_bytes: float
    layers: int  # of the slowest stage


class Pace(NamedTuple):
    """The mean layer (dense ones and those with experts) and the head, as lines in tokens."""

    stages: Stages
    pipeline: int  # stages
    layer: Line
    exchanged: PerToken  # in a layer
    head: Line
    host_s: float  # the host's time for a layer: it takes no less

    def at(self, tokens: float) -> Work:
        """The work of one micro batch of so many tokens on a rank."""
        exposed_s = self.exchanged.fixed_s + tokens * self.exchanged.token_s
        layer_s = max(self.layer.at(tokens) + exposed_s, self.host_s)
        head_s = self.head.at(tokens)
        body_s, last_s = self.stages.body * layer_s, self.stages.last * layer_s + head_s
        layers = self.stages.last if last_s >= body_s else self.stages.body
        return Work(
            compute_s=max(body_s, last_s) - layers * exposed_s,
            exposed_s=layers * exposed_s,
            mean_s=self.stages.mean * layer_s + head_s / self.pipeline,
            sent_bytes=layers * tokens * self.exchanged.sent_bytes,
            layers=layers,
        )


def pace(frame: Frame, strategy: Strategy) -> Pace:
    """The work of any micro batch on the slowest of the pipeline's stages."""
    pp = strategy.layout.pipeline_parallel_size
    split = stages(frame.model, pp, strategy.runs_as.trainer)
    setting = setting_of(frame.cluster.gpu, frame.workload, strategy)
    each = lines(frame.model, setting)
    layer, sent, share = (
        each.layer,
        layer_traffic(frame, strategy, moe_layer=False),
        split.moe_share,
    )
    if share:
        layer = layer.towards(each.moe_layer, share)
        sent = sent.towards(layer_traffic(frame, strategy, moe_layer=True), share)
    host_s = layer_host_s(frame.cluster, frame.workload, strategy, setting.passes)
    return Pace(split, pp, layer, sent, each.head, host_s)
