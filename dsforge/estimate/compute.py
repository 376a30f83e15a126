"""Seconds of the host to launch a layer's kernels, and of the optimizer on the accelerator.

A layer whose kernels end before the host has launched the next ones waits for the host: small
models, large tensor parallelism.
"""

from __future__ import annotations

from dsforge.engines.deepspeed import LAUNCH_S
from dsforge.estimate.quantised import dequantising_launches
from dsforge.estimate.rates import memory_bytes_per_s
from dsforge.specs import ClusterSpec, GpuSpec, ModelSpec, Workload
from dsforge.strategy import Strategy
from dsforge.traced import counted, named

LAUNCH = "host time of the engine per layer, forward and backward"
# Kernels of an expert by itself in one pass: three to find its tokens, one to take them, three
# products, activation and product with the gate, two to weigh, one to add (transformers 4.51,
# `Qwen3MoeSparseMoeBlock.forward`; `MixtralSparseMoeBlock.forward` alike).
EXPERT_LAUNCHES = 12
LOOP = "the host goes through a layer's experts, each of which is a module"
UNPACKING = "host launches of kernels that dequantise matrices"
PASSES = 3  # that an engine's host time is given for: one forward, and backward as two


def layer_host_s(
    cluster: ClusterSpec, workload: Workload, strategy: Strategy, passes: float
) -> float:
    """Seconds in which the host launches one layer's kernels, all passes."""
    if cluster.gpu.is_cpu:
        return 0.0
    seconds = strategy.engine.layer_host_s(cluster, workload, strategy.sharding)
    seconds = counted(seconds, "engine_host_s", "s", of=passes, why=LAUNCH)
    more = dequantising_launches(workload, passes)
    more_s = named(more * LAUNCH_S, "unpacking_host_s", "s", UNPACKING)
    return seconds * passes / PASSES + more_s


def expert_host_s(model: ModelSpec, strategy: Strategy, passes: float) -> float:
    """Seconds more in which the host goes through the experts of a layer, all passes."""
    if model.moe is None or not strategy.runs_as.expert_modules:
        return 0.0
    each_s = EXPERT_LAUNCHES * LAUNCH_S + strategy.engine.expert_hooks_s(strategy.sharding)
    return named(model.moe.experts * each_s * passes, "expert_host_s", "s", LOOP)


def optimizer_s(gpu: GpuSpec, trainable: float, state_bytes: float) -> float:
    """Seconds of the optimizer on the device: states read and written, gradients, weights."""
    moved = 2 * state_bytes + 8 * trainable
    return named(moved / memory_bytes_per_s(gpu), "device_optimizer_s", "s")
