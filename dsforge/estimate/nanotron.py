"""What nanotron waits for: fitted on its published sweep, of use only to judge rows of that sweep.

The sweep (rows nano-pb: H100, 8 to 512 accelerators, ultra-scale playbook) is regular, but shows
waits that no link explains. A layer takes at least 4.3 ms once tensor parallelism is on. Where a
pipeline spans nodes, each further tensor rank adds 2 ms to a layer, whatever the message. On 64
nodes a blocking send takes 0.3 s more; on fewer, a quarter of the runs do, and nothing in their
configuration tells which. The causes are not known; they are kept apart from the model of other
software.
"""

from __future__ import annotations

from math import log2

from dsforge.layout import Layout
from dsforge.specs import ClusterSpec
from dsforge.strategy import Strategy

TENSOR_HOST_S = 1.73e-3  # of eight collectives in Python, a layer forward and backward
PIPELINE_HOST_S = 2.4e-3  # more, where a pipeline spans nodes
RANK_WAIT_S = 1.87e-3  # more, for each further tensor rank of a node; beyond, by the root of nodes
FAR_WAIT_S = 2.79e-3  # of a layer whose tensor ranks span nodes, which no work hides
SEND_S = 0.336e-3  # a send that waits, with the message that announces its shape
STALL_S = 0.303  # of one round between 64 nodes
STALL_NODES = 64
STALL_POWER = 8  # of the share of those nodes: on half of them it is 1 ms
TENSOR_STALLS = 0.345  # rounds stalled for each tensor rank, up to the ranks of a node


def layer_wait_s(cluster: ClusterSpec, layout: Layout) -> float:
    """Seconds that the host adds to a layer under tensor parallelism, forward and backward."""
    tensor = layout.tensor_parallel_size
    if tensor == 1:
        return 0.0
    if layout.pipeline_parallel_size == 1 or cluster.nodes == 1:
        return TENSOR_HOST_S
    spread = max(1.0, tensor / cluster.gpus_per_node) ** 0.5
    return float(TENSOR_HOST_S + PIPELINE_HOST_S + RANK_WAIT_S * (tensor - 1) * spread)


def far_wait_s(layout: Layout, gpus_per_node: int) -> float:
    """Seconds that a layer waits beside its collectives, forward and backward."""
    far = layout.tensor_parallel_size > gpus_per_node and layout.pipeline_parallel_size == 1
    return FAR_WAIT_S if far else 0.0


def send_s(strategy: Strategy, nodes: int) -> float:
    """Seconds of one blocking exchange of a stage, beside the transfer; inner stages have two."""
    neighbours = min(2, strategy.layout.pipeline_parallel_size - 1)
    return SEND_S + neighbours * _stall_s(nodes)


def stalls_s(strategy: Strategy, nodes: int) -> tuple[float, float]:
    """Seconds of stalls that no pipeline send explains: once a step, in every micro step."""
    layout, one_s = strategy.layout, _stall_s(nodes)
    once = log2(layout.data_parallel_size) if strategy.zero_stage == 0 else 0.0
    each = 0.0
    if layout.pipeline_parallel_size == 1:
        each = TENSOR_STALLS * min(layout.tensor_parallel_size - 1, 8)
    return once * one_s, each * one_s


def _stall_s(nodes: int) -> float:
    """Seconds that one round between nodes stalls."""
    return STALL_S * (nodes / STALL_NODES) ** STALL_POWER
