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
from dsforge.train.model.qlora import is_quantised, keep_trained_state_only

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


def with_adapters(model: Any, lora: LoraSpec) -> Any:
    """The model with low-rank adapters; what neither they nor `modules_to_save` hold is frozen.

    Raises SpecError where the modules of this model do not allow what `lora` asks for.
    """
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.is_on_all else _target_names(model, lora),
        modules_to_save=_saved_names(model, lora) or None,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, adapters)
    if is_quantised(model):
        keep_trained_state_only(adapted)
    return adapted


def _target_names(model: Any, lora: LoraSpec) -> list[str]:
    """Names of the modules that carry adapters."""
    head, asked = model.get_output_embeddings(), set(lora.targets)
    names: list[str] = []
    for name, module in model.named_modules():
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
