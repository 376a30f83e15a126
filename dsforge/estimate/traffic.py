"""What one rank sends in one step, and the seconds that nothing hides.

Read in DeepSpeed 0.19: ZeRO stage 1 and 2 all-reduce their buckets
(`use_multi_rank_bucket_allreduce`), stage 1 once a step, stage 2 in every micro step, and gather
the updated weights after the step. Stage 3 gathers weights in forward and in backward of every
micro step, once more where activations are recomputed, and scatters gradients in every micro step.
Megatron reduces once a step; with its distributed optimizer it scatters and gathers.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.comm import Channel, Channels, gather_bytes
from dsforge.estimate.shard import RankParameters
from dsforge.specs import ModelSpec
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Buckets, Strategy

GRADIENT_OVERLAP = 0.4  # share of backward that hides reduction of gradients
GATHER_OVERLAP = 0.7  # share of compute that hides gathers of ZeRO stage 3
TENSOR_EXPOSED = 0.6  # of tensor-parallel collectives
PIPELINE_EXPOSED = 0.5  # of sends between stages
NEVER_HIDDEN = 0.08  # of what could be hidden: first and last bucket


class Traffic(NamedTuple):
    """Bytes one rank sends in a step, and exposed seconds by axis."""

    sent_bytes: float
    data_s: float
    tensor_s: float
    pipeline_s: float
    other_s: float

    @property
    def exposed_s(self) -> float:
        """Seconds that nothing hides."""
        return self.data_s + self.tensor_s + self.pipeline_s + self.other_s


class Payload(NamedTuple):
    """The sizes that traffic follows from: one rank's parameters, one micro batch."""

    model: ModelSpec
    element_bytes: int
    held: RankParameters
    layers: int
    moe_layers: int
    tokens: float
    micro_s: float  # compute of one micro batch

    @property
    def activation_bytes(self) -> float:
        """What one layer hands to the next."""
        return self.tokens * self.model.hidden_size * self.element_bytes


def traffic(strategy: Strategy, payload: Payload, links: Channels, buckets: Buckets) -> Traffic:
    """All collectives of one step."""
    parts = (
        _data(strategy, payload, links.shards, buckets),
        _tensor(strategy, payload, links.tensor),
        _pipeline(strategy, payload, links.pipeline),
        _context_and_experts(strategy, payload, links),
    )
    sent = sum(part[0] for part in parts)
    return Traffic(sent, *(part[1] for part in parts))


def _hidden(busy_s: float, available_s: float) -> float:
    """What stays visible of `busy_s` beside `available_s` of other work."""
    return max(busy_s - available_s, NEVER_HIDDEN * busy_s)


def _data(
    strategy: Strategy, payload: Payload, link: Channel, buckets: Buckets
) -> tuple[float, float]:
    """Reduction of gradients, gathers of weights."""
    if link.ranks == 1:
        return 0.0, 0.0
    size, micro_steps = payload.element_bytes, strategy.gradient_accumulation_steps
    gradients = float(size * payload.held.trainable)
    weights = float(size * payload.held.total)
    backward = payload.micro_s * 2 / 3 * GRADIENT_OVERLAP * buckets.overlap_comm
    messages = max(1.0, payload.held.trainable / buckets.reduce_bucket_size)
    if strategy.zero_stage == FULLY_SHARDED:
        return _stage3(strategy, payload, link, weights=weights, gradients=gradients)
    if strategy.back_end == "megatron":
        backward = payload.micro_s * 2 / 3 * GRADIENT_OVERLAP
        reduced = link.reduce_s(2 * gradients, messages)
        return 2 * gather_bytes(2 * gradients, link.ranks), _hidden(reduced, backward)
    rounds = micro_steps if strategy.zero_stage == GRADIENTS_SHARDED else 1
    seconds = rounds * _hidden(link.reduce_s(gradients, messages), backward)
    sent = rounds * 2 * gather_bytes(gradients, link.ranks)
    if strategy.zero_stage >= 1:
        sent += gather_bytes(gradients, link.ranks)
        seconds += link.gather_s(gradients, messages)
    return sent, seconds


def _stage3(
    strategy: Strategy, payload: Payload, link: Channel, *, weights: float, gradients: float
) -> tuple[float, float]:
    """Gathers of weights layer by layer, scatter of gradients, in every micro step."""
    gathers = 3 if strategy.recompute == "full" else 2
    micro_steps = strategy.gradient_accumulation_steps
    messages = float(payload.layers)
    busy = gathers * link.gather_s(weights, messages) + link.gather_s(gradients, messages)
    sent = gathers * gather_bytes(weights, link.ranks) + gather_bytes(gradients, link.ranks)
    seconds = micro_steps * _hidden(busy, GATHER_OVERLAP * payload.micro_s)
    return micro_steps * sent, seconds


def _tensor(strategy: Strategy, payload: Payload, link: Channel) -> tuple[float, float]:
    """Two all-reduces in forward and two in backward of each layer (Megatron-LM, figure 4)."""
    if link.ranks == 1:
        return 0.0, 0.0
    rounds = 6 if strategy.recompute == "full" else 4
    rounds *= payload.layers * strategy.gradient_accumulation_steps
    one = payload.activation_bytes
    return rounds * 2 * gather_bytes(one, link.ranks), rounds * TENSOR_EXPOSED * link.reduce_s(one)


def _pipeline(strategy: Strategy, payload: Payload, link: Channel) -> tuple[float, float]:
    """Activations to the next stage, their gradients back, for each micro batch and chunk."""
    if link.ranks == 1:
        return 0.0, 0.0
    one = payload.activation_bytes
    if strategy.sequence_parallel:
        one /= strategy.layout.tensor_parallel_size
    rounds = 2 * strategy.virtual_stages * strategy.gradient_accumulation_steps
    return rounds * one, rounds * PIPELINE_EXPOSED * link.send_s(one)


def _context_and_experts(
    strategy: Strategy, payload: Payload, links: Channels
) -> tuple[float, float]:
    """Ring exchange of keys and values; tokens to their experts and back."""
    model, micro_steps = payload.model, strategy.gradient_accumulation_steps
    sent = seconds = 0.0
    if links.context.ranks > 1:
        width = 2 * model.kv_heads * model.head_size / strategy.layout.tensor_parallel_size
        one = (
            payload.tokens * width * payload.element_bytes * links.context.ranks
        )  # the whole sequence's keys
        rounds = 3 * payload.layers * micro_steps
        sent += rounds * gather_bytes(one, links.context.ranks)
        seconds += 0.5 * rounds * links.context.gather_s(one)
    if links.expert.ranks > 1 and model.moe is not None:
        one = payload.activation_bytes * model.moe.experts_per_token
        rounds = 4 * payload.moe_layers * micro_steps
        sent += rounds * gather_bytes(one, links.expert.ranks)
        seconds += rounds * links.expert.gather_s(one)
    return sent, seconds
