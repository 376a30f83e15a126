"""Parameters that the constructors of optimizers and schedules take, beside what they work on.

DeepSpeed passes `optimizer.params` and `scheduler.params` on unchanged, so any other name raises a
TypeError. The names are the same in every release from 0.14.0 to 0.19.8; a test compares them with
the source of the installed DeepSpeed and torch.
"""

from __future__ import annotations

from collections.abc import Mapping

_TORCH = ("foreach", "maximize", "capturable", "differentiable", "fused")
_BASE = ("lr", "betas", "eps", "weight_decay")
_FUSED_ADAM = (*_BASE, "bias_correction", "adam_w_mode", "amsgrad", "set_grad_none")
_CPU_ADAM = ("adamw_mode", "fp32_optimizer_states")
_ADAM = (*_FUSED_ADAM, *_CPU_ADAM, "torch_adam", "decoupled_weight_decay", *_TORCH)
_DECOUPLED = ("decoupled_weight_decay",)

# By name in small letters: the GPU, the CPU and torch's version together, as the engine chooses.
OPTIMIZERS: Mapping[str, tuple[str, ...]] = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "lion": ("lr", "betas", "weight_decay", "set_grad_none", "fp32_optimizer_states"),
    "lamb": (
        *(*_BASE, "bias_correction", "eps_inside_sqrt", "max_grad_norm", "max_coeff"),
        *("min_coeff", "amsgrad"),
    ),
    "adagrad": (
        *("lr", "eps", "weight_decay", "amsgrad", "fp32_optimizer_states", "lr_decay"),
        *("initial_accumulator_value", "foreach", "maximize", "differentiable", "fused"),
    ),
    "sgd": (
        *("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach"),
        *("differentiable", "fused"),
    ),
    "adamax": (*_BASE, *_TORCH[:4]),
    "nadam": (*_BASE, "momentum_decay", *_DECOUPLED, *_TORCH[:4]),
    "radam": (*_BASE, *_DECOUPLED, *_TORCH[:4]),
    "rmsprop": (
        *("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "capturable"),
        *("foreach", "maximize", "differentiable"),
    ),
}

_WARMUP = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")
SCHEDULES: Mapping[str, tuple[str, ...]] = {  # beside `last_batch_iteration`
    "LRRangeTest": (
        *("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate"),
        "lr_range_test_staircase",
    ),
    "OneCycle": (
        *("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size"),
        *("cycle_second_step_size", "cycle_first_stair_count", "cycle_second_stair_count"),
        *("decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom"),
        "decay_mom_rate",
    ),
    "WarmupLR": _WARMUP,
    "WarmupDecayLR": ("total_num_steps", *_WARMUP),
    "WarmupCosineLR": (
        *("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio"),
        "warmup_type",
    ),
}
