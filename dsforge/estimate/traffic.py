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

from dsforge.estimate import nanotron, ulysses
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.comm import Channel, gather_bytes
from dsforge.estimate.frame import Frame
from dsforge.specs import Workload
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Batching, Strategy

GRADIENT_OVERLAP = 0.085  # share of backward that hides reduction of gradients
GATHER_OVERLAP = 0.7  # share of compute that hides gathers of ZeRO stage 3
PIPELINE_EXPOSED, INTERLEAVED_EXPOSED = 0.263, 0.08  # of sends between stages
PIPELINE_OVERLAP = 0.7  # share of compute that hides them at most: the adapters set a floor
MESSAGE_BYTES = 2.56e8  # of gradients or weights at once, where no engine's buckets say
NEVER_HIDDEN = 0.37  # of what could be hidden: first and last bucket, kernels that make room
QUANTIZED_WEIGHT, QUANTIZED_GRADIENT = 1.0, 0.5  # bytes: int8, int4 (Wang et al. 2023, table 1)
OVERLAPPED_TENSOR = 0.02  # what of them shows where they run beside products


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
        return max(busy_s - self.hidden_share * micro_s, NEVER_HIDDEN * busy_s)


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
    return (*_of_shards(frame, strategy), *_of_ends(frame, strategy))


