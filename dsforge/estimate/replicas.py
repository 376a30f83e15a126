"""Weights and gradients of torch without sharding: one accelerator, or the replicas of DDP.

Under autocast the weights that train are in float32, and a copy of each in the compute type lives
from forward to backward (torch/amp, `autocast`: the cache of casts). Frozen weights have the type
in which they were loaded. A model that trains in bf16 has neither float32 weights nor copies:
torch's optimizers make their moments `zeros_like` the weight.

DDP copies each gradient into a bucket that it reduces, so both stay: gradients are views of the
buckets only where a script asks for it (torch/nn/parallel/distributed.py,
`gradient_as_bucket_view`, which is False unless set).
"""

from __future__ import annotations

from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.specs import Workload
from dsforge.strategy import Strategy
from dsforge.traced import counted

VIEWS = "gradients, and the buckets that DDP copies them to; 1 where they are views of those"


def replicas(
    workload: Workload, strategy: Strategy, weights: float, trained: float
) -> tuple[float, float]:
    """Bytes of all weights and of gradients; `weights` are those in the compute type."""
    size, masters = element_bytes(workload), strategy.runs_as.master_weights
    if masters and size < FLOAT_BYTES:
        weights += FLOAT_BYTES * trained
    return weights, (FLOAT_BYTES if masters else size) * _copies(strategy, trained) * trained


def _copies(strategy: Strategy, trained: float) -> float:
    """Whole gradients on a rank: two where replicas reduce copies of them."""
    copied = strategy.layout.shard_ranks > 1 and strategy.runs_as.software == "others"
    return counted(2 if copied else 1, "gradient_copies", "", of=trained, why=VIEWS)
