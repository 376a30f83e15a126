"""AdamW of bitsandbytes, with the values that the DeepSpeed config gives its own.

DeepSpeed finds optimizers by name among its own and torch's only
(`runtime/engine.py`, `_configure_basic_optimizer`), so this one is made here and handed over. Its
moments take 8 bits an element, or lie in pages of managed memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from dsforge.constraints import Case
from dsforge.constraints.trainer import low_bit_optimizer
from dsforge.errors import Problem, first_line
from dsforge.origin import install_command
from dsforge.specs import OptimizerStates
from dsforge.train.parallel.engine_config import EngineConfig

CLASSES: dict[OptimizerStates, str] = {
    "8bit": "AdamW8bit",
    "paged_8bit": "PagedAdamW8bit",
    "paged_32bit": "PagedAdamW32bit",
}
PASSED_ON = ("lr", "betas", "eps", "weight_decay")
ELEMENTS = 8192  # of the smallest parameter whose moments are in 8 bits, and as many again
USUAL = "leave `optimizer_states` out"


def optimizer_problems(states: OptimizerStates | None, config: EngineConfig) -> list[Problem]:
    """Why such an optimizer cannot run here; empty where it can or is not asked for."""
    if states is None:
        return []
    offloads = config.settings.get("zero_optimization", {}).get("offload_optimizer") or {}
    case = Case(
        optimizer_states=states,
        optimizer=config.optimizer,
        offload_optimizer=offloads.get("device", "none"),
    )
    problems = [problem for problem in (low_bit_optimizer(case),) if problem is not None]
    untested = config.settings.get("zero_allow_untested_optimizer") is not True
    if config.zero_stage and untested:
        message = f"optimizer_states={states} requires `zero_allow_untested_optimizer` true"
        hint = f"add it to the DeepSpeed config (ZeRO refuses the optimizer), or {USUAL}"
        problems.append(Problem("low-bit-untested", message, hint))
    return problems or _library_problems(states)


def _library_problems(states: OptimizerStates) -> list[Problem]:
    """The library is missing, or has no kernel for the device of this rank."""
    hint = f"{install_command('qlora')}, or {USUAL}"
    if find_spec("bitsandbytes") is None:
        message = f"`optimizer_states` (={states}) needs bitsandbytes, not installed here"
        return [Problem("low-bit-bitsandbytes", message, hint)]
    try:
        _step_once(states)
    except (ImportError, OSError, RuntimeError, AttributeError, NotImplementedError) as error:
        message = f"bitsandbytes cannot run {CLASSES[states]} on this machine: {first_line(error)}"
        return [Problem("low-bit-bitsandbytes", message, hint)]
    return []


def _step_once(states: OptimizerStates) -> None:
    """One step on the device of this rank; raises what bitsandbytes raises."""
    import torch
    from deepspeed.accelerator import get_accelerator

    weight = torch.zeros(ELEMENTS, device=get_accelerator().current_device_name())
    weight.requires_grad_()
    weight.grad = torch.ones_like(weight)
    make_optimizer(states, [weight], {"lr": 1e-3}).step()


def make_optimizer(
    states: OptimizerStates, parameters: Iterable[Any], values: dict[str, Any]
) -> Any:
    """The optimizer of these parameters; `values` are `optimizer.params` of a DeepSpeed config."""
    from bitsandbytes import optim

    known = {name: value for name, value in values.items() if name in PASSED_ON}
    return getattr(optim, CLASSES[states])(parameters, **known)
