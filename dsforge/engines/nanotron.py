"""nanotron: fused norms, float32 gradient sums, and waits fitted on its published sweep.

The sweep (rows nano-pb: H100, 8 to 512 accelerators, ultra-scale playbook) is regular, but shows
waits that no link explains. A layer takes at least 4.3 ms once tensor parallelism is on. Where a
pipeline spans nodes, each further tensor rank adds 2 ms to a layer, whatever the message. On 64
nodes a blocking send takes 0.3 s more; on fewer, a quarter of the runs do, and nothing in their
configuration tells which. The causes are not known, so they are of use only to judge that sweep.
"""

from __future__ import annotations

from dsforge.engines.engine import Engine, Held, Sharding, Stalls
from dsforge.execution import Buckets, Execution
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.traced import log2, maximum, minimum

LAYER_HOST_S = 2.48e-3  # host time of one layer, forward and backward: binds small models
LOSS_BYTES = 8  # float32 copy and the softmax
LOGIT_TRAFFIC_BYTES = 68.0  # as Hugging Face's copies; fitted (`estimate/rates.py`)
TENSOR_HOST_S = 1.73e-3  # of eight collectives in Python, a layer forward and backward
PIPELINE_HOST_S = 2.4e-3  # more, where a pipeline spans nodes
RANK_WAIT_S = 1.87e-3  # more, for each further tensor rank of a node; beyond, by the root of nodes
FAR_WAIT_S = 2.79e-3  # of a layer whose tensor ranks span nodes, which no work hides
SEND_S = 0.336e-3  # a send that waits, with the message that announces its shape
STALL_S = 0.303  # of one round between 64 nodes
STALL_NODES = 64
STALL_POWER = 8  # of the share of those nodes: on half of them it is 1 ms
TENSOR_STALLS = 0.345  # rounds stalled for each tensor rank, up to the ranks of a node


def stage_layers(model: ModelSpec, pp: int, virtual: int) -> tuple[int, ...]:
    """Layers of each stage by their cost (`NanotronModel.get_block_compute_costs`).

    A stage is full with the layer that takes the sum beyond its share, the head counted in it.
    Chunks beyond the first of a stage are empty: nanotron does not interleave.
    """
    query = model.attention_heads * model.head_size
    layer = 4 * query * model.hidden_size + 3 * model.hidden_size * model.ffn_hidden_size
    total = model.layers * layer + model.vocab_size * model.hidden_size
    filled, reached, stage = [0] * pp, 0, 0
    for _ in range(model.layers):
        filled[stage] += 1
        reached += layer
        if reached * pp > total * (stage + 1) and stage < pp - 1:
            stage += 1
    return (*filled, *(0,) * pp * (virtual - 1))


def buffer_elements(model: ModelSpec, held: Held, sharding: Sharding, buckets: Buckets) -> float:
    """One bucket of all gradients in the compute precision, beside their float32 sums."""
    return 0.0 if sharding.layout.shard_ranks == 1 else held.trainable


def layer_host_s(cluster: ClusterSpec, workload: Workload, sharding: Sharding) -> float:
    """Launches of a layer's kernels, and what tensor parallelism adds, forward and backward."""
    layout = sharding.layout
    tensor = layout.tensor_parallel_size
    if tensor == 1:
        return LAYER_HOST_S
    if layout.pipeline_parallel_size == 1 or cluster.nodes == 1:
        return LAYER_HOST_S + TENSOR_HOST_S
    spread: float = maximum(1.0, tensor / cluster.gpus_per_node) ** 0.5
    waits_s = TENSOR_HOST_S + PIPELINE_HOST_S + RANK_WAIT_S * (tensor - 1) * spread
    return LAYER_HOST_S + waits_s


def tensor_wait_s(cluster: ClusterSpec, sharding: Sharding) -> float:
    """Seconds that a layer waits beside its collectives, forward and backward."""
    layout = sharding.layout
    far = layout.tensor_parallel_size > cluster.gpus_per_node and layout.pipeline_parallel_size == 1
    return FAR_WAIT_S if far else 0.0


def send_wait_s(cluster: ClusterSpec, sharding: Sharding) -> float:
    """Seconds of one blocking exchange of a stage, beside the transfer; inner stages have two."""
    neighbours = minimum(2, sharding.layout.pipeline_parallel_size - 1)
    return SEND_S + neighbours * _stall_s(cluster.nodes)


def stalls(cluster: ClusterSpec, sharding: Sharding) -> Stalls:
    """Stalls that no pipeline send explains."""
    layout, one_s = sharding.layout, _stall_s(cluster.nodes)
    once = log2(layout.data_parallel_size) if sharding.zero_stage == 0 else 0.0
    each = 0.0
    if layout.pipeline_parallel_size == 1:
        each = TENSOR_STALLS * minimum(layout.tensor_parallel_size - 1, 8)
    return Stalls(once * one_s, each * one_s)


def _stall_s(nodes: int) -> float:
    """Seconds that one round between nodes stalls."""
    share: float = (nodes / STALL_NODES) ** STALL_POWER
    return STALL_S * share


def overlaps_gradients(layout: Layout, buckets: Buckets) -> bool:
    """Reduction beside backward, unless there is a pipeline."""
    return layout.pipeline_parallel_size == 1


ENGINE = Engine(
    name="nanotron",
    label="nanotron",
    short_label="nanotron",
    execution=Execution.model_construct(
        trainer="nanotron", kernels="fused_norms", gradients="fp32"
    ),
    back_end="megatron",
    reads_own_part=True,
    sequence_parallel=True,
    stage_layers=stage_layers,
    buffer_elements=buffer_elements,
    loss_bytes=lambda run, size: LOSS_BYTES,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    overlaps_gradients=overlaps_gradients,
    layer_host_s=layer_host_s,
    tensor_wait_s=tensor_wait_s,
    send_wait_s=send_wait_s,
    stalls=stalls,
    step_ends=(0.84, 1.3),
    memory_errors=(0.02, 0.1),
    runs_row=lambda framework, sharding: "nanotron" in framework,
    splits_sequence=True,  # reduce-scatter mode; tables leave open whether inputs are kept whole
)
