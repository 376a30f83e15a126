"""One optimizer step and one pass over the validation samples, on this rank.

The loss is the mean over all answer tokens of the global batch. Engines average over ranks and
micro steps, so each micro batch is scaled by what that average would get wrong: samples of
unequal length keep their true weight, whatever the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dsforge.job import TrainJob
from dsforge.train.data.samples import IGNORED, Batch, Sample, collate, share_of_rank
from dsforge.train.parallel.agreement import summed
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.signals import Attendant
from dsforge.train.run.watchdog import NotFiniteError

NOT_FINITE_HINT = "lower the learning rate, or use bf16"


class StepResult(NamedTuple):
    """What a step gave over all ranks; tokens exclude padding. `wish` is a signal, or 0."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float | None
    tokens: int
    wish: int
    reward_margin: float | None = None  # of preferences, mean over pairs
    reward_accuracy: float | None = None


@dataclass(slots=True)
class Stepper:
    """Steps an engine through batches of samples."""

    engine: Any  # an Engine; steppers of one software ask more of it
    job: TrainJob
    pad_token: int
    place: Place
    head: Any = field(init=False, default=None)  # a LossHead where the model takes one

    def __post_init__(self) -> None:
        from dsforge.train.model.answer_loss import loss_head

        if self.job.loss == "chunked":
            self.head = loss_head(self.engine.module)

    @property
    def least(self) -> int:
        """Tokens that every batch is padded to: compiled layers want one shape."""
        return self.job.sequence_length if self.job.compile else 0

    def step(self, step: int, samples: Sequence[Sample], stop: Attendant) -> StepResult:
        """Train on a global batch; `step` counts from 0. NotFiniteError where the loss is."""
        engine = self.engine
        counted = self.counted(samples)
        self._seed(step)
        engine.train()
        shares = share_of_rank(
            range(len(samples)),
            rank=self.place.replica,
            ranks=self.place.replicas,
            micro_batch_size=engine.micro_batch_size,
        )
        rate = engine.learning_rate()
        micro_batches = [[samples[i] for i in share] for share in shares]
        part = self._passes(micro_batches, len(shares) * self.place.replicas / counted)
        wish = stop.signal_number
        loss_sum, wishes, signals, *more = summed(part, float(wish > 0), float(wish), *self.more())
        agreed = round(signals / wishes) if wishes else 0
        if not math.isfinite(loss_sum):  # a sum over ranks: all of them stop here
            raise NotFiniteError(f"the loss of step {step + 1} is {loss_sum}", NOT_FINITE_HINT)
        norm = engine.gradient_norm()
        if norm is not None and not math.isfinite(norm) and not engine.scales_loss:
            raise NotFiniteError(f"the gradient norm of step {step + 1} is {norm}", NOT_FINITE_HINT)
        tokens = sum(len(sample.tokens) for sample in samples)
        return StepResult(
            step=step + 1,
            loss=loss_sum / counted,
            learning_rate=rate,
            gradient_norm=norm if norm is not None and math.isfinite(norm) else None,
            tokens=tokens,
            wish=agreed,
            **{name: value / counted for name, value in zip(self.figures, more, strict=True)},
        )

    @property
    def figures(self) -> tuple[str, ...]:
        """Fields of a StepResult that are means of what `more` gives."""
        return ()

    def counted(self, samples: Sequence[Sample]) -> int:
        """What the loss is a mean over: answer tokens of all these samples."""
        return sum(sample.targets for sample in samples)

    def more(self) -> Sequence[float]:
        """The part of this rank of further sums of the last passes, in the order of `figures`."""
        return ()

    def _passes(self, micro_batches: Sequence[Sequence[Sample]], scale: float) -> float:
        """Part of the summed loss that is this rank's, after its micro steps and the optimizer's.

        `scale` makes the engine's mean over ranks and micro steps that over what is counted.
        """
        total: Any = 0.0  # stays on the device: no micro step waits for the one before
        for number, samples in enumerate(micro_batches, start=1):
            with self.engine.micro_step(last=number == len(micro_batches)):
                loss = self.micro_loss(samples, scale)
                self.engine.backward(loss * scale)
            total = total + loss.detach()
        return float(total) / self.place.copies

    def evaluate(self, samples: Sequence[Sample], micro_batch_size: int) -> float:
        """Mean loss over what is counted of all samples; all ranks make equally many passes."""
        import torch

        self.engine.eval()
        stride = micro_batch_size * self.place.replicas
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(samples), stride):
                first = start + self.place.replica * micro_batch_size
                own = list(samples[first : first + micro_batch_size])
                total += float(self.micro_loss(own or [without_answer(samples[0])]))
        (loss_sum,) = summed(total / self.place.copies)
        return loss_sum / self.counted(samples)

    def micro_loss(self, samples: Sequence[Sample], scale: float = 1.0) -> Any:
        """Summed loss of a micro batch; `scale` is what it will be multiplied with."""
        return self._loss(collate(samples, self.pad_token, least=self.least), scale)

    def _loss(self, batch: Batch, scale: float = 1.0) -> Any:
        """Sum of the cross-entropy over the answer tokens of a micro batch, in fp32.

        `scale` is what it will be multiplied with.
        """
        from dsforge.train.model.answer_loss import on_device, targets_of

        device = self.engine.device
        arrays = {"input_ids": batch.tokens}
        if self.job.packing:
            arrays["position_ids"] = batch.positions
            if self.job.attention == "flash_attention_2":  # finds borders in a batch of one only
                arrays = {name: array.reshape(1, -1) for name, array in arrays.items()}
        inputs = {name: on_device(array, device) for name, array in arrays.items()}
        return self._over_targets(inputs, targets_of(batch.labels, IGNORED, device), scale)

    def _over_targets(self, inputs: dict[str, Any], targets: Any, scale: float) -> Any:
        """The summed loss of the targets, from the output layer itself where it can be asked."""
        import torch

        if self.head is None:
            logits = self.engine(**inputs).logits
            rows = logits.reshape(-1, logits.shape[-1]).index_select(0, targets.places)
            cross_entropy = torch.nn.functional.cross_entropy
            return cross_entropy(rows.float(), targets.tokens, reduction="sum")
        self.head.factor = scale * self.engine.loss_scale
        self.head.targets = targets
        try:
            return self.engine(**inputs).logits
        finally:
            self.head.targets = None

    def _seed(self, step: int) -> None:
        """Random numbers of a step (dropout) that depend on seed, step and rank only."""
        import torch

        state = np.random.SeedSequence(
            [self.job.seed, step, self.place.rank // self.place.copies]
        ).generate_state(1)
        torch.manual_seed(int(state[0]))


def without_answer(sample: Sample) -> Sample:
    """A sample that adds nothing to a loss, for a rank that has run out of samples."""
    return replace(sample, labels=np.full_like(sample.labels, IGNORED))
