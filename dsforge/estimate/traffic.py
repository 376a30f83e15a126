"""What one rank sends of gradients and weights in one step, and the seconds that nothing hides.

Read in DeepSpeed 0.19: ZeRO stage 1 and 2 all-reduce their buckets
(`use_multi_rank_bucket_allreduce`), stage 1 once a step, stage 2 in every micro step, and gather
the updated weights after the step. Stage 3 gathers weights in forward and in backward of every
micro step, what lies beyond its reuse distance once more after recomputation, and scatters
gradients in every micro step.
Megatron reduces once a step; with its distributed optimizer it scatters and gathers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dsforge.engines import Messages
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.comm import Channel, gather_bytes
from dsforge.estimate.family_costs import FamilyCosts
from dsforge.estimate.flops import reference_passes
from dsforge.specs import Workload
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Strategy
from dsforge.traced import TRACED, Constant, counted, label, maximum, named

FITTED = "estimate/traffic.py: fitted over all published rows"
GRADIENT_OVERLAP = 0.085  # share of backward that hides reduction of gradients
GATHERS = 2  # of weights in a micro step: forward, backward
GATHER_OVERLAP = 0.7  # share of compute that hides gathers of ZeRO stage 3
MESSAGE_BYTES = Constant(
    2.56e8,
    "message_bytes",
    "bytes",
    f"{FITTED}; bytes per message, if no bucket size of the engine applies",
)
NEVER_HIDDEN = Constant(
    0.37, "never_hidden", "share", f"{FITTED}; first and last bucket, slower kernels during overlap"
)
# Bytes: int8, int4 (Wang et al. 2023, table 1).
QUANTIZED_WEIGHT, QUANTIZED_GRADIENT = 1.0, 0.5
HIDING = "fitted over all published rows; share of a micro batch's compute that can overlap with it"
WIRE = "seconds on the link, from the source of the engine"
LAYER = "latency of one layer's messages"
EXPOSED = "communication that does not overlap with compute; at least a fixed share"
PAYLOAD = "of the rank with the most parameters"


class Exchange(NamedTuple):
    """A collective outside the layers: gradients or weights of one rank."""

    name: str
    seconds: float  # on the wire
    layer_s: float = 0.0  # more for each layer of the stage: its message's latency
    hidden_share: float = 0.0  # of the compute of a micro batch: what may hide it
    every_micro_step: bool = False  # else once a step
    sent_bytes: float = 0.0
    never_hidden: float = NEVER_HIDDEN

    def exposed_s(self, layers: int, micro_s: float) -> float:
        """Seconds that nothing hides, of one exchange beside a micro batch of so much compute."""
        busy_s = self.seconds + layers * self.layer_s
        shown_s = maximum(busy_s - self.hidden_share * micro_s, self.never_hidden * busy_s)
        if micro_s.__class__ is TRACED:
            label(busy_s, self.name + " busy_s", "s", WIRE)
            label(shown_s, self.name + " exposed_s", "s", EXPOSED)
        return shown_s

    def joined(self, other: Exchange) -> Exchange:
        """Both as one, hidden by the same compute."""
        return self._replace(
            seconds=self.seconds + other.seconds,
            layer_s=self.layer_s + other.layer_s,
            sent_bytes=self.sent_bytes + other.sent_bytes,
        )

    def named(self) -> Exchange:
        """The same with a name for its numbers."""
        hidden = self.hidden_share
        return self._replace(
            seconds=named(self.seconds, self.name + "_s", "s", WIRE),
            layer_s=named(self.layer_s, self.name + "_layer_s", "s", LAYER),
            hidden_share=counted(
                hidden, self.name + "_hiding", "share", of=self.seconds, why=HIDING
            ),
        )


def exchanges(costs: FamilyCosts, strategy: Strategy) -> tuple[Exchange, ...]:
    """Every collective of gradients and weights; none where one rank holds the model alone."""
    found = (*_of_shards(costs, strategy), *_of_ends(costs, strategy))
    if costs.model.layers.__class__ is TRACED:
        found = tuple(exchange.named() for exchange in found)
    return found


def _of_ends(costs: FamilyCosts, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients of a tied embedding, which the first and the last stage hold a copy of each."""
    model, link = costs.model, costs.links.pipeline
    if link.ranks == 1 or not model.tied_embeddings or costs.workload.method != "full":
        return ()
    parts = 1 if strategy.copies_ends else strategy.layout.tensor_parallel_size
    words = model.vocab_size * model.embedding_size / parts
    size = named(gradient_size(costs.workload, strategy) * words, "tied_bytes", "bytes")
    sent = 2 * gather_bytes(size, link.ranks)
    return (Exchange("tied embeddings summed", link.reduce_s(size), sent_bytes=sent),)


