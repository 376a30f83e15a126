"""What a rank sends of activations: inside layers, and from one pipeline stage to the next.

Nothing here depends on the micro batch but through lines in its tokens, so that the planner prices
many batchings of one family from one account.
"""

from __future__ import annotations

from operator import add
from typing import NamedTuple

from dsforge.estimate import ulysses
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.comm import Channel, gather_bytes
from dsforge.estimate.family_costs import FamilyCosts
from dsforge.estimate.traffic import NEVER_HIDDEN
from dsforge.strategy import Batching, Strategy
from dsforge.traced import TRACED, Constant, counted, label, maximum, minimum, named

FITTED = "estimate/activation_traffic.py: fitted over all published rows"
PIPELINE_EXPOSED = Constant(0.263, "send_exposed", "share", f"{FITTED}; of sends between stages")
INTERLEAVED_EXPOSED = Constant(
    0.08, "interleaved_send_exposed", "share", f"{FITTED}; of sends between interleaved stages"
)
PIPELINE_OVERLAP = Constant(
    0.7, "sends_hiding", "share", f"{FITTED}; largest share of compute that can overlap with sends"
)
OVERLAPPED_TENSOR = Constant(
    0.02,
    "overlapped_tensor",
    "share",
    f"{FITTED}; exposed share if they overlap with matrix products",
)
MEGATRON = (
    "all-reduce, or all-gather and reduce-scatter with sequence parallelism (Megatron-LM, figure 4)"
)
TO_EXPERTS = "one token to its experts, or back"
SENDS = "each chunk of each micro batch, forward and backward"
SEND = "activations of one micro batch over the slowest hop"
FILLING = "the first and the last micro batch cross every hop, forward and backward"


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
        if tokens.__class__ is TRACED:
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
        if tokens.__class__ is TRACED:
            label(wire_s, "sends_s", "s", SENDS)
            label(shown_s, "sends_exposed_s", "s", "between stages, not overlapped with compute")
        return shown_s


def stage_traffic(costs: FamilyCosts, strategy: Strategy) -> Sends:
    """What stages hand on, over every hop of the pipeline.

    Tensor ranks of Megatron-LM send a part each (Narayanan et al. 2021, section 4.1), so the wire
    is not the floor of whole activations; what shows of a send on a quick wire was fitted on whole
    ones. With sequence parallelism ranks hold no more than a part.
    """
    link = costs.links.pipeline
    if link.ranks == 1:
        return Sends(NOTHING, NOTHING, 1, 0.0, 0.0)
    one = _activation_bytes(costs)
    parts = strategy.layout.tensor_parallel_size if strategy.sends_parts else 1
    if strategy.sequence_parallel:
        one, parts = one / parts, 1
    each = _send("pipeline", link, one)
    send_wait_s = strategy.engine.send_wait_s
    if send_wait_s is not None:  # such waits were fitted around quick hops
        each = _send("neighbour", costs.links.neighbours, one) if _small(costs, strategy) else each
        fixed_s = each.fixed_s + send_wait_s(costs.cluster, strategy.sharding)
        return Sends(each._replace(fixed_s=fixed_s), NOTHING, 1, 1.0, 1.0)
    filling = _filling(costs, strategy, one)
    return Sends(each, filling, parts, PIPELINE_EXPOSED, INTERLEAVED_EXPOSED)


def _small(costs: FamilyCosts, strategy: Strategy) -> bool:
    """Whether two stages lie on a node."""
    layout = strategy.layout
    ranks = layout.shard_ranks * layout.tensor_parallel_size
    return 2 * ranks <= costs.cluster.gpus_per_node


def _send(name: str, link: Channel, token_bytes: float) -> PerToken:
    """One hop of activations: a line in tokens."""
    token_s = named(token_bytes / link.bytes_per_s, name + "_token_s", "s", "sends of one token")
    return PerToken(link.round_s, token_s, token_bytes)


def _filling(costs: FamilyCosts, strategy: Strategy, token_bytes: float) -> PerToken:
    """All hops of the pipeline twice: far ones between nodes, near ones inside."""
    hops = strategy.layout.pipeline_parallel_size - 1
    far = minimum(hops, costs.cluster.nvlink_domains - 1)
    far = counted(far, "far_hops", "hops", of=hops, why="sends that leave a node or NVLink domain")
    slow = _send("pipeline", costs.links.pipeline, token_bytes)
    quick = _send("neighbour", costs.links.neighbours, token_bytes)
    return PerToken(
        2 * (far * slow.fixed_s + (hops - far) * quick.fixed_s),
        2 * (far * slow.token_s + (hops - far) * quick.token_s),
        0.0,
    )


