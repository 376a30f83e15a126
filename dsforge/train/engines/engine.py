"""Engine: a model that is being trained, as the stepper, the saver and the export talk to it.

Each training software is one class of this protocol. Nothing beyond `train/engines/` asks which.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from dsforge.measurement import Evaluation, StepMetrics
from dsforge.train.checkpoints.note import CheckpointNote
from dsforge.train.checkpoints.written import OwnFiles
from dsforge.train.run.traffic import Traffic


class Engine(Protocol):
    """A model that is being trained, as this rank sees it."""

    @property
    def module(self) -> Any:
        """The model; under pipeline parallelism this rank's stage."""

    @property
    def lr_scheduler(self) -> Any:
        """Torch's schedule, whose `optimizer` has the settings that take effect."""

    @property
    def device(self) -> Any:
        """Where inputs must be."""

    @property
    def micro_batch_size(self) -> int:
        """Samples of a data-parallel rank in one forward pass."""

    @property
    def scales_loss(self) -> bool:
        """Whether gradients may overflow and a step then is skipped (fp16)."""

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before backward."""

    def __call__(self, **inputs: Any) -> Any:
        """Forward pass."""

    def train(self) -> Any:
        """Set the model to training."""

    def eval(self) -> Any:
        """Set the model to evaluation."""

    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step."""

    def micro_step(self, *, last: bool) -> AbstractContextManager[Any]:
        """The context of one forward and backward pass; the last ends with an optimizer step."""

    def backward(self, loss: Any) -> Any:
        """Add gradients, so that a step takes the mean over ranks and micro steps."""

    def gradient_norm(self) -> float | None:
        """Norm of the gradients of the last step before clipping; none where it is unknown."""

    def count_sent(self, traffic: Traffic) -> None:
        """Have the bytes that this rank sends counted from now on."""

    def report(self, record: StepMetrics | Evaluation) -> None:
        """Hand figures of the first rank to what the engine's config enables."""

    def checkpoint_bytes(self) -> int:
        """Bytes of this rank's part of a checkpoint, predicted."""

    def write_checkpoint(self, folder: Path, tag: str) -> OwnFiles:
        """Write files into `folder/tag`, read them back and compare. All ranks call it."""

    def any_ranks(self) -> bool:
        """Whether its checkpoints load onto any number and layout of ranks."""

    def restore(self, path: Path, note: CheckpointNote, present: CheckpointNote) -> None:
        """Load weights, optimizer, schedule and loss scale. Raises DsforgeError."""

    def whole_weights(self) -> tuple[Any, dict[str, Any]]:
        """The transformers model, and its weights on the CPU of the first rank, else none."""
