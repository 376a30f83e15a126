"""Takes a checkpoint of another engine: weights, optimizer states, schedule and loss scale.

Each rank reads one whole parameter at a time and keeps its own part of it.
"""

from __future__ import annotations

from typing import Any

from dsforge.checkpoints.findings import listed
from dsforge.checkpoints.sharded_tensors import STEP
from dsforge.checkpoints.zero.atoms import WEIGHTS
from dsforge.checkpoints.zero.parameters import Saved
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.universal_conversion import whole
from dsforge.train.engines.plain_torch.optimizer import inner_optimizer
from dsforge.train.engines.plain_torch.state import TrainingState, trained


def fill(module: Any, state: TrainingState, saved: Saved) -> None:
    """Put a checkpoint into a model and its optimizer. Raises DsforgeError."""
    saved.check_states()
    own_names, names = {name for name, _ in trained(module)}, set(saved.trained)
    odd = sorted(own_names - names if state.is_a_part else own_names ^ names)
    if odd:
        raise DsforgeError(
            f"the trained parameters differ from those of the checkpoint: {listed(odd)}"
        )
    inner = inner_optimizer(state.optimizer)
    own = {id(p) for group in inner.param_groups for p in group["params"]}
    steps = float(saved.scalars.get(STEP, saved.groups[0].get(STEP, 0)))
    for name, parameter in trained(module):
        atom = saved.trained[name]
        _take(parameter, whole(atom))
        if id(parameter) in own:
            inner.state[parameter] = _states(parameter, saved, name, steps)
    schedule = saved.progress.get("lr_scheduler") or {}
    state.resume_schedule(int(schedule.get("last_epoch", steps)))
    scale = saved.scaler.get("cur_scale")
    if scale is not None and state.scaler.is_enabled():
        state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": float(scale)})


def _states(parameter: Any, saved: Saved, name: str, steps: float) -> dict[str, Any]:
    """The states of a parameter that this rank holds; `step` as torch's optimizers count."""
    import torch

    found: dict[str, Any] = {}
    for key in saved.trained[name].states:
        if key != WEIGHTS:
            found[key] = torch.zeros_like(parameter.detach())
            _take(found[key], whole(saved.trained[name], key))
    if found and (STEP in saved.scalars or STEP in saved.groups[0]):
        found[STEP] = torch.tensor(steps)
    return found


def _take(target: Any, values: Any) -> None:
    """Copy whole values into a tensor, or this rank's part of them into its shard."""
    import torch

    with torch.no_grad():
        if not hasattr(target, "to_local"):
            target.copy_(values)
            return
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        sizes, begins = compute_local_shape_and_global_offset(
            target.shape, target.device_mesh, target.placements
        )
        part = tuple(slice(at, at + size) for at, size in zip(begins, sizes, strict=True))
        target.to_local().copy_(values[part])
