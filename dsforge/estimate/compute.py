"""What the host needs to keep an accelerator busy, and the optimizer on the accelerator.

A layer whose kernels end before the host has launched the next ones waits for the host: small
models, large tensor parallelism.
"""

from __future__ import annotations

from dsforge.estimate import nanotron
from dsforge.estimate.rates import memory_bytes_per_s
from dsforge.specs import ClusterSpec, GpuSpec, Workload
from dsforge.traced import named
from dsforge.strategy import FULLY_SHARDED, Strategy, Trainer

# Host time of one layer, forward and backward. No published row but nanotron's is bound by it.
HOST_S: dict[Trainer, float] = {
    "megatron": 0.5e-3,
    "deepspeed": 0.9e-3,
    "fsdp": 0.9e-3,
    "torchtune": 0.9e-3,
    "nanotron": 2.48e-3,
}
# DeepSpeed's stage 3 runs Python before and after each module, to fetch and release its weights.
HOOK_S = 0.25e-3  # of one module in one pass (LlamaFactory#5014: at most 0.5)
LAYER_MODULES = 13  # of a Hugging Face decoder layer: seven matrices, norms, what holds them
ADAPTER_MODULES = 28  # more under LoRA: two matrices, a dropout and a holder for each of the seven


def layer_host_s(
    cluster: ClusterSpec, workload: Workload, strategy: Strategy, passes: float
) -> float:
    """Seconds in which the host launches one layer's kernels, all passes."""
    trainer, layout = strategy.runs_as.trainer, strategy.layout
    if cluster.gpu.is_cpu:
        return 0.0
    seconds = HOST_S[trainer]
    if trainer == "deepspeed" and strategy.zero_stage == FULLY_SHARDED:
        modules = LAYER_MODULES + (ADAPTER_MODULES if workload.method == "lora" else 0)
        seconds += 3 * modules * HOOK_S
    elif trainer == "nanotron":
        seconds += nanotron.layer_wait_s(cluster, layout)
    return seconds * passes / 3


def optimizer_s(gpu: GpuSpec, trainable: float, state_bytes: float) -> float:
    """Seconds of the optimizer on the device: states read and written, gradients, weights."""
    moved = 2 * state_bytes + 8 * trainable
    return named(moved / memory_bytes_per_s(gpu), "device_optimizer_s", "s")