def layer_traffic(costs: FamilyCosts, strategy: Strategy, *, moe_layer: bool) -> PerToken:
    """Collectives inside one layer of one micro batch, forward and backward."""
    found = _tensor(costs, strategy, costs.links.tensor)
    context, expert = costs.links.context, costs.links.expert
    if context.ranks > 1:
        exchange = EXCHANGES[strategy.engine.context_exchange]
        found = found.plus(exchange(costs, strategy, context))
    if expert.ranks > 1 and costs.model.moe is not None and moe_layer:
        found = found.plus(_to_experts(costs, strategy, costs.model.moe.experts_per_token))
    return found


def _to_experts(costs: FamilyCosts, strategy: Strategy, experts: int) -> PerToken:
    """Tokens to their experts and back, forward and backward; each a copy, or one for each rank.

    Of k experts spread evenly over n ranks n (1 - (1 - 1/n)^k) ranks are met (DeepEP, HybridEP).
    Beside the work of another micro batch as much shows as of gathers of weights.
    """
    link, run = costs.links.expert, strategy.runs_as
    copies: float = experts
    if run.expert_dispatch == "flex":
        copies = link.ranks * (1 - (1 - 1 / link.ranks) ** experts)
        copies = named(copies, "ranks_met", "ranks", "that hold a token's experts, on average")
    one = _activation_bytes(costs) * copies
    sent = gather_bytes(one, link.ranks)
    shown = NEVER_HIDDEN if run.overlaps_experts else 1.0
    token_s = named(link.exchange_s(one, 0.0), "expert_exchange_token_s", "s", TO_EXPERTS)
    return PerToken(4 * shown * link.round_s, 4 * shown * token_s, 4 * sent)


def _activation_bytes(costs: FamilyCosts) -> float:
    """Bytes per token that one layer passes to the next."""
    return named(costs.model.hidden_size * element_bytes(costs.workload), "token_bytes", "bytes")


def _tensor(costs: FamilyCosts, strategy: Strategy, link: Channel) -> PerToken:
    """Two all-reduces in forward and two in backward of each layer (Megatron-LM, figure 4)."""
    if link.ranks == 1:
        return NOTHING
    rounds = 6 if strategy.recompute == "full" else 4
    one = _activation_bytes(costs)
    fixed_s, token_s = rounds * link.reduce_s(0.0), rounds * link.reduce_s(one, 0.0)
    if strategy.sequence_parallel:
        again = 2 if strategy.runs_as.gathered_inputs == "gathered_again" else 0
        fixed_s = (rounds + again) * link.gather_s(0.0) + rounds * link.scatter_s(0.0)
        token_s = (rounds + again) * link.gather_s(one, 0.0) + rounds * link.scatter_s(one, 0.0)
    if strategy.runs_as.overlaps_tensor:
        fixed_s, token_s = OVERLAPPED_TENSOR * fixed_s, OVERLAPPED_TENSOR * token_s
    fixed_s += strategy.engine.tensor_wait_s(costs.cluster, strategy.sharding)
    fixed_s = named(fixed_s, "tensor_layer_fixed_s", "s", MEGATRON)
    token_s = named(token_s, "tensor_layer_token_s", "s", MEGATRON)
    return PerToken(fixed_s, token_s, rounds * 2 * gather_bytes(one, link.ranks))


def _context(costs: FamilyCosts, strategy: Strategy, link: Channel) -> PerToken:
    """Ring exchange of the keys and values of the whole sequence; attention hides half of it."""
    model = costs.model
    width = 2 * model.kv_heads * model.head_size / strategy.layout.tensor_parallel_size
    one = width * element_bytes(costs.workload) * link.ranks
    one = named(one, "ring_bytes", "bytes", "keys and values per token of the full sequence")
    sent = 3 * gather_bytes(one, link.ranks)
    token_s = named(1.5 * link.gather_s(one, 0.0), "context_layer_token_s", "s")
    return PerToken(1.5 * link.gather_s(0.0), token_s, sent)


def _sequence(costs: FamilyCosts, strategy: Strategy, link: Channel) -> PerToken:
    """All-to-alls of Ulysses around attention; nothing hides them."""
    passes = ulysses.passes(strategy)
    width = ulysses.exchanged_width(costs.model, link.ranks)
    one = named(width * element_bytes(costs.workload), "exchanged_bytes", "bytes")
    fixed_s, sent = link.round_s, gather_bytes(one, link.ranks)
    token_s = named(link.exchange_s(one, 0.0), "exchange_token_s", "s", "one all-to-all")
    return PerToken(ulysses.messages(strategy) * fixed_s, passes * token_s, passes * sent)


EXCHANGES = {"ring": _context, "all_to_all": _sequence}  # of tokens that context ranks share
