"""Low-rank adapters of peft around a model, on the matrices that `lora.targets` names.

A job names matrices by what they do; the modules of a model have names of their own, and some hold
several matrices. Modules of `modules_to_save` are copies that train; the frozen ones stay.
"""

from __future__ import annotations

from typing import Any

from dsforge.constraints import Case
from dsforge.constraints.inputs import tied_modules
from dsforge.errors import Problem, SpecError
from dsforge.specs import AdapterTarget, LoraSpec

QUERY_KEY_VALUE: tuple[AdapterTarget, ...] = ("query", "key", "value")
# Linear modules of transformers, by the last part of their name.
MATRICES: dict[str, tuple[AdapterTarget, ...]] = {
    "q_proj": ("query",),
    "q_a_proj": ("query",),
    "q_b_proj": ("query",),
    "k_proj": ("key",),
    "v_proj": ("value",),
    "kv_a_proj_with_mqa": ("key", "value"),
    "kv_b_proj": ("key", "value"),
    "qkv_proj": QUERY_KEY_VALUE,
    "query_key_value": QUERY_KEY_VALUE,
    "c_attn": QUERY_KEY_VALUE,
    "o_proj": ("output",),
    "out_proj": ("output",),
    "dense": ("output",),
    "attn.c_proj": ("output",),
    "gate_proj": ("gate",),
    "gate_up_proj": ("gate", "up"),
    "up_proj": ("up",),
    "fc1": ("up",),
    "c_fc": ("up",),
    "dense_h_to_4h": ("up",),
    "down_proj": ("down",),
    "fc2": ("down",),
    "mlp.c_proj": ("down",),
    "dense_4h_to_h": ("down",),
}
ROUTING = ("gate", "router", "shared_expert_gate")  # parts of MoE layers


def with_adapters(model: Any, lora: LoraSpec) -> Any:
    """The model with low-rank adapters; what neither they nor `modules_to_save` hold is frozen.

    Raises SpecError where the modules of this model do not allow what `lora` asks for.
    """
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_all_names(model) if lora.is_on_all else _target_names(model, lora),
        modules_to_save=_saved_names(model, lora) or None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapters)


def _all_names(model: Any) -> list[str] | str:
    """All linear modules, as peft's `all-linear`, without routers and what kernels multiply.

    Of a few types of MoE models peft would also adapt the stacks of routed experts, of others not.
    """
    idle = set(_multiplied_in_kernels(model))
    routed = any(name.endswith(".experts") for name, _ in model.named_modules())
    if not idle and not routed:
        return "all-linear"
    from torch.nn import Linear

    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, Linear) and module is not head
        if name not in idle and name.rpartition(".")[2] not in ROUTING
    ]


def _target_names(model: Any, lora: LoraSpec) -> list[str]:
    """Names of the modules that carry adapters."""
    head, asked = model.get_output_embeddings(), set(lora.targets)
    names: list[str] = []
    recurrent = tuple(f"{name}." for name, _ in _recurrent_parts(model))
    for name, module in model.named_modules():
        if name.startswith(recurrent):
            continue
        if module is head or getattr(getattr(module, "weight", None), "ndim", 0) != 2:  # noqa: PLR2004
            continue
        held = set(_matrices(name))
        if held & asked and not held <= asked:
            whole = ", ".join(sorted(held))
            message = f"`lora.targets` contains only a part of `{name}`, which consists of {whole}"
            hint = "list all of them, or none"
            raise SpecError((Problem("lora-targets", message, hint),))
        names += [name] if held & asked else []
    if not names:
        message = f"`lora.targets` (={', '.join(lora.targets)}) matches no module of this model"
        raise SpecError((Problem("lora-targets", message, "leave `targets` out"),))
    return names


def _recurrent_parts(model: Any) -> list[tuple[str, Any]]:
    """State-space, linear-attention and convolution parts of layers, by name: they convolve."""
    from torch.nn import Conv1d

    return [
        (name, module)
        for name, module in model.named_modules()
        if any(isinstance(child, Conv1d) for child in module.children())
    ]


def _multiplied_in_kernels(model: Any) -> list[str]:
    """Matrices of Mamba that its fused kernels multiply with, beside any adapter."""
    mambas = [name for name, part in _recurrent_parts(model) if hasattr(part, "D")]
    inner = {f"{name}.{each}" for name in mambas for each in ("x_proj", "dt_proj", "out_proj")}
    return [name for name, _ in model.named_modules() if name in inner]


def _matrices(name: str) -> tuple[AdapterTarget, ...]:
    """What a module holds, by the last one or two parts of its name."""
    parts = name.split(".")
    return MATRICES.get(".".join(parts[-2:]), MATRICES.get(parts[-1], ()))


def _saved_names(model: Any, lora: LoraSpec) -> list[str]:
    """Names of the modules that train as a whole."""
    if not lora.modules_to_save:
        return []
    ends = {"embedding": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    if ends["head"] is not None and ends["head"].weight is ends["embedding"].weight:
        problem = tied_modules(Case(tied_modules=lora.modules_to_save))
        raise SpecError(() if problem is None else (problem,))
    chosen = [ends[name] for name in lora.modules_to_save]
    return [name.rsplit(".", 1)[-1] for name, module in model.named_modules() if module in chosen]
