"""Weights and gradients of torch without sharding: one accelerator, or the replicas of DDP.

Under autocast the weights that train are in float32, and a copy of each in the compute type lives
from forward to backward (torch/amp, `autocast`: the cache of casts). Frozen weights have the type
in which they were loaded. A model that trains in bf16 has neither float32 weights nor copies:
torch's optimizers make their moments `zeros_like` the weight.
"""

from __future__ import annotations

from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.execution import Execution
from dsforge.specs import Workload


def replicas(
    workload: Workload, run: Execution, weights: float, trained: float
) -> tuple[float, float]:
    """Bytes of all weights and of gradients; `weights` are those in the compute type."""
    size = element_bytes(workload)
    if not run.master_weights:
        return weights, size * trained
    return weights + (FLOAT_BYTES * trained if size < FLOAT_BYTES else 0.0), FLOAT_BYTES * trained