def _of_ends(frame: Frame, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients of a tied embedding, which the first and the last stage hold a copy of each."""
    model, link = frame.model, frame.links.pipeline
    if link.ranks == 1 or not model.tied_embeddings or frame.workload.method != "full":
        return ()
    words = model.vocab_size * model.embedding_size / strategy.layout.tensor_parallel_size
    size = gradient_size(frame.workload, strategy) * words
    sent = 2 * gather_bytes(size, link.ranks)
    return (Exchange("tied embeddings summed", link.reduce_s(size), sent_bytes=sent),)


def gradient_size(workload: Workload, strategy: Strategy) -> int:
    """Bytes of an element of gradients on the wire.

    DeepSpeed casts float32 sums to `communication_data_type` first, which is the compute precision
    unless it is set, and float32 under sequence parallelism (engine.py, `communication_data_type`,
    `seq_parallel_communication_data_type`).
    """
    run, shared = strategy.runs_as, strategy.layout.context_parallel_size > 1
    sent = run.gradients
    if run.trainer == "deepspeed":
        sent = "fp32" if shared else run.reduced
    return 4 if sent == "fp32" else element_bytes(workload)


def _of_shards(frame: Frame, strategy: Strategy) -> tuple[Exchange, ...]:
    """Gradients and weights among the ranks that hold the same part of the model."""
    if frame.links.shards.ranks == 1:
        return ()
    run, held = strategy.runs_as, frame.fullest.held
    size = element_bytes(frame.workload)
    if strategy.zero_stage == FULLY_SHARDED:
        gradients = float(gradient_size(frame.workload, strategy) * held.trainable)
        weights = float((QUANTIZED_WEIGHT if run.quantized_weights else size) * held.total)
        if run.quantized_gradients:
            gradients = QUANTIZED_GRADIENT * held.trainable
        return _stage3(frame, strategy, weights=weights, gradients=gradients)
    bucket = MESSAGE_BYTES
    if run.trainer == "deepspeed":
        bucket = float(size * frame.fullest.buckets.reduce_bucket_size)
    hidden = 2 / 3 * GRADIENT_OVERLAP * _overlaps(frame, strategy)
    links = frame.links
    summed = _parts(frame, gradient_size(frame.workload, strategy), links.shards)
    weights_of = _parts(frame, size, links.updates)
    renewed = _exchanged("updated weights gathered", weights_of, Channel.gather_s, bucket)
    if run.trainer == "megatron" and strategy.zero_stage >= 1:
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
    if run.trainer == "nanotron":
        once_s, each_s = nanotron.stalls_s(strategy, frame.cluster.nodes)
        found += (Exchange("stalls", once_s), Exchange("stalls", each_s, every_micro_step=True))
    return (*found, renewed) if strategy.zero_stage >= 1 else found


_Part = tuple[float, Channel]  # bytes, and the ranks that share them


def _parts(frame: Frame, size: int, ranks: Channel) -> tuple[_Part, ...]:
    """Trained elements in bytes among these ranks; experts among the fewer that hold the same."""
    links, held = frame.links, frame.fullest.held
    if links.expert.ranks == 1:
        return ((float(size * held.trainable), ranks),)
    shared = float(size * held.trainable_shared), ranks
    return shared, (float(size * held.trainable_experts), links.expert_shards)


def _exchanged(
    name: str,
    parts: tuple[_Part, ...],
    seconds: Callable[[Channel, float, float], float],
    bucket: float,
) -> Exchange:
    """One collective of every part, in messages of about a bucket."""
    busy_s = sum(seconds(link, size, max(1.0, size / bucket)) for size, link in parts if size)
    sent = sum(gather_bytes(size, link.ranks) for size, link in parts)
    return Exchange(name, busy_s, sent_bytes=sent)


def _overlaps(frame: Frame, strategy: Strategy) -> bool:
    """Whether gradients are reduced beside backward."""
    trainer = strategy.runs_as.trainer
    if trainer == "nanotron":
        return strategy.layout.pipeline_parallel_size == 1
    return trainer == "megatron" or frame.fullest.buckets.overlap_comm


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
        return count * each_s + self.filling.fixed_s + tokens * self.filling.token_s

    def exposed_s(self, batching: Batching, tokens: float, compute_s: float) -> float:
        """Seconds of a step that no compute hides."""
        wire_s = self.wire_s(batching, tokens)
        share = self.exposed if batching.virtual_stages == 1 else self.interleaved
        return max(share * wire_s, wire_s / self.parts - PIPELINE_OVERLAP * compute_s)


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
    each = _send(link, one)
    if strategy.runs_as.trainer == "nanotron":  # its waits were fitted around quick hops
        each = _send(frame.links.neighbours, one) if _small(frame, strategy) else each
        fixed_s = each.fixed_s + nanotron.send_s(strategy, frame.cluster.nodes)
        return Sends(each._replace(fixed_s=fixed_s), NOTHING, 1, 1.0, 1.0)
    filling = _filling(frame, strategy, one)
    return Sends(each, filling, parts, PIPELINE_EXPOSED, INTERLEAVED_EXPOSED)


def _small(frame: Frame, strategy: Strategy) -> bool:
    """Whether two stages lie on a node."""
    layout = strategy.layout
    ranks = layout.shard_ranks * layout.tensor_parallel_size
    return 2 * ranks <= frame.cluster.gpus_per_node


def _send(link: Channel, token_bytes: float) -> PerToken:
    fixed_s = link.send_s(0.0)
    return PerToken(fixed_s, link.send_s(token_bytes) - fixed_s, token_bytes)


def _filling(frame: Frame, strategy: Strategy, token_bytes: float) -> PerToken:
    """All hops of the pipeline twice: far ones between nodes, near ones inside."""
    hops = strategy.layout.pipeline_parallel_size - 1
    far = min(hops, frame.cluster.nvlink_domains - 1)
    slow = _send(frame.links.pipeline, token_bytes)
    quick = _send(frame.links.neighbours, token_bytes)
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
        exchange = _sequence if strategy.back_end == "deepspeed" else _context
        found = found.plus(exchange(frame, strategy, context))
    if expert.ranks > 1 and frame.model.moe is not None and moe_layer:
        one = _activation_bytes(frame) * frame.model.moe.experts_per_token
        fixed_s, sent = expert.exchange_s(0.0), gather_bytes(one, expert.ranks)
        token_s = expert.exchange_s(one) - fixed_s
        found = found.plus(PerToken(4 * fixed_s, 4 * token_s, 4 * sent))
    return found


def _activation_bytes(frame: Frame) -> float:
    """What one layer hands to the next, bytes of one token."""
    return float(frame.model.hidden_size * element_bytes(frame.workload))


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
    if strategy.runs_as.trainer == "nanotron":
        fixed_s += nanotron.far_wait_s(strategy.layout, frame.cluster.gpus_per_node)
    return PerToken(fixed_s, token_s, rounds * 2 * gather_bytes(one, link.ranks))


def _context(frame: Frame, strategy: Strategy, link: Channel) -> PerToken:
    """Ring exchange of the keys and values of the whole sequence; attention hides half of it."""
    model = frame.model
    width = 2 * model.kv_heads * model.head_size / strategy.layout.tensor_parallel_size
    one = width * element_bytes(frame.workload) * link.ranks
    sent = 3 * gather_bytes(one, link.ranks)
    return PerToken(1.5 * link.gather_s(0.0), 1.5 * link.gather_s(one, 0.0), sent)


def _sequence(frame: Frame, strategy: Strategy, link: Channel) -> PerToken:
    """All-to-alls of Ulysses around attention; nothing hides them."""
    passes = ulysses.passes(strategy)
    width = ulysses.exchanged_width(frame.model, link.ranks)
    one = float(width * element_bytes(frame.workload))
    fixed_s, sent = link.exchange_s(0.0), gather_bytes(one, link.ranks)
    token_s = link.exchange_s(one) - fixed_s
    return PerToken(ulysses.messages(strategy) * fixed_s, passes * token_s, passes * sent)
