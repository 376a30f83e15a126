"""Whose the optimizer states are in a checkpoint without ZeRO, which numbers them without names.

The numbers run group by group. With one group of all parameters that is the order of the model;
with several, or with frozen parameters, no file says which state is of which parameter, and a guess
would put the states of one into another of the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsforge.checkpoints.pickles.values import StoredTensor


class Located(NamedTuple):
    """The tensor that holds a state of a parameter, and the element at which it begins."""

    tensor: StoredTensor
    start: int


Places = dict[str, dict[str, Located]]  # by parameter, then by state


def settings(inner: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The optimizer's settings of each group that has parameters; of one at least."""
    groups = inner.get("param_groups") or [{}]
    used = [group for group in groups if group.get("params")] or groups[:1]
    return tuple({k: v for k, v in group.items() if k != "params"} for group in used)


def located(
    module: Mapping[str, StoredTensor], names: list[str], optimizer: Mapping[str, Any], weights: str
) -> Places | None:
    """Where the states and master weights of some parameters are; none where that is not told.

    `weights` is what the master weights are called.
    """
    inner = optimizer.get("optimizer_state_dict", optimizer)
    if len(settings(inner)) > 1:
        return None
    if "fp32_groups_flat" in optimizer:
        return _packed(module, names, optimizer, weights)
    state, masters = inner["state"], optimizer.get("fp32_groups")
    if any(len(each) != len(names) for each in (state, *(masters or ())) if each):
        return None
    found: Places = {}
    for index, name in enumerate(names):
        tensors = {weights: masters[0][index] if masters else module[name]}
        tensors |= _tensors(state.get(index, {}))
        if any(tensor.shape != module[name].shape for tensor in tensors.values()):
            return None
        found[name] = {key: Located(tensor, 0) for key, tensor in tensors.items()}
    return found


def _packed(
    module: Mapping[str, StoredTensor], names: list[str], optimizer: Mapping[str, Any], weights: str
) -> Places | None:
    """The same, where all parameters lie one behind the other in one flat tensor."""
    flats, state = optimizer["fp32_groups_flat"], optimizer["optimizer_state_dict"]["state"]
    tensors = {weights: flats[0], **_tensors(state.get(0, {}))}
    total = sum(module[name].elements for name in names)
    if len(flats) > 1 or any(flat.elements != total for flat in tensors.values()):
        return None
    found: Places = {}
    start = 0
    for name in names:
        found[name] = {key: Located(flat, start) for key, flat in tensors.items()}
        start += module[name].elements
    return found


def _tensors(state: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """The states of a parameter that are no single numbers."""
    return {k: t for k, t in state.items() if isinstance(t, StoredTensor) and t.shape}
