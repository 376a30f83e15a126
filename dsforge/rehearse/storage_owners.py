"""Owners of storages: parameter, gradient or optimizer state, as the engine itself refers to them.

The engine is inspected while it runs (as gradients arrive, before its optimizer steps, at the end
of a phase) through attributes that DeepSpeed 0.19.8 keeps. What nobody claims is a buffer or an
activation, by the code that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from dsforge.rehearse.allocations import Tracker
from dsforge.rehearse.timeline import Change, Owner

# Gradients outside `.grad`: stage_1_and_2.py (partitions by group, on the host under offload),
# stage3.py (one flat buffer), bf16_optimizer.py (whole, in the accumulation type).
GRADIENTS = (
    "averaged_gradients",
    "all_grad_tensors",
    "accumulated_grads_in_cpu",
    "grad_partitions_flat_buffer",
    "fp32_groups_gradients_flat",
)
MASTERS = "fp32_partitioned_groups_flat"  # stage3.py lends them to the optimizer tile by tile
WHOLE = "grad_accum"  # an attribute of a parameter: stage 1 with fp32 accumulation


class Ownership:
    """Claims on the storages of a tracker: `owners` by their index."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.owners: dict[int, Owner] = {}

    def watch_gradients(self, model: torch.nn.Module) -> None:
        """Claim each gradient as it arrives, before the engine takes it away."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._arrived)

    def watch_optimizer(self, engine: Any) -> None:
        """Claim the gradients and states that exist only while the optimizer steps."""
        optimizer = engine.basic_optimizer
        optimizer.register_step_pre_hook(lambda *_: self.claim(engine))
        optimizer.register_step_post_hook(lambda *_: self.claim(engine))

    def claim(self, engine: Any) -> None:
        """Claim what the engine holds now."""
        masters = [p for group in engine.basic_optimizer.param_groups for p in group["params"]]
        own = set(map(id, engine.module.parameters()))
        self._set_owner("optimizer_state", _tensors(engine.basic_optimizer.state))
        self._set_owner("optimizer_state", (p for p in masters if id(p) not in own))
        self._set_owner("optimizer_state", _tensors(getattr(engine.optimizer, MASTERS, None)))
        self._set_owner("gradient", (p.grad for p in masters if p.grad is not None))
        for name in GRADIENTS:
            self._set_owner("gradient", _tensors(getattr(engine.optimizer, name, None)))
        self.claim_model(engine.module)

    def claim_model(self, model: torch.nn.Module) -> None:
        """Claim parameters, their ZeRO-3 partitions, their gradients, and the module's buffers."""
        for parameter in model.parameters():
            partition = getattr(parameter, "ds_tensor", None)
            accumulated = getattr(parameter, WHOLE, None)
            self._set_owner("parameter", _tensors([parameter.data, partition, *_scales(parameter)]))
            self._set_owner("gradient", _tensors([parameter.grad, accumulated]))
        self._set_owner("buffer", model.buffers())

    def changes(self) -> tuple[Change, ...]:
        """Every allocation and release with its owner."""
        storages = self.tracker.storages
        found = []
        for event in self.tracker.events:
            index = event if event >= 0 else ~event
            size, on_device, by = storages[index]
            owner = self.owners.get(index, by)
            found.append(Change(owner, on_device, size if event >= 0 else -size))
        return tuple(found)

    def _arrived(self, parameter: torch.Tensor) -> None:
        self._set_owner("gradient", _tensors([parameter.grad]))

    def _set_owner(self, owner: Owner, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            index = self.tracker.index(tensor)
            if index is not None:
                self.owners.setdefault(index, owner)


def _scales(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """Scales of a packed matrix, which are whole on each rank."""
    state = getattr(parameter, "quant_state", None)
    while state is not None:
        yield state.absmax
        state = state.state2


def _tensors(held: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested mappings and sequences."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from _tensors(value)
    elif isinstance(held, (list, tuple)):
        for value in held:
            yield from _tensors(value)
