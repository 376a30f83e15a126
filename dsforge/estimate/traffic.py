"""What one rank sends in one step, and the seconds that nothing hides.

Read in DeepSpeed 0.19: ZeRO stage 1 and 2 all-reduce their buckets
(`use_multi_rank_bucket_allreduce`), stage 1 once a step, stage 2 in every micro step, and gather
the updated weights after the step. Stage 3 gathers weights in forward and in backward of every
micro step, once more where activations are recomputed, and scatters gradients in every micro step.
Megatron reduces once a step; with its distributed optimizer it scatters and gathers.

Nothing here depends on the micro batch but through lines in its tokens, so that the planner prices
many batchings of one family from one account.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import NamedTuple

from dsforge.estimate import ulysses
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.comm import Channel, gather_bytes
from dsforge.estimate.frame import Frame
from dsforge.specs import Workload
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Batching, Strategy
from dsforge.traced import Constant, Traced, counted, label, maximum, minimum, named

FITTED = "estimate/traffic.py: fitted over all published rows"
GRADIENT_OVERLAP = 0.07  # share of backward that hides reduction of gradients
GATHER_OVERLAP = 0.7  # share of compute that hides gathers of ZeRO stage 3
PIPELINE_EXPOSED = Constant(0.263, "send_exposed", "share", f"{FITTED}; of sends between stages")
INTERLEAVED_EXPOSED = Constant(
    0.037, "interleaved_send_exposed", "share", f"{FITTED}; of sends between interleaved stages"
)
PIPELINE_OVERLAP = Constant(
    0.7, "sends_hiding", "share", f"{FITTED}; share of compute that hides sends at most"
)
MESSAGE_BYTES = Constant(
    2.56e8, "message_bytes", "bytes", f"{FITTED}; sent at once, where no engine's buckets say"
)
NEVER_HIDDEN = Constant(
    0.37, "never_hidden", "share", f"{FITTED}; first and last bucket, kernels that make room"
)
# Bytes: int8, int4 (Wang et al. 2023, table 1).
QUANTIZED_WEIGHT, QUANTIZED_GRADIENT = 1.0, 0.5
OVERLAPPED_TENSOR = Constant(
    0.02, "overlapped_tensor", "share", f"{FITTED}; shows where they run beside products"
)
HIDING = "fitted over all published rows; share of a micro batch's compute that may hide it"
WIRE = "seconds on the wire, read in the engine"
LAYER = "latency of one layer's messages"
EXPOSED = "what is not hidden beside compute; never less than a share"
MEGATRON = "all-reduces, or gathers and scatters of a split sequence (Megatron-LM, figure 4)"
TO_EXPERTS = "a token to its experts, or back"
SENDS = "each chunk of each micro batch, forward and backward"
SEND = "activations of a micro batch over the slowest hop"
FILLING = "the first and the last micro batch pass every hop, there and back"
PAYLOAD = "of the rank with the most parameters"


class Exchange(NamedTuple):
    """A collective outside the layers: gradients or weights of one rank."""

    name: str
    seconds: float  # on the wire
    layer_s: float = 0.0  # more for each layer of the stage: its message's latency
    hidden_share: float = 0.0  # of the compute of a micro batch: what may hide it
    every_micro_step: bool = False  # else once a step
    sent_bytes: float = 0.0

    def exposed_s(self, layers: int, micro_s: float) -> float:
        """Seconds that nothing hides, of one exchange beside a micro batch of so much compute."""
        busy_s = self.seconds + layers * self.layer_s
        shown_s = maximum(busy_s - self.hidden_share * micro_s, NEVER_HIDDEN * busy_s)
        if isinstance(micro_s, Traced):
            label(busy_s, self.name + " busy_s", "s", WIRE)
            label(shown_s, self.name + " exposed_s", "s", EXPOSED)
        return shown_s

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


class PerToken(NamedTuple):
    """Collectives that send activations: seconds as a line in tokens, bytes of one token."""

    fixed_s: float
    token_s: float
    sent_bytes: float

    def plus(self, other: PerToken) -> PerToken:
        """Both, one after the other."""
        return PerToken(*map(add, self, other))

    def towards(self, other: PerToken, share: float) -> PerToken:
        """The mean of both, the other one with so large a share."""
        return PerToken(*(a + share * (b - a) for a, b in zip(self, other, strict=True)))


NOTHING = PerToken(0.0, 0.0, 0.0)


def exchanges(frame: Frame, strategy: Strategy) -> tuple[Exchange, ...]:
    """Every collective of gradients and weights; none where one rank holds the model alone."""
    found = (*_of_shards(frame, strategy), *_of_ends(frame, strategy))
    if isinstance(frame.model.layers, Traced):
        found = tuple(exchange.named() for exchange in found)
    return found


def _of_ends(frame: Frame, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients of a tied embedding, which the first and the last stage hold a copy of each."""
    model, link = frame.model, frame.links.pipeline
    if link.ranks == 1 or not model.tied_embeddings or frame.workload.method != "full":
        return ()
    words = model.vocab_size * model.embedding_size / strategy.layout.tensor_parallel_size
    size = named(gradient_size(frame.workload, strategy) * words, "tied_bytes", "bytes")
    sent = 2 * gather_bytes(size, link.ranks)
    return (Exchange("tied embeddings summed", link.reduce_s(size), sent_bytes=sent),)


