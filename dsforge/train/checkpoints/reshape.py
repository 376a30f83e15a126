"""Loads a checkpoint of other ranks, or of another ZeRO stage, into the engine of this run.

DeepSpeed loads its files only into the very ranks that wrote them, and asks for a conversion
otherwise. Here each rank takes the elements that it is to hold straight from the files of all
ranks, parameter by parameter: no second copy of the checkpoint, and no rank reads more than its
share. The optimizer's states and settings, the schedule and the loss scaler go along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dsforge.checkpoints.findings import listed
from dsforge.checkpoints.zero.atoms import WEIGHTS, Parameter, Part
from dsforge.checkpoints.zero.parameters import Saved
from dsforge.errors import DsforgeError
from dsforge.train.parallel.autotp import shares_of


def fill(engine: Any, saved: Saved) -> None:
    """Put a checkpoint into an engine, whatever the ranks and ZeRO stages of either.

    All ranks call it. Raises DsforgeError where the parameters are not those of the checkpoint, or
    where states lie on NVMe, which only the ranks that wrote them can read.
    """
    saved.check_states()
    atoms = _trained(engine.module, saved)
    fill_buffers(engine.module, saved)
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    if engine.zero_optimization_partition_weights():
        _fill_equal_parts(optimizer, inner, atoms, saved)
    elif shares_states(engine):
        _fill_fragments(optimizer, inner, atoms, saved)
    else:
        _fill_whole(optimizer, inner, atoms, saved)
    for index, group in enumerate(inner.param_groups):
        own = saved.groups[index if len(saved.groups) == len(inner.param_groups) else 0]
        group |= {key: value for key, value in own.items() if key in group}
        if "step" in group:
            group["step"] = _steps(saved)
    _scale(optimizer, saved)
    engine.lr_scheduler.load_state_dict(saved.progress["lr_scheduler"])
    engine.global_steps = saved.progress["global_steps"]
    engine.global_samples = saved.progress["global_samples"]
    engine.skipped_steps = saved.progress["skipped_steps"]


def fill_buffers(module: Any, saved: Saved) -> None:
    """Buffers that the model stores are whole on every rank, whatever the ZeRO stage."""
    for name, buffer in module.named_buffers():
        atom = saved.buffers.get(name)
        if atom is not None and atom.elements:
            buffer.copy_(_elements(atom, WEIGHTS, 0, atom.elements).view(atom.shape))


def _trained(module: Any, saved: Saved) -> dict[Any, Parameter]:
    """What this rank holds of each trained parameter, as the checkpoint has it.

    Raises DsforgeError where they are others; of a pipeline, a rank has those of its stage.
    """
    own = {name: p for name, p in module.named_parameters() if p.requires_grad}
    shares = {local: share for local, share in shares_of(module).items() if local in own}
    names = {share.name for share in shares.values()}
    odd = sorted(names - saved.trained.keys())
    if not hasattr(module, "names_in_model"):
        odd = sorted(names ^ saved.trained.keys())
    if odd:
        message = f"the trained parameters differ from those of the checkpoint: {listed(odd)}"
        raise DsforgeError(message)
    wholes = {local: saved.trained[share.name] for local, share in shares.items()}
    return {
        own[local]: wholes[local] if share.is_whole else Part(wholes[local], share)
        for local, share in shares.items()
    }


def shares_states(engine: Any) -> bool:
    """Whether each data-parallel rank holds a cut of the flat vector of each group.

    Under ZeRO 1 and 2, and in bf16 a pipeline without ZeRO (`bf16_optimizer.py`).
    """
    return bool(engine.zero_optimization()) or hasattr(engine.optimizer, "bf16_groups")


def loads_own_states(engine: Any) -> bool:
    """Whether DeepSpeed loads the optimizer states that it saves.

    Without ZeRO it looks for them in the file of the weights, where a pipeline in bf16 has none
    (`runtime/engine.py`, `_load_checkpoint`).
    """
    return bool(engine.zero_optimization()) or not shares_states(engine)


def _steps(saved: Saved) -> int:
    """Optimizer steps taken, from the states of the parameters or the settings of their group."""
    return int(saved.scalars.get("step", saved.groups[0].get("step", 0)))


def _elements(atom: Parameter, state: str, begin: int, end: int) -> Any:
    """Elements `begin` to `end` of a state as a flat tensor."""
    import torch

    bits = np.concatenate([np.asarray(part) for part in atom.read(state, begin, end)])
    return torch.from_numpy(bits.view(np.uint8)).view(getattr(torch, atom.dtype(state)))


def _moments(atoms: Mapping[Any, Any]) -> tuple[str, ...]:
    """Names of the states that every parameter has beside its weights."""
    first: Parameter = next(iter(atoms.values()))
    return tuple(state for state in first.states if state != WEIGHTS)


def _prepare(inner: Any, flat: Any, atoms: Mapping[Any, Any], saved: Saved) -> dict[str, Any]:
    """The tensors of the states of a flat tensor, by name; made where there are none yet."""
    import torch

    own = inner.state[flat]
    for state in _moments(atoms):
        if not isinstance(own.get(state), torch.Tensor):
            own[state] = torch.zeros_like(flat)
    if "step" in saved.scalars:
        as_tensor = isinstance(inner, (torch.optim.Adam, torch.optim.AdamW))
        own["step"] = torch.tensor(float(_steps(saved))) if as_tensor else _steps(saved)
    return {state: own[state] for state in _moments(atoms)}


def _fill_fragments(optimizer: Any, inner: Any, atoms: Mapping[Any, Any], saved: Saved) -> None:
    """ZeRO 1 and 2: each rank holds one cut of the flat vector of each group."""
    groups = getattr(optimizer, "bit16_groups", None) or optimizer.bf16_groups
    for group, settings in zip(groups, inner.param_groups, strict=True):
        flat = settings["params"][0]
        states = _prepare(inner, flat, atoms, saved)
        for parameter in group:
            mapping = parameter._hp_mapping  # noqa: SLF001 - DeepSpeed's own loader reads it
            if mapping is None:
                continue  # another rank's
            mapping.optim_fragment = {}
            whole, own = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
            end = whole.start + whole.numel
            for state, target in {WEIGHTS: flat.data, **states}.items():
                part = target.narrow(0, own.start, own.numel)
                part.copy_(_elements(atoms[parameter], state, whole.start, end))
                if state != WEIGHTS:
                    mapping.optim_fragment[state] = part
    optimizer.update_lp_params()


def _fill_equal_parts(optimizer: Any, inner: Any, atoms: Mapping[Any, Any], saved: Saved) -> None:
    """ZeRO 3: each rank holds an equal part of every parameter."""
    import deepspeed.comm

    away = any(half is None for half in optimizer.fp16_partitioned_groups_flat)
    if optimizer.swap_optimizer or away:
        hint = "resume on the same ranks, or offload to CPU memory"
        raise DsforgeError("optimizer states on NVMe cannot be resumed on other ranks", hint)
    optimizer.checkpoint_event_prologue()
    rank = deepspeed.comm.get_rank(group=optimizer.dp_process_group)
    for index, group in enumerate(optimizer.fp16_groups):
        flat = optimizer.fp32_partitioned_groups_flat[index]
        states = _prepare(inner, flat, atoms, saved)
        for parameter, start in _starts(group):
            part = parameter.partition_numel()
            begin = min(rank * part, parameter.ds_numel)
            count = min(part, parameter.ds_numel - begin)
            for state, target in {WEIGHTS: flat.data, **states}.items():
                if count:
                    elements = _elements(atoms[parameter], state, begin, begin + count)
                    target.narrow(0, start, count).copy_(elements)
        half = optimizer.fp16_partitioned_groups_flat[index]
        half.data.copy_(flat.data)
        own = optimizer.fp16_partitioned_groups[index]
        for partition, values in zip(own, optimizer.unflatten(half, own), strict=True):
            partition.data = values.data
    optimizer.checkpoint_event_epilogue()


def _starts(group: Any) -> Iterator[tuple[Any, int]]:
    """Each parameter of a group and where its part begins in the flat tensor of a rank."""
    start = 0
    for parameter in group:
        yield parameter, start
        start += parameter.partition_numel()


def _fill_whole(optimizer: Any, inner: Any, atoms: Mapping[Any, Any], saved: Saved) -> None:
    """Without ZeRO: every rank holds everything, in 16 bits with master weights beside."""
    if hasattr(optimizer, "fp32_groups_flat"):
        _fill_packed(optimizer, inner, atoms, saved)
        return
    masters = getattr(optimizer, "fp32_groups", None)
    pairs = {p: p for p in atoms}
    if masters is not None:
        both = zip(optimizer.fp16_groups, masters, strict=True)
        pairs = {p: m for own, of in both for p, m in zip(own, of, strict=True)}
    for parameter, master in pairs.items():
        states = _prepare(inner, master, atoms, saved)
        for state, target in {WEIGHTS: master.data, **states}.items():
            atom = atoms[parameter]
            target.copy_(_elements(atom, state, 0, atom.elements).view(atom.shape))
        parameter.data.copy_(master.data)


def _fill_packed(optimizer: Any, inner: Any, atoms: Mapping[Any, Any], saved: Saved) -> None:
    """Without ZeRO, with one flat tensor for each group."""
    for group, flat in zip(optimizer.fp16_groups, optimizer.fp32_groups_flat, strict=True):
        states, start = _prepare(inner, flat, atoms, saved), 0
        for parameter in group:
            atom = atoms[parameter]
            for state, target in {WEIGHTS: flat.data, **states}.items():
                part = target.narrow(0, start, atom.elements)
                part.copy_(_elements(atom, state, 0, atom.elements))
            parameter.data.copy_(flat.data.narrow(0, start, atom.elements).view(atom.shape))
            start += atom.elements


def _scale(optimizer: Any, saved: Saved) -> None:
    """Set the loss scale to where it was, where the loss is scaled on either side."""
    for name in ("loss_scaler", "loss_scale_config"):
        scaler = getattr(optimizer, name, None)
        for key, value in saved.scaler.items():
            if hasattr(scaler, key):
                setattr(scaler, key, value)
