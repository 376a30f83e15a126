"""TrainingState: what a checkpoint of plain torch holds, by names that no strategy changes.

Parameters have the names of the model, states of the optimizer those of their parameter. So every
strategy, and every number of ranks, loads what any other has saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsforge.checkpoints.sharded_tensors import GROWTH, MODEL, OPTIMIZER, SCALE, SCHEDULE, STEP
from dsforge.errors import DsforgeError
from dsforge.train.engines.plain_torch.optimizer import inner_optimizer


@dataclass(slots=True)
class TrainingState:
    """The optimizer of a run, its schedule and its loss scale."""

    optimizer: Any
    schedule: Any
    scaler: Any
    is_a_part: bool = False  # of the model: a pipeline stage

    def tensors(self, module: Any) -> dict[str, Any]:
        """Trained weights, states of the optimizer that this rank has, and progress."""
        found = {f"{MODEL}{name}": p.detach() for name, p in trained(module)}
        own = inner_optimizer(self.optimizer).state
        for name, parameter in trained(module):
            for key, value in own.get(parameter, {}).items():
                found[f"{OPTIMIZER}{name}.{key}"] = _as_tensor(value) if key == STEP else value
        return found | self._progress()

    def _progress(self) -> dict[str, Any]:
        """Steps of the schedule, loss scale, steps since it last grew."""
        scaler = self.scaler.state_dict()
        numbers = {SCHEDULE: self.schedule.last_epoch}
        if scaler:
            numbers |= {SCALE: scaler["scale"], GROWTH: scaler["_growth_tracker"]}
        return {name: _as_tensor(value) for name, value in numbers.items()}

    def targets(self, module: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of this rank to load into, for what a checkpoint has (name to shape).

        Raises DsforgeError where the trained parameters are not those of the checkpoint.
        """
        import torch

        found: dict[str, Any] = {f"{MODEL}{name}": p.detach() for name, p in trained(module)}
        names = {name for name in stored if name.startswith(MODEL)}
        odd = sorted(found.keys() - names if self.is_a_part else found.keys() ^ names)
        if odd:
            shown = ", ".join(name.removeprefix(MODEL) for name in odd[:3])
            raise DsforgeError(
                f"the trained parameters differ from those of the checkpoint: {shown}",
                "use the model of the checkpoint",
            )
        for name, parameter, key in self._states(module, stored):
            like = torch.zeros(1) if key == STEP else torch.zeros_like(parameter.detach())
            found[f"{OPTIMIZER}{name}.{key}"] = like
        for name in (SCHEDULE, SCALE, GROWTH):
            if name in stored:
                found[name] = torch.zeros(1, dtype=torch.float64)
        return found

    def _states(self, module: Any, stored: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
        """Parameters of this rank's optimizer, with the states that a checkpoint has of them."""
        keys = {name.rpartition(".")[2] for name in stored if name.startswith(OPTIMIZER)}
        groups = inner_optimizer(self.optimizer).param_groups
        own = {id(parameter) for group in groups for parameter in group["params"]}
        for name, parameter in trained(module):
            for key in sorted(keys):
                if id(parameter) in own and f"{OPTIMIZER}{name}.{key}" in stored:
                    yield name, parameter, key

    def take(self, module: Any, loaded: Mapping[str, Any]) -> None:
        """Take what was loaded into the targets; the weights are there already."""
        state = inner_optimizer(self.optimizer).state
        for name, parameter, key in self._states(module, loaded):
            value = loaded[f"{OPTIMIZER}{name}.{key}"]
            state[parameter][key] = value.reshape(()) if key == STEP else value
        self.resume_schedule(int(loaded[SCHEDULE]))
        if SCALE in loaded and self.scaler.is_enabled():
            known = self.scaler.state_dict()
            known |= {"scale": float(loaded[SCALE]), "_growth_tracker": int(loaded[GROWTH])}
            self.scaler.load_state_dict(known)

    def resume_schedule(self, steps: int) -> None:
        """Go on in the schedule after so many steps, at the rates that it has for them."""
        schedule = self.schedule
        schedule.last_epoch = steps
        rates = [
            base * factor(steps)
            for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        ]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule._last_lr = rates  # noqa: SLF001 - what `get_last_lr` gives


def trained(module: Any) -> Iterator[tuple[str, Any]]:
    """The trained parameters by name, each once."""
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


def _as_tensor(value: Any) -> Any:
    """A number as a tensor of one element, which safetensors can slice."""
    import torch

    return torch.as_tensor(value, dtype=torch.float64).detach().cpu().reshape(1)