def gradient_size(workload: Workload, strategy: Strategy) -> int:
    """Bytes of an element of gradients on the wire."""
    sent = strategy.engine.gradient_type(strategy.runs_as, strategy.sharding)
    return 4 if sent == "fp32" else element_bytes(workload)


def _of_shards(costs: FamilyCosts, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients and weights among the ranks that hold the same part of the model."""
    if costs.links.shards.ranks == 1:
        return ()
    run, held, size = strategy.runs_as, costs.fullest.held, element_bytes(costs.workload)
    if strategy.zero_stage == FULLY_SHARDED:
        gradients = 1.0 * gradient_size(costs.workload, strategy) * held.trainable
        weights = (QUANTIZED_WEIGHT if run.quantized_weights else size) * held.stored
        weights = named(weights, "weight_bytes", "bytes", PAYLOAD)
        if run.quantized_gradients:
            gradients = QUANTIZED_GRADIENT * held.trainable
        gradients = named(gradients, "gradient_bytes", "bytes", PAYLOAD)
        return _stage3(costs, strategy, weights=weights, gradients=gradients)
    return _reduced(costs, strategy)


def _reduced(costs: FamilyCosts, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients summed, and the weights that their owners have updated; below ZeRO stage 3."""
    engine, links, size = strategy.engine, costs.links, element_bytes(costs.workload)
    bucket: float = MESSAGE_BYTES
    if engine.has_zero_stages:
        bucket = size * costs.buckets.reduce_bucket_size
    overlaps = engine.overlaps_gradients(strategy.layout, costs.buckets)
    hidden = 2 / 3 * GRADIENT_OVERLAP * overlaps
    bucket = named(bucket, "bucket_bytes", "bytes", "one message")
    summed = _parts("gradient", costs, gradient_size(costs.workload, strategy), links.shards)
    weights_of = _parts("updated", costs, size, links.updates)
    renewed = _exchanged("updated weights gathered", weights_of, Channel.gather_s, bucket)
    if engine.scatters_gradients and strategy.zero_stage >= 1:
        scattered = _exchanged("gradients scattered", summed, Channel.scatter_s, bucket)
        return (
            scattered._replace(hidden_share=hidden),
            renewed._replace(hidden_share=hidden / 2),
        )
    if strategy.reduces_once and strategy.zero_stage >= 1:
        scattered = _exchanged("gradients scattered once", summed, Channel.scatter_s, bucket)
        gathered = renewed._replace(hidden_share=hidden / 2, every_micro_step=True)
        return scattered._replace(hidden_share=hidden), gathered
    reduced = _exchanged("gradients all-reduced", summed, Channel.reduce_s, bucket)
    found: tuple[Exchange, ...] = (
        reduced._replace(
            hidden_share=hidden,
            every_micro_step=strategy.zero_stage == GRADIENTS_SHARDED,
            sent_bytes=2 * reduced.sent_bytes,
        ),
    )
    stalls = engine.stalls(costs.cluster, strategy.sharding)
    if any(stalls):
        once, each = Exchange("stalls", stalls.step_s), Exchange("stalls", stalls.micro_step_s)
        found += (once, each._replace(every_micro_step=True))
    return (*found, renewed) if strategy.zero_stage >= 1 else found


_Part = tuple[float, Channel]  # bytes, and the ranks that share them


def _parts(name: str, costs: FamilyCosts, size: int, ranks: Channel) -> tuple[_Part, ...]:
    """Trained elements in bytes among these ranks; experts among the fewer that hold the same."""
    links, held = costs.links, costs.fullest.held
    if links.expert.ranks == 1:
        return ((named(size * held.trainable, name + "_bytes", "bytes", PAYLOAD), ranks),)
    shared = named(size * held.trainable_shared, name + "_bytes", "bytes", PAYLOAD)
    experts = named(size * held.trainable_experts, f"expert_{name}_bytes", "bytes", PAYLOAD)
    return (shared, ranks), (experts, links.expert_shards)


def _exchanged(
    name: str,
    parts: tuple[_Part, ...],
    seconds: Callable[[Channel, float, float], float],
    bucket: float,
) -> Exchange:
    """One collective of every part, in messages of about a bucket."""
    each_s = [seconds(link, size, maximum(1.0, size / bucket)) for size, link in parts if size]
    if len(each_s) > 1:
        each_s = [each_s[0], named(each_s[1], "expert " + name + "_s", "s", WIRE)]
    busy_s = sum(each_s)
    sent = sum(gather_bytes(size, link.ranks) for size, link in parts)
    return Exchange(name, busy_s, sent_bytes=sent)


def _stage3(
    costs: FamilyCosts, strategy: Strategy, *, weights: float, gradients: float
) -> tuple[Exchange, ...]:
    """Gathers of weights layer by layer, scatter of gradients, in every micro step.

    Where groups of ranks hold a copy each (MiCS, hybrid sharding), both stay inside a group, and
    what a rank keeps of the gradients is reduced across groups once a step.
    """
    if strategy.hpz_partition_size > 1:
        return _second_copy(costs, strategy, weights=weights, gradients=gradients)
    group, every = costs.links.updates, costs.links.shards
    name = "weights gathered, gradients scattered"
    inside = _gathered(
        name, costs, strategy, weights=(weights, group), gradients=(gradients, group)
    )
    if group.ranks == every.ranks:
        return inside
    kept = gradients / group.ranks
    across = 2 * gather_bytes(kept, every.ranks // group.ranks)
    name, seconds = "gradients across groups", every.reduce_s(kept, 0.0)
    return *inside, Exchange(name, seconds, every.reduce_s(0.0), sent_bytes=across)


def _second_copy(
    costs: FamilyCosts, strategy: Strategy, *, weights: float, gradients: float
) -> tuple[Exchange, ...]:
    """Weights gathered from the group's own copy; from all ranks once, in the step's first forward.

    The step makes the copy of trained weights stale (`invalidate_secondary_tensor`); that of frozen
    ones stays. Gradients are scattered over all ranks (ZeRO++, Wang et al. 2023, section 3.2).
    """
    group, every, held = costs.links.updates, costs.links.shards, costs.fullest.held
    renewed = weights * held.trainable / held.stored
    name = "weights gathered in groups, gradients scattered"
    sent = _messages(costs, strategy)
    once = Exchange(
        "weights gathered from all ranks",
        every.gather_s(renewed, 0.0),
        sent.gathers * _around_s(every, sent),
        GATHER_OVERLAP / 3,  # of a micro batch, only its forward
        sent_bytes=gather_bytes(renewed, every.ranks),
    )
    inside = _gathered(
        name, costs, strategy, weights=(weights, group), gradients=(gradients, every)
    )
    return *inside, once


def _gathered(
    name: str,
    costs: FamilyCosts,
    strategy: Strategy,
    *,
    weights: tuple[float, Channel],
    gradients: tuple[float, Channel],
) -> tuple[Exchange, ...]:
    """Weights for each pass of a micro step, then its gradients: bytes, and the ranks of each.

    Forward and backward gather. Where backward computes a layer again, its weights stay until their
    gradients are made, as far as the engine keeps them. Gradients that are reduced once a step go
    beside its last backward alone.
    """
    whole, group = weights
    summed, owners = gradients
    sent = _messages(costs, strategy)
    gathers = GATHERS + (sent.repeated if strategy.recompute == "full" else 0.0)
    gathers += reference_passes(costs.workload)
    gathered = Exchange(
        name,
        gathers * group.gather_s(whole, 0.0),
        gathers * sent.gathers * _around_s(group, sent),
        GATHER_OVERLAP,
        every_micro_step=True,
        sent_bytes=gathers * gather_bytes(whole, group.ranks),
        never_hidden=strategy.engine.never_hidden or NEVER_HIDDEN,
    )
    scattered = gathered._replace(
        name="gradients scattered once",
        seconds=owners.scatter_s(summed, 0.0),
        layer_s=sent.scatters * _around_s(owners, sent),
        hidden_share=2 / 3 * GATHER_OVERLAP,
        every_micro_step=False,
        sent_bytes=gather_bytes(summed, owners.ranks),
    )
    if strategy.reduces_once:
        return gathered._replace(name="weights gathered"), scattered
    return (gathered.joined(scattered),)


def _messages(costs: FamilyCosts, strategy: Strategy) -> Messages:
    """How the weights and gradients of a layer travel."""
    held = costs.fullest.held
    return strategy.engine.layer_messages(costs.model, held.total, costs.buckets)


def _around_s(ring: Channel, sent: Messages) -> float:
    """Seconds of one message around a ring, beside its bytes."""
    far = ring.nodes if ring.nodes > 1 else 0
    return maximum(ring.round_s, (ring.ranks - ring.nodes) * sent.hop_s + far * sent.far_hop_s)
