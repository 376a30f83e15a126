"""Bytes of one trainable parameter in the optimizer: its master weight and its moments."""

from __future__ import annotations

from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.specs import LOW_BIT, Workload
from dsforge.strategy import Execution, Strategy
from dsforge.traced import counted

# float32 moments per parameter. Adafactor factors its second moment: about nothing.
MOMENTS = {"adamw": 2, "lion": 1, "sgd": 1, "adafactor": 0, "muon": 1, **dict.fromkeys(LOW_BIT, 2)}
MOMENT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
# Optimizers of bitsandbytes: moments of AdamW, and bytes of each; 8-bit ones have a float32 scale
# for every 256 elements (bitsandbytes `optim/optimizer.py`, `Optimizer2State.init_state`).
SCALED_8_BIT = 1 + 4 / 256
LOW_BIT_BYTES = {"adamw_8bit": SCALED_8_BIT, "paged_adamw_8bit": SCALED_8_BIT}
PAGED = ("paged_adamw_8bit", "paged_adamw_32bit")


def optimizer_bytes_per_parameter(workload: Workload, strategy: Strategy) -> float:
    """Bytes of master weight and moments of one trainable parameter."""
    size = master_bytes(workload, strategy) + moment_bytes(workload, strategy.runs_as)
    return counted(size, "optimizer_bytes_per_parameter", "bytes", of=workload.sequence_length)


def master_bytes(workload: Workload, strategy: Strategy) -> int:
    """Bytes of a master weight; 0 where the optimizer steps the weights that compute.

    ZeRO's optimizers step a copy of their partition, whatever its type (`stage_1_and_2.py`:
    `.detach().clone().to(`; `stage3.py`, `_create_fp32_partitions`, compares a device with its
    name, so it copies, too); elsewhere there is a copy where its type differs.
    """
    size, kind = element_bytes(workload), stepped_bytes(workload, strategy.runs_as)
    copied = strategy.engine.has_zero_stages and strategy.zero_stage >= 1
    return kind if copied or kind != size else 0


def stepped_bytes(workload: Workload, run: Execution) -> int:
    """Bytes of an element of what the optimizer steps, and of its gradient in the step."""
    return FLOAT_BYTES if run.master_weights else element_bytes(workload)


def moment_bytes(workload: Workload, run: Execution) -> float:
    """Bytes of all moments of one trainable parameter."""
    usual = MOMENT_BYTES[run.moments]
    return LOW_BIT_BYTES.get(workload.optimizer, usual) * MOMENTS[workload.optimizer]


def share_of_roots(workload: Workload) -> float:
    """Roots of all second moments, which torch's AdamW makes at once, as a share of the moments.

    Its default on CUDA is `foreach` (torch/optim/adam.py, `_multi_tensor_adam`:
    `exp_avg_sq_sqrt = torch._foreach_sqrt`); the kernels of bitsandbytes are fused. On a CPU the
    default takes one weight after the other (torch/optim/optimizer.py,
    `_default_to_fused_or_foreach`), and so has the root of one at a time.
    """
    return 1 / MOMENTS["adamw"] if workload.optimizer == "adamw" else 0.0


def paged_bytes_per_parameter(workload: Workload, run: Execution) -> float:
    """Bytes of moments in pages that may be in RAM (bitsandbytes `functional.get_paged`)."""
    if workload.optimizer not in PAGED:
        return 0.0
    size = moment_bytes(workload, run)
    return counted(size, "paged_bytes_per_parameter", "bytes", of=workload.sequence_length)
