"""One micro batch on the slowest pipeline stage: products, collectives inside layers, the host."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.comm import Channels
from dsforge.estimate.compute import Compute, compute
from dsforge.estimate.schedule import Stages, stages
from dsforge.estimate.shard import RankParameters
from dsforge.estimate.traffic import Payload, layer_traffic
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Strategy


class Work(NamedTuple):
    """Seconds of one micro batch, forward and backward: what sets the pace of a step."""

    compute_s: float  # on the slowest stage
    exposed_s: float  # of collectives inside its layers
    mean_s: float  # of a stage, both together
    sent_bytes: float
    payload: Payload


class _Layer(NamedTuple):
    """The mean layer."""

    seconds: float  # with its collectives, or as long as the host needs
    exposed_s: float
    sent_bytes: float


def stage_work(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    *,
    held: RankParameters,
    links: Channels,
) -> Work:
    """The work of one micro batch on the slowest of the pipeline's stages."""
    pp = strategy.layout.pipeline_parallel_size
    one = compute(model, cluster, workload, strategy)
    split = stages(model, pp, strategy.runs_as.trainer)
    payload = Payload(
        model=model,
        element_bytes=element_bytes(workload),
        held=held,
        layers=split.last,
        tokens=one.tokens,
        micro_s=0.0,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
    )
    layer = _layer(strategy, payload, links, one=one, split=split)
    body_s, last_s = split.body * layer.seconds, split.last * layer.seconds + one.head_s
    slowest_s = max(body_s, last_s)
    layers = split.last if last_s >= body_s else split.body
    exposed_s = layers * layer.exposed_s
    return Work(
        compute_s=slowest_s - exposed_s,
        exposed_s=exposed_s,
        mean_s=split.mean * layer.seconds + one.head_s / pp,
        sent_bytes=layers * layer.sent_bytes,
        payload=payload._replace(layers=layers, micro_s=slowest_s - exposed_s),
    )


def _layer(
    strategy: Strategy, payload: Payload, links: Channels, *, one: Compute, split: Stages
) -> _Layer:
    """The mean layer of a model: dense ones and those with experts."""
    sent, exposed_s = layer_traffic(strategy, payload, links, moe_layer=False)
    busy_s, share = one.layer_s, split.moe_share
    if share:
        more, sparse_s = layer_traffic(strategy, payload, links, moe_layer=True)
        sent += share * (more - sent)
        exposed_s += share * (sparse_s - exposed_s)
        busy_s += share * (one.moe_layer_s - busy_s)
    return _Layer(max(busy_s + exposed_s, one.host_s), exposed_s, sent)
