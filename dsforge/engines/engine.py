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

States = Literal["zero", "whole_gradients", "fp32_shards"]
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


class Stalls(NamedTuple):
    """Seconds in which ranks wait and no link, product or launch explains it."""

    step_s: float = 0.0  # once a step
    micro_step_s: float = 0.0


def even_stages(model: ModelSpec, pp: int, virtual: int) -> tuple[int, ...]:
    """Layers of each pipeline chunk, in the order in which a token passes them: as equal as may be.

    With several chunks a stage (`virtual`) the first `pp` chunks are the stages' first ones.
    """
    split, idle = layer_split(model.layers, pp), (0,) * pp * (virtual - 1)
    if split is None:  # no engine accepts it; it is priced all the same
        share, more = divmod(model.layers, pp)
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

    # Who holds what.
    states: States = "whole_gradients"
    reads_own_part: bool = False  # of the initial weights: each rank only its tensor/pipeline part
    head_sharded: bool = True  # the head's logits are split over tensor-parallel ranks
    stage_layers: Callable[[ModelSpec, int, int], tuple[int, ...]] = even_stages
    buffer_elements: Callable[[ModelSpec, Held, Sharding, Buckets], float] = no_buffers

    # Ways to split a model that a search may take.
    combines_splits: bool = True  # tensor, pipeline and context parallelism in one run
    sequence_parallel: bool = False  # activations outside products split over tensor ranks
    expert_parallel: bool = False
    interleaves: bool = False  # several chunks of layers a pipeline stage

    # What a layer saves and computes again.
    repeats_keys: bool = True  # attention that keeps scores repeats keys and values to all heads
    selective: SelectiveRecompute = "scores"
    flash_kernels: FlashKernels = "flash2"
    norms_in_python: bool = False  # eager RMSNorm of separate operations, in float32

    # The loss.
    chunks_loss: bool = False  # default loss: a chunk of tokens at a time where the model allows it
    loss_bytes: Callable[[Execution, int], int]  # beside a logit in `int` bytes, at the peak
    logit_traffic_bytes: float  # moved for each whole logit, forward and backward
    head_gradient_in_buffer: bool = True  # of the head's weight: not a tensor beside the logits

    # Collectives.
    gradient_type: Callable[[Execution, Sharding], GradientType] = summed_type
    scatters_gradients: bool = False  # of a sharded optimizer; else they are all-reduced
    overlaps_gradients: Callable[[Layout, Buckets], bool] = lambda layout, buckets: False
    gathers_to_recompute: bool = True  # sharded weights once more for what backward computes again
    context_exchange: ContextExchange = "ring"

    # Waits.
    layer_host_s: Callable[[ClusterSpec, Workload, Sharding], float]  # forward and backward
    tensor_wait_s: Callable[[ClusterSpec, Sharding], float] = lambda cluster, sharding: 0.0
    send_wait_s: Callable[[ClusterSpec, Sharding], float] | None = None  # sends that block
    stalls: Callable[[ClusterSpec, Sharding], Stalls] = lambda cluster, sharding: Stalls()

    # Published rows.
    runs_row: Callable[[str, str], bool] = never  # framework and sharding, lower case
    kept_scores: Callable[[str, str], bool] = never  # framework, precision: before fused attention
    splits_sequence: bool = False  # sequence parallel, unless a row says otherwise

    @property
    def has_zero_stages(self) -> bool:
        """Whether its states follow ZeRO's stages, with flat partitions and buckets."""
        return self.states == "zero"
