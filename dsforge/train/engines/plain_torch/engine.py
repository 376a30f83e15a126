"""TorchEngine: DDP, ZeroRedundancyOptimizer and FSDP2 under the names that all engines share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge.job import TorchSettings
from dsforge.measurement import Evaluation, StepMetrics
from dsforge.train.checkpoints.forms import saved_by
from dsforge.train.checkpoints.note import CheckpointNote
from dsforge.train.checkpoints.written import OwnFiles
from dsforge.train.engines.plain_torch import files, weights
from dsforge.train.engines.plain_torch.foreign import fill
from dsforge.train.engines.plain_torch.optimizer import clipped_norm
from dsforge.train.engines.plain_torch.placement import Placed
from dsforge.train.engines.plain_torch.state import TrainingState
from dsforge.train.run.traffic import Traffic


@dataclass(slots=True)
class TorchEngine:
    """A model on its ranks with its optimizer, schedule and loss scale."""

    module: Any
    device: Any
    placed: Placed
    state: TrainingState
    settings: TorchSettings
    micro_batch_size: int
    micro_steps: int
    pipeline: Any = None  # a Pipeline where there are several stages
    norm: float | None = None

    @property
    def lr_scheduler(self) -> Any:
        """The schedule around the optimizer."""
        return self.state.schedule

    @property
    def scales_loss(self) -> bool:
        """Whether it trains in fp16."""
        return bool(self.state.scaler.is_enabled())

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before backward, the share of a micro step included."""
        return float(self.state.scaler.get_scale()) / self.micro_steps

    def __call__(self, **inputs: Any) -> Any:
        """Forward pass."""
        import torch

        kind = self.placed.autocast
        casting = nullcontext() if kind is None else torch.autocast(self.device.type, kind)
        with casting:
            return self.placed.forward(**inputs)

    def train(self) -> None:
        """Set the model to training."""
        self.placed.forward.train()

    def eval(self) -> None:
        """Set the model to evaluation."""
        self.placed.forward.eval()

    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step."""
        return float(self.state.schedule.get_last_lr()[0])

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """Gradients stay on this rank until the last micro step, which ends with a step."""
        with self.placed.micro_step(last):
            yield
        if last:
            self.optimizer_step()

    def backward(self, loss: Any) -> None:
        """Add gradients; torch takes the mean over ranks, the micro steps are divided by here."""
        self.state.scaler.scale(loss / self.micro_steps).backward()

    def optimizer_step(self) -> None:
        """Clip, update the weights, go on in the schedule unless fp16 overflowed."""
        optimizer, scaler = self.state.optimizer, self.state.scaler
        scaler.unscale_(optimizer)
        trained = (p for p in self.module.parameters() if p.requires_grad)
        stages = self.pipeline.group if self.pipeline else None
        self.norm = float(clipped_norm(trained, self.settings.gradient_clipping, stages))
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            self.state.schedule.step()
        optimizer.zero_grad()

    def gradient_norm(self) -> float | None:
        """Norm of the gradients of the last step before clipping."""
        return self.norm

    def count_sent(self, traffic: Traffic) -> None:
        """Have the bytes counted where torch's strategies call collectives."""
        import torch.distributed
        import torch.distributed._functional_collectives as functional

        traffic.watch(torch.distributed)
        traffic.watch_functional(functional)

    def report(self, record: StepMetrics | Evaluation) -> None:
        """Nothing beside metrics.jsonl: a `torch` block enables no monitors."""

    def checkpoint_bytes(self) -> int:
        """Bytes of this rank's part of a checkpoint, predicted."""
        own = self.settings.strategy == "zero1"
        tensors = self.state.tensors(self.module)
        stages = self.settings.pipeline_parallel_size
        return files.own_bytes(tensors, states_are_own=own, stages=stages)

    def write_checkpoint(self, folder: Path, tag: str) -> OwnFiles:
        """Write the state through torch.distributed.checkpoint, read it back and compare."""
        return files.write(self.state.tensors(self.module), folder / tag)

    def any_ranks(self) -> bool:
        """Always: its files name whole tensors."""
        return True

    def restore(self, path: Path, note: CheckpointNote, present: CheckpointNote) -> None:
        """Load weights, optimizer, schedule and loss scale. Raises DsforgeError."""
        if note.engine == present.engine:
            files.load(path, self.module, self.state)
        else:
            fill(self.module, self.state, saved_by(path, note))

    def whole_weights(self) -> tuple[Any, dict[str, Any]]:
        """The transformers model, and its weights on the CPU of the first rank, else none."""
        return self.module, weights.gathered(self.module, self.pipeline)
