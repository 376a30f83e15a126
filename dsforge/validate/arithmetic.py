"""One line of arithmetic: what anybody computes on paper, and what a predictor has to beat.

Speed: 6 FLOPs a parameter and token (forward 2, backward 4), 8 with full recomputation, at 41 % of
the card's peak, the median of published training runs. Memory: 18 bytes a trained parameter (16-bit
weight 2, fp32 gradient 4, fp32 master and two moments 12), each share divided by the ranks where
ZeRO shards it, and 2 bytes a frozen one. No activations, no network, no kernels.
"""

from __future__ import annotations

from dsforge.estimate.rates import peak_flops
from dsforge.estimate.run import HOUR_S
from dsforge.plan import Plan
from dsforge.units import GIB, TFLOP
from dsforge.validate.figures import BILLION, MEMORY, NO_SPEED, Figure

FLOPS_PER_PARAMETER = 6
FLOPS_WITH_RECOMPUTATION = 8
FROZEN_FLOPS_PER_PARAMETER = 4  # forward 2, backward 2: no weight gradients
UTILISATION = 0.41
WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12  # bytes of one trained parameter
SHARDED_FROM = {WEIGHT: 3, GRADIENT: 2, OPTIMIZER: 1}  # ZeRO stage


def on_paper(figure: Figure, plan: Plan) -> float | None:
    """The figure in its own unit by one line of arithmetic; none where there is no such line."""
    if figure.quantity in NO_SPEED:
        return None
    unit = GIB if figure.unit == "GiB" else BILLION
    if figure.quantity in MEMORY:
        return _state_bytes(figure, plan) / unit
    return _speed(figure, plan)


def _state_bytes(figure: Figure, plan: Plan) -> float:
    """Bytes of model states on one rank, or of all ranks, or of the optimizer's alone."""
    strategy, gpus = plan.strategy, plan.cluster.gpus
    layout = strategy.layout
    cut = layout.tensor_parallel_size * layout.pipeline_parallel_size
    parameters = plan.parameters / cut
    if plan.workload.method == "lora":
        return 2 * parameters / (gpus / cut if strategy.zero_stage == 3 else 1)  # noqa: PLR2004
    kept = (OPTIMIZER,) if figure.quantity == "opt_states" else tuple(SHARDED_FROM)
    each = sum(
        part / (gpus / cut if strategy.zero_stage >= SHARDED_FROM[part] else 1) for part in kept
    )
    return parameters * each * (gpus if figure.quantity == "mem_total" else 1)


def _speed(figure: Figure, plan: Plan) -> float:
    """Step time or a rate, from FLOPs at a usual utilisation of the card."""
    workload, gpus = plan.workload, plan.cluster.gpus
    again = plan.strategy.recompute == "full"
    useful = FLOPS_PER_PARAMETER if workload.method == "full" else FROZEN_FLOPS_PER_PARAMETER
    executed = useful + (FLOPS_WITH_RECOMPUTATION - FLOPS_PER_PARAMETER if again else 0)
    rate = UTILISATION * peak_flops(plan.cluster.gpu, "bf16")
    step_s = executed * plan.parameters * workload.tokens_per_step / (gpus * rate)
    tokens = workload.tokens_per_step / step_s / gpus
    tflops = tokens * plan.parameters / TFLOP
    found = {
        "step_s": step_s,
        "samples/s": workload.global_batch_size / step_s,
        "tok/s/gpu": tokens,
        "gpu_hours": (workload.tokens or 0) / tokens / HOUR_S,
        "hw_tflops": executed * tflops,
        "hw_tflops_total": executed * tflops * gpus,
        "mds_tflops": FLOPS_WITH_RECOMPUTATION * tflops,
        "model_tflops": useful * tflops,
        "full_tflops": useful * tflops,
        "mfu": 100 * UTILISATION * useful / executed,
        "mfu_full": 100 * UTILISATION * useful / executed,
    }
    return found[figure.quantity]
