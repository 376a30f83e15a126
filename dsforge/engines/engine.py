"""What a prediction asks of the software that trains: facts and a few functions, all of one engine.

The formulas stand once, in `estimate/`; they branch on these facts and never on a name. A fact's
default is what plain data-parallel training with PyTorch's own modules does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsforge.execution import BackEnd, Buckets, Execution, GradientType
from dsforge.layout import Layout, layer_split
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.zero_stages import ZeroStage

# Words of engines whose layers are Hugging Face's modules, or modules like them.
OF_MODULES = frozenset(
    ("attention", "expert_modules", "kernels", "offload_activations", "tiled_mlp", "trainer")
)
States = Literal["zero", "whole_gradients", "fp32_shards", "fp32_replicas"]
ContextExchange = Literal["all_to_all", "ring"]
SelectiveRecompute = Literal["scores", "every_other_product"]
FlashKernels = Literal["cudnn", "flash2"]


class Held(NamedTuple):
    """Elements on one rank of a pipeline stage before ZeRO shards them, and the stage's layers."""

    total: float
    trainable: float
    layers: int


class Sharding(NamedTuple):
    """How a model is split over ranks."""

    layout: Layout
    zero_stage: ZeroStage
    in_ram: bool = False  # shards of weights are kept in RAM


class Stalls(NamedTuple):
    """Seconds in which ranks wait and no link, product or launch explains it."""

    step_s: float = 0.0  # once a step
    micro_step_s: float = 0.0


class Messages(NamedTuple):
    """How sharded weights and gradients of one layer travel, in one pass."""

    gathers: float = 1.0
    scatters: float = 1.0
    repeated: float = 0.0  # share of the weights that is gathered again after recomputation
    hop_s: float = 0.0  # of each rank of a node that a message passes; at least the link's latency
    far_hop_s: float = 0.0  # of each node that it passes


def layer_at_once(model: ModelSpec, elements: float, buckets: Buckets) -> Messages:
    """A layer is one message, with the latency of its links."""
    return Messages()


def even_stages(model: ModelSpec, pp: int, virtual: int) -> tuple[int, ...]:
    """Layers of each pipeline chunk, in the order in which a token passes them: as equal as may be.

    With several chunks a stage (`virtual`) the first `pp` chunks are the stages' first ones.
    """
    split, idle = layer_split(model.depth, pp), (0,) * pp * (virtual - 1)
    if split is None:  # no engine accepts it; it is priced all the same
        share, more = divmod(model.depth, pp)
        return tuple(share + (stage < more) for stage in range(pp)) + idle
    if virtual == 1 or not split.interleaves(virtual):
        return split.of_stages(pp) + idle
    share, ends = split.middle // virtual, int(split.ends_count)
    return (share - ends, *(share,) * (pp * virtual - 2), share - ends)


def no_buffers(model: ModelSpec, held: Held, sharding: Sharding, buckets: Buckets) -> float:
    """Elements in buffers of an engine that has none beside its states: 0."""
    return 0.0


def summed_type(run: Execution, sharding: Sharding) -> GradientType:
    """Type of gradients on the wire: the one in which they are summed."""
    return run.gradients


def never(framework: str, sharding: str) -> bool:
    """Whether a published row names the engine: for those that no table names."""
    return False


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine. Bytes and seconds are of one rank; sources stand in each engine's module."""

    name: str  # in `Execution.trainer`
    label: str  # as its project writes it
    short_label: str  # in the names of strategies; engines with ZeRO stages are named by the stage
    execution: Execution  # how it runs unless told otherwise
    back_end: BackEnd  # under which its strategies are written

    # Words of a spec's `strategy` that it gives a meaning, of those that not every engine has.
    words: frozenset[str] = frozenset()

    # Who holds what.
    states: States = "whole_gradients"
    reads_own_part: bool = False  # of the initial weights: each rank only its tensor/pipeline part
    flat_parameters: bool = False  # one flat tensor a unit (FSDP1), in scripts that do not ask
    copies_ends: bool = False  # tensor ranks hold copies of embeddings, norms, tied heads
    head_sharded: bool = True  # the head's logits are split over tensor-parallel ranks
    stage_layers: Callable[[ModelSpec, int, int], tuple[int, ...]] = even_stages
    buffer_elements: Callable[[ModelSpec, Held, Sharding, Buckets], float] = no_buffers

    # Ways to split a model that a search may take.
    combines_context: bool = True  # context with tensor or pipeline parallelism in one run
    sequence_parallel: bool = False  # activations outside products split over tensor ranks
    expert_parallel: bool = False
    interleaves: bool = False  # several chunks of layers a pipeline stage

    # What a layer saves and computes again.
    repeats_keys: bool = True  # attention that keeps scores repeats keys and values to all heads
    selective: SelectiveRecompute = "scores"
    offloads_saved: bool = False  # `offload_activations` moves all that is saved, not only inputs
    narrow_softmax: bool = False  # unfused attention with dropout leaves it in the compute type
    flash_kernels: FlashKernels = "flash2"
    norms_in_python: bool = False  # eager RMSNorm of separate operations, in float32

    # The loss.
    chunks_loss: bool = False  # default loss: a chunk of tokens at a time where the model allows it
    loss_bytes: Callable[[Execution, int], int]  # beside a logit in `int` bytes, at the peak
    logit_traffic_bytes: float  # moved for each whole logit, forward and backward
    head_gradient_in_buffer: bool = True  # of the head's weight: not a tensor beside the logits

    # Collectives.
    gradient_type: Callable[[Execution, Sharding], GradientType] = summed_type
    sends_parts: bool = True  # each tensor rank sends a part of what a pipeline stage hands on
    scatters_gradients: bool = False  # of a sharded optimizer; else they are all-reduced
    overlaps_gradients: Callable[[Layout, Buckets], bool] = lambda layout, buckets: False
    layer_messages: Callable[[ModelSpec, float, Buckets], Messages] = layer_at_once
    never_hidden: float | None = None  # share of gathers and scatters; none: as of gradients
    context_exchange: ContextExchange = "ring"

    # Waits.
    layer_host_s: Callable[[ClusterSpec, Workload, Sharding], float]  # forward and backward
    expert_hooks_s: Callable[[Sharding], float] = lambda sharding: 0.0  # of one, in one pass
    tensor_wait_s: Callable[[ClusterSpec, Sharding], float] = lambda cluster, sharding: 0.0
    send_wait_s: Callable[[ClusterSpec, Sharding], float] | None = None  # sends that block
    stalls: Callable[[ClusterSpec, Sharding], Stalls] = lambda cluster, sharding: Stalls()

    # Doubts: 80 % of its published steps lie between these shares of what is computed, and of what
    # waits; of its published peaks within these shares of states and of what grows with the batch.
    step_ends: tuple[float, float] = (0.88, 1.19)
    waiting_ends: tuple[float, float] = (0.7, 1.9)
    memory_errors: tuple[float, float] = (0.03, 0.12)

    # Published rows.
    runs_row: Callable[[str, str], bool] = never  # framework and sharding, lower case
    kept_scores: Callable[[str, str], bool] = never  # framework, precision: before fused attention
    splits_sequence: bool = False  # sequence parallel, unless a row says otherwise

    @property
    def has_zero_stages(self) -> bool:
        """Whether its states follow ZeRO's stages, with flat partitions and buckets."""
        return self.states == "zero"