def gradient_size(workload: Workload, strategy: Strategy) -> int:
    """Bytes of an element of gradients on the wire."""
    sent = strategy.engine.gradient_type(strategy.runs_as, strategy.sharding)
    return 4 if sent == "fp32" else element_bytes(workload)


def _of_shards(frame: Frame, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients and weights among the ranks that hold the same part of the model."""
    if frame.links.shards.ranks == 1:
        return ()
    run, engine, held = strategy.runs_as, strategy.engine, frame.fullest.held
    size = element_bytes(frame.workload)
    if strategy.zero_stage == FULLY_SHARDED:
        gradients = 1.0 * gradient_size(frame.workload, strategy) * held.trainable
        weights = (QUANTIZED_WEIGHT if run.quantized_weights else size) * held.total
        weights = named(weights, "weight_bytes", "bytes", PAYLOAD)
        if run.quantized_gradients:
            gradients = QUANTIZED_GRADIENT * held.trainable
        gradients = named(gradients, "gradient_bytes", "bytes", PAYLOAD)
        return _stage3(frame, strategy, weights=weights, gradients=gradients)
    bucket: float = MESSAGE_BYTES
    if engine.has_zero_stages:
        bucket = size * frame.buckets.reduce_bucket_size
    overlaps = engine.overlaps_gradients(strategy.layout, frame.buckets)
    hidden = 2 / 3 * GRADIENT_OVERLAP * overlaps
    links = frame.links
    bucket = named(bucket, "bucket_bytes", "bytes", "one message")
    summed = _parts("gradient", frame, gradient_size(frame.workload, strategy), links.shards)
    weights_of = _parts("updated", frame, size, links.updates)
    renewed = _exchanged("updated weights gathered", weights_of, Channel.gather_s, bucket)
    if engine.scatters_gradients and strategy.zero_stage >= 1:
        scattered = _exchanged("gradients scattered", summed, Channel.scatter_s, bucket)
        return (
            scattered._replace(hidden_share=hidden),
            renewed._replace(hidden_share=hidden / 2),
        )
    reduced = _exchanged("gradients all-reduced", summed, Channel.reduce_s, bucket)
    found: tuple[Exchange, ...] = (
        reduced._replace(
            hidden_share=hidden,
            every_micro_step=strategy.zero_stage == GRADIENTS_SHARDED,
            sent_bytes=2 * reduced.sent_bytes,
        ),
    )
    stalls = engine.stalls(frame.cluster, strategy.sharding)
    if any(stalls):
        once, each = Exchange("stalls", stalls.step_s), Exchange("stalls", stalls.micro_step_s)
        found += (once, each._replace(every_micro_step=True))
    return (*found, renewed) if strategy.zero_stage >= 1 else found


_Part = tuple[float, Channel]  # bytes, and the ranks that share them


def _parts(name: str, frame: Frame, size: int, ranks: Channel) -> tuple[_Part, ...]:
    """Trained elements in bytes among these ranks; experts among the fewer that hold the same."""
    links, held = frame.links, frame.fullest.held
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
    frame: Frame, strategy: Strategy, *, weights: float, gradients: float
) -> tuple[Exchange, ...]:
    """Gathers of weights layer by layer, scatter of gradients, in every micro step.

    Where groups of ranks hold a copy each (MiCS, hybrid sharding), both stay inside a group, and
    what a rank keeps of the gradients is reduced across groups once a step.
    """
    if strategy.hpz_partition_size > 1:
        return _second_copy(frame, strategy, weights=weights, gradients=gradients)
    group, every = frame.links.updates, frame.links.shards
    name = "weights gathered, gradients scattered"
    inside = _gathered(name, strategy, (weights, group), (gradients, group))
    if group.ranks == every.ranks:
        return (inside,)
    kept = gradients / group.ranks
    across = 2 * gather_bytes(kept, every.ranks // group.ranks)
    name, seconds = "gradients across groups", every.reduce_s(kept, 0.0)
    return inside, Exchange(name, seconds, every.reduce_s(0.0), sent_bytes=across)


def _second_copy(
    frame: Frame, strategy: Strategy, *, weights: float, gradients: float
) -> tuple[Exchange, ...]:
    """Weights gathered from the group's own copy; from all ranks once, in the step's first forward.

    The step makes the copy of trained weights stale (`invalidate_secondary_tensor`); that of frozen
    ones stays. Gradients are scattered over all ranks (ZeRO++, Wang et al. 2023, section 3.2).
    """
    group, every, held = frame.links.updates, frame.links.shards, frame.fullest.held
    renewed = weights * held.trainable / held.total
    name = "weights gathered in groups, gradients scattered"
    once = Exchange(
        "weights gathered from all ranks",
        every.gather_s(renewed, 0.0),
        every.gather_s(0.0),
        GATHER_OVERLAP / 3,  # of a micro batch, only its forward
        sent_bytes=gather_bytes(renewed, every.ranks),
    )
    return _gathered(name, strategy, (weights, group), (gradients, every)), once


def _gathered(
    name: str, strategy: Strategy, weights: tuple[float, Channel], gradients: tuple[float, Channel]
) -> Exchange:
    """Weights for each pass of a micro step, then its gradients: bytes, and the ranks of each."""
    whole, group = weights
    summed, owners = gradients
    gathers = 3 if strategy.recompute == "full" else 2
    return Exchange(
        name,
        gathers * group.gather_s(whole, 0.0) + owners.scatter_s(summed, 0.0),
        gathers * group.gather_s(0.0) + owners.scatter_s(0.0),
        GATHER_OVERLAP,
        every_micro_step=True,
        sent_bytes=gathers * gather_bytes(whole, group.ranks) + gather_bytes(summed, owners.ranks),
    )


class Sends(NamedTuple):
    """Activations of a micro batch and chunk to the next stage, or their gradients back."""

    each: PerToken  # on the slowest hop, which sets the pace
    filling: PerToken  # every hop there and back: the first and the last micro batch wait for it
    parts: int  # ranks that send one of each activation
    exposed: float  # share that shows where the wire is quick
    interleaved: float  # the same with several chunks a stage: Megatron sends beside compute then

    def wire_s(self, batching: Batching, tokens: float) -> float:
        """Seconds of a step on the wire, if each rank sent whole activations."""
        count = 2 * batching.virtual_stages * batching.steps
        each_s = self.each.fixed_s + tokens * self.each.token_s
        filling_s = self.filling.fixed_s + tokens * self.filling.token_s
        if isinstance(tokens, Traced):
            label(each_s, "pipeline_send_s", "s", SEND)
            label(filling_s, "filling_s", "s", FILLING)
        return count * each_s + filling_s

    def exposed_s(self, batching: Batching, tokens: float, compute_s: float) -> float:
        """Seconds of a step that no compute hides."""
        wire_s = self.wire_s(batching, tokens)
        if not wire_s:
            return 0.0
        share = self.exposed if batching.virtual_stages == 1 else self.interleaved
        shown_s = maximum(share * wire_s, wire_s / self.parts - PIPELINE_OVERLAP * compute_s)
        if isinstance(tokens, Traced):
            label(wire_s, "sends_s", "s", SENDS)
            label(shown_s, "sends_exposed_s", "s", "between stages, not hidden by compute")
        return shown_s


def stage_traffic(frame: Frame, strategy: Strategy) -> Sends:
    """What stages hand on, over every hop of the pipeline.

    Tensor ranks send a part each (Narayanan et al. 2021, section 4.1; DeepSpeed's
    `PartitionedTensor`), so the wire is not the floor of whole activations; what shows of a send on
    a quick wire was fitted on whole ones. With sequence parallelism ranks hold no more than a part.
    """
    link = frame.links.pipeline
    if link.ranks == 1:
        return Sends(NOTHING, NOTHING, 1, 0.0, 0.0)
    one = _activation_bytes(frame)
    parts = strategy.layout.tensor_parallel_size
    if strategy.sequence_parallel:
        one, parts = one / parts, 1
    each = _send("pipeline", link, one)
    send_wait_s = strategy.engine.send_wait_s
    if send_wait_s is not None:  # such waits were fitted around quick hops
        each = _send("neighbour", frame.links.neighbours, one) if _small(frame, strategy) else each
        fixed_s = each.fixed_s + send_wait_s(frame.cluster, strategy.sharding)
        return Sends(each._replace(fixed_s=fixed_s), NOTHING, 1, 1.0, 1.0)
    filling = _filling(frame, strategy, one)
    return Sends(each, filling, parts, PIPELINE_EXPOSED, INTERLEAVED_EXPOSED)


def _small(frame: Frame, strategy: Strategy) -> bool:
    """Whether two stages lie on a node."""
    layout = strategy.layout
    ranks = layout.shard_ranks * layout.tensor_parallel_size
    return 2 * ranks <= frame.cluster.gpus_per_node


def _send(name: str, link: Channel, token_bytes: float) -> PerToken:
    """One hop of activations: a line in tokens."""
    token_s = named(token_bytes / link.bytes_per_s, name + "_token_s", "s", "sends of one token")
    return PerToken(link.round_s, token_s, token_bytes)


def _filling(frame: Frame, strategy: Strategy, token_bytes: float) -> PerToken:
    """All hops of the pipeline twice: far ones between nodes, near ones inside."""
    hops = strategy.layout.pipeline_parallel_size - 1
    far = minimum(hops, frame.cluster.nvlink_domains - 1)
    far = counted(far, "far_hops", "hops", of=hops, why="that leave a node or NVLink domain")
    slow = _send("pipeline", frame.links.pipeline, token_bytes)
    quick = _send("neighbour", frame.links.neighbours, token_bytes)
    return PerToken(
        2 * (far * slow.fixed_s + (hops - far) * quick.fixed_s),
        2 * (far * slow.token_s + (hops - far) * quick.token_s),
        0.0,
    )


def layer_traffic(frame: Frame, strategy: Strategy, *, moe_layer: bool) -> PerToken:
    """Collectives inside one layer of one micro batch, forward and backward."""
    found = _tensor(frame, strategy, frame.links.tensor)
    context, expert = frame.links.context, frame.links.expert
    if context.ranks > 1:
        exchange = EXCHANGES[strategy.engine.context_exchange]
        found = found.plus(exchange(frame, strategy, context))
    if expert.ranks > 1 and frame.model.moe is not None and moe_layer:
        one = _activation_bytes(frame) * frame.model.moe.experts_per_token
        fixed_s, sent = expert.round_s, gather_bytes(one, expert.ranks)
        token_s = named(expert.exchange_s(one, 0.0), "expert_exchange_token_s", "s", TO_EXPERTS)
        found = found.plus(PerToken(4 * fixed_s, 4 * token_s, 4 * sent))
    return found


def _activation_bytes(frame: Frame) -> float:
    """What one layer hands to the next, bytes of one token."""
    return named(frame.model.hidden_size * element_bytes(frame.workload), "token_bytes", "bytes")


def _tensor(frame: Frame, strategy: Strategy, link: Channel) -> PerToken:
    """Two all-reduces in forward and two in backward of each layer (Megatron-LM, figure 4)."""
    if link.ranks == 1:
        return NOTHING
    rounds = 6 if strategy.recompute == "full" else 4
    one = _activation_bytes(frame)
    fixed_s, token_s = rounds * link.reduce_s(0.0), rounds * link.reduce_s(one, 0.0)
    if strategy.sequence_parallel:
        again = 2 if strategy.runs_as.gathered_inputs == "gathered_again" else 0
        fixed_s = (rounds + again) * link.gather_s(0.0) + rounds * link.scatter_s(0.0)
        token_s = (rounds + again) * link.gather_s(one, 0.0) + rounds * link.scatter_s(one, 0.0)
    if strategy.runs_as.overlaps_tensor:
        fixed_s, token_s = OVERLAPPED_TENSOR * fixed_s, OVERLAPPED_TENSOR * token_s
    fixed_s += strategy.engine.tensor_wait_s(frame.cluster, strategy.sharding)
    fixed_s = named(fixed_s, "tensor_layer_fixed_s", "s", MEGATRON)
    token_s = named(token_s, "tensor_layer_token_s", "s", MEGATRON)
    return PerToken(fixed_s, token_s, rounds * 2 * gather_bytes(one, link.ranks))


def _context(frame: Frame, strategy: Strategy, link: Channel) -> PerToken:
    """Ring exchange of the keys and values of the whole sequence; attention hides half of it."""
    model = frame.model
    width = 2 * model.kv_heads * model.head_size / strategy.layout.tensor_parallel_size
    one = width * element_bytes(frame.workload) * link.ranks
    one = named(one, "ring_bytes", "bytes", "keys and values of a token of the whole sequence")
    sent = 3 * gather_bytes(one, link.ranks)
    token_s = named(1.5 * link.gather_s(one, 0.0), "context_layer_token_s", "s")
    return PerToken(1.5 * link.gather_s(0.0), token_s, sent)


def _sequence(frame: Frame, strategy: Strategy, link: Channel) -> PerToken:
    """All-to-alls of Ulysses around attention; nothing hides them."""
    passes = ulysses.passes(strategy)
    width = ulysses.exchanged_width(frame.model, link.ranks)
    one = named(width * element_bytes(frame.workload), "exchanged_bytes", "bytes")
    fixed_s, sent = link.round_s, gather_bytes(one, link.ranks)
    token_s = named(link.exchange_s(one, 0.0), "exchange_token_s", "s", "one all-to-all")
    return PerToken(ulysses.messages(strategy) * fixed_s, passes * token_s, passes * sent)


EXCHANGES = {"ring": _context, "all_to_all": _sequence}  # of tokens that context ranks share
