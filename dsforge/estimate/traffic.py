"""What one rank sends in one step, and the seconds that nothing hides.

Read in DeepSpeed 0.19: ZeRO stage 1 and 2 all-reduce their buckets
(`use_multi_rank_bucket_allreduce`), stage 1 once a step, stage 2 in every micro step, and gather
the updated weights after the step. Stage 3 gathers weights in forward and in backward of every
micro step, once more where activations are recomputed, and scatters gradients in every micro step.
Megatron reduces once a step; with its distributed optimizer it scatters and gathers.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate import nanotron
from dsforge.estimate.comm import Channel, Channels, gather_bytes
from dsforge.estimate.shard import RankParameters
from dsforge.specs import ModelSpec
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Buckets, Strategy

GRADIENT_OVERLAP = 0.3  # share of backward that hides reduction of gradients
GATHER_OVERLAP = 0.7  # share of compute that hides gathers of ZeRO stage 3
PIPELINE_EXPOSED = 0.292  # of sends between stages
MESSAGE_BYTES = 2.56e8  # of gradients or weights at once, where no engine's buckets say
NEVER_HIDDEN = 0.35  # of what could be hidden: first and last bucket, kernels that make room
OVERLAPPED_TENSOR = 0.02  # what of them shows where they run beside products


class Traffic(NamedTuple):
    """Bytes one rank sends in a step, and exposed seconds by axis."""

    sent_bytes: float
    data_s: float
    pipeline_s: float


class Payload(NamedTuple):
    """The sizes that traffic follows from: one rank's parameters, one micro batch."""

    model: ModelSpec
    element_bytes: int
    held: RankParameters
    layers: int
    tokens: float
    micro_s: float  # compute of one micro batch
    nodes: int
    gpus_per_node: int

    @property
    def activation_bytes(self) -> float:
        """What one layer hands to the next."""
        return self.tokens * self.model.hidden_size * self.element_bytes


def traffic(strategy: Strategy, payload: Payload, links: Channels, buckets: Buckets) -> Traffic:
    """Collectives of one step outside the layers: gradients, weights, stage to stage."""
    data = _data(strategy, payload, links, buckets)
    stages = _pipeline(strategy, payload, links.pipeline)
    return Traffic(data[0] + stages[0], data[1], stages[1])


def _hidden(busy_s: float, available_s: float) -> float:
    """What stays visible of `busy_s` beside `available_s` of other work."""
    return max(busy_s - available_s, NEVER_HIDDEN * busy_s)


def _data(
    strategy: Strategy, payload: Payload, links: Channels, buckets: Buckets
) -> tuple[float, float]:
    """Reduction of gradients, gathers of weights."""
    link, updates = links.shards, links.updates
    if link.ranks == 1:
        return 0.0, 0.0
    execution = strategy.runs_as
    micro_steps = strategy.gradient_accumulation_steps
    size = 4 if execution.gradients == "fp32" else payload.element_bytes
    gradients = float(size * payload.held.trainable)
    weights = float(payload.element_bytes * payload.held.total)
    updated = float(payload.element_bytes * payload.held.trainable)
    bucket = MESSAGE_BYTES
    if execution.trainer == "deepspeed":
        bucket = float(payload.element_bytes * buckets.reduce_bucket_size)
    messages, renewals = max(1.0, gradients / bucket), max(1.0, updated / bucket)
    if strategy.zero_stage == FULLY_SHARDED:
        return _stage3(strategy, payload, links, weights=weights, gradients=gradients)
    overlaps = buckets.overlap_comm
    if execution.trainer == "megatron":
        overlaps = True
    elif execution.trainer == "nanotron":
        overlaps = strategy.layout.pipeline_parallel_size == 1
    backward = payload.micro_s * 2 / 3 * GRADIENT_OVERLAP * overlaps
    if execution.trainer == "megatron" and strategy.zero_stage >= 1:
        sent = gather_bytes(gradients + updated, link.ranks)
        scattered = _hidden(link.scatter_s(gradients, messages), backward)
        return sent, scattered + _hidden(updates.gather_s(updated, renewals), backward / 2)
    rounds = micro_steps if strategy.zero_stage == GRADIENTS_SHARDED else 1
    seconds = rounds * _hidden(link.reduce_s(gradients, messages), backward)
    if execution.trainer == "nanotron":
        seconds += nanotron.reduction_s(strategy, payload.nodes)
    sent = rounds * 2 * gather_bytes(gradients, link.ranks)
    if strategy.zero_stage >= 1:
        sent += gather_bytes(updated, link.ranks)
        seconds += updates.gather_s(updated, renewals)
    return sent, seconds


