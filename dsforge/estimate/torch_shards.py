"""Weights that train and gradients of PyTorch FSDP: shards of one type, whole ones in between."""

from __future__ import annotations

from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.specs import Workload
from dsforge.strategy import Strategy


def shard_gradient_bytes(
    workload: Workload, strategy: Strategy, trainable: float, shard: float
) -> float:
    """Bytes of FSDP's gradients: shards in the weights' type, or whole ones, reduced once a step.

    Whole ones are summed in the type that is reduced (torch distributed/fsdp/_fully_shard/
    _fsdp_param.py, `to_accumulated_grad_if_needed`): accelerate reduces in the compute type.
    """
    if not strategy.reduces_once:
        return trained_bytes(workload, strategy) * shard
    staged = strategy.layout.pipeline_parallel_size > 1
    wide = staged or strategy.runs_as.gradients == "fp32"
    return (FLOAT_BYTES if wide else element_bytes(workload)) * trainable


def trained_bytes(workload: Workload, strategy: Strategy) -> int:
    """Bytes of a trained weight in a shard: float32, or the type in which it was loaded.

    A gradient's shard has the type of its weight (torch distributed/fsdp/_fully_shard/
    _fsdp_collectives.py, `foreach_reduce`: `reduce_output` is cast to `orig_dtype`).
    """
    return FLOAT_BYTES if strategy.runs_as.master_weights else element_bytes(workload)
