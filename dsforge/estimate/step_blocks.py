"""Blocks that the optimizer step of ZeRO stages 1 and 2 adds to reserved memory.

The step makes whole tensors of a rank's partition: its gradients flattened, their float32 copy
(`stage_1_and_2.py`, `step`), and the square roots of torch's AdamW (`torch/optim/adam.py`,
`_multi_tensor_adam`, `torch._foreach_sqrt`). What backward has freed are the pieces of activations
and logits: the caching allocator gives out a block only where one piece is long enough, so it takes
new ones from the device and keeps both. It returns free pieces before it fails
(`CUDACachingAllocator.cpp`, `release_cached_blocks`): such blocks never make a job too large.
With `expandable_segments`, as runs of dsforge are started, pieces are joined.
"""

from __future__ import annotations

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.optimizer_bytes import moment_bytes, share_of_roots, stepped_bytes
from dsforge.estimate.shard import RankParameters
from dsforge.estimate.states import shares, sums_beside
from dsforge.specs import Workload
from dsforge.strategy import GRADIENTS_SHARDED, Strategy
from dsforge.traced import named

BLOCKS = "flat gradients, their float32 copy, roots of the second moment: whole tensors of a step"


def step_block_bytes(workload: Workload, strategy: Strategy, held: RankParameters) -> float:
    """Bytes of the tensors that a step makes; 0 where the allocator joins what backward freed."""
    ours = strategy.runs_as.software == "dsforge"
    zero = strategy.engine.has_zero_stages and 1 <= strategy.zero_stage <= GRADIENTS_SHARDED
    if ours or not zero or strategy.offload_optimizer != "none" or sums_beside(workload, strategy):
        return 0.0
    size, stepped = element_bytes(workload), stepped_bytes(workload, strategy.runs_as)
    copied = size + (stepped if size < stepped else 0)
    each = copied + moment_bytes(workload, strategy.runs_as) * share_of_roots(workload)
    return named(each * shares(strategy).of_trainable(held), "step_blocks", "bytes", BLOCKS)
