"""Bytes of one trainable parameter in the optimizer: its master weight and its moments."""

from __future__ import annotations

from dsforge.specs import LOW_BIT, Workload
from dsforge.strategy import Execution
from dsforge.traced import counted

# float32 moments per parameter. Adafactor factors its second moment: about nothing.
MOMENTS = {"adamw": 2, "lion": 1, "sgd": 1, "adafactor": 0, "muon": 1, **dict.fromkeys(LOW_BIT, 2)}
MOMENT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
# Optimizers of bitsandbytes: moments of AdamW, and bytes of each; 8-bit ones have a float32 scale
# for every 256 elements (bitsandbytes `optim/optimizer.py`, `Optimizer2State.init_state`).
SCALED_8_BIT = 1 + 4 / 256
LOW_BIT_BYTES = {"adamw_8bit": SCALED_8_BIT, "paged_adamw_8bit": SCALED_8_BIT}
PAGED = ("paged_adamw_8bit", "paged_adamw_32bit")


def optimizer_bytes_per_parameter(workload: Workload, run: Execution | None = None) -> float:
    """Bytes of master weight (none in fp32) and moments of one trainable parameter."""
    master = 0 if workload.precision == "fp32" or (run and not run.master_weights) else 4
    size = master + moment_bytes(workload, run)
    return counted(size, "optimizer_bytes_per_parameter", "bytes", of=workload.sequence_length)


def moment_bytes(workload: Workload, run: Execution | None) -> float:
    """Bytes of all moments of one trainable parameter."""
    usual = MOMENT_BYTES[run.moments] if run else 4
    return LOW_BIT_BYTES.get(workload.optimizer, usual) * MOMENTS[workload.optimizer]


def share_of_roots(workload: Workload) -> float:
    """Roots of all second moments, which torch's AdamW makes at once, as a share of the moments.

    Its default on CUDA is `foreach` (torch/optim/adam.py, `_multi_tensor_adam`:
    `exp_avg_sq_sqrt = torch._foreach_sqrt`); the kernels of bitsandbytes are fused. On a CPU the
    default takes one weight after the other (torch/optim/optimizer.py,
    `_default_to_fused_or_foreach`), and so has the root of one at a time.
    """
    return 1 / MOMENTS["adamw"] if workload.optimizer == "adamw" else 0.0


def paged_bytes_per_parameter(workload: Workload, run: Execution | None = None) -> float:
    """Bytes of moments in pages that may be in RAM (bitsandbytes `functional.get_paged`)."""
    if workload.optimizer not in PAGED:
        return 0.0
    size = moment_bytes(workload, run)
    return counted(size, "paged_bytes_per_parameter", "bytes", of=workload.sequence_length)