def _stage3(
    strategy: Strategy, payload: Payload, links: Channels, *, weights: float, gradients: float
) -> tuple[float, float]:
    """Gathers of weights layer by layer, scatter of gradients, in every micro step.

    Where groups of ranks hold a copy each (MiCS, hybrid sharding), both stay inside a group, and
    what a rank keeps of the gradients is reduced across groups once a step.
    """
    group, every = links.updates, links.shards
    gathers = 3 if strategy.recompute == "full" else 2
    micro_steps = strategy.gradient_accumulation_steps
    messages = float(payload.layers)
    busy = gathers * group.gather_s(weights, messages) + group.scatter_s(gradients, messages)
    sent = gathers * gather_bytes(weights, group.ranks) + gather_bytes(gradients, group.ranks)
    seconds = micro_steps * _hidden(busy, GATHER_OVERLAP * payload.micro_s)
    if group.ranks == every.ranks:
        return micro_steps * sent, seconds
    kept = gradients / group.ranks
    across = 2 * gather_bytes(kept, every.ranks // group.ranks)
    return micro_steps * sent + across, seconds + every.reduce_s(kept, messages)


def _pipeline(strategy: Strategy, payload: Payload, link: Channel) -> tuple[float, float]:
    """Activations to the next stage, their gradients back, for each micro batch and chunk."""
    if link.ranks == 1:
        return 0.0, 0.0
    one = payload.activation_bytes
    if strategy.sequence_parallel:
        one /= strategy.layout.tensor_parallel_size
    rounds = 2 * strategy.virtual_stages * strategy.gradient_accumulation_steps
    seconds = rounds * PIPELINE_EXPOSED * link.send_s(one)
    if strategy.runs_as.trainer == "nanotron":
        seconds = rounds * (link.send_s(one) + nanotron.send_s(strategy, payload.nodes))
    return rounds * one, seconds


def layer_traffic(
    strategy: Strategy, payload: Payload, links: Channels, *, moe_layer: bool
) -> tuple[float, float]:
    """Bytes sent and seconds exposed in one layer of one micro batch."""
    sent, seconds = _tensor(strategy, payload, links.tensor)
    others = _context_and_experts(strategy, payload, links, moe_layer=moe_layer)
    return sent + others[0], seconds + others[1]


def _tensor(strategy: Strategy, payload: Payload, link: Channel) -> tuple[float, float]:
    """Two all-reduces in forward and two in backward of each layer (Megatron-LM, figure 4)."""
    if link.ranks == 1:
        return 0.0, 0.0
    rounds = 6 if strategy.recompute == "full" else 4
    one = payload.activation_bytes
    seconds = rounds * link.reduce_s(one)
    if strategy.sequence_parallel:
        again = 1 if strategy.runs_as.gathered_inputs == "gathered_again" else 0
        seconds = (rounds + again) * 2 * link.gather_s(one)
    if strategy.runs_as.overlaps_tensor:
        seconds *= OVERLAPPED_TENSOR
    if strategy.runs_as.trainer == "nanotron":
        seconds += nanotron.far_wait_s(strategy.layout, payload.gpus_per_node)
    return rounds * 2 * gather_bytes(one, link.ranks), seconds


def _context_and_experts(
    strategy: Strategy, payload: Payload, links: Channels, *, moe_layer: bool
) -> tuple[float, float]:
    """Ring exchange of keys and values; tokens to their experts and back."""
    model = payload.model
    sent = seconds = 0.0
    if links.context.ranks > 1:
        width = 2 * model.kv_heads * model.head_size / strategy.layout.tensor_parallel_size
        one = (
            payload.tokens * width * payload.element_bytes * links.context.ranks
        )  # the whole sequence's keys
        sent += 3 * gather_bytes(one, links.context.ranks)
        seconds += 0.5 * 3 * links.context.gather_s(one)
    if links.expert.ranks > 1 and model.moe is not None and moe_layer:
        one = payload.activation_bytes * model.moe.experts_per_token
        sent += 4 * gather_bytes(one, links.expert.ranks)
        seconds += 4 * links.expert.exchange_s(one)
    return sent, seconds
