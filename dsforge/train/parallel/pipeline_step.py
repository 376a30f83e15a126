"""Steps of a pipeline: DeepSpeed's schedule runs all micro batches of a step in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsforge.train.data.samples import IGNORED, Sample, collate
from dsforge.train.run.step import Stepper, without_answer


def scaled_loss(logits: Any, target: tuple[Any, Any]) -> Any:
    """The loss of a micro batch on the last stage: the sum over its answers, times its scale."""
    import torch

    labels, scale = target
    wanted = labels[:, 1:]
    counted = wanted != IGNORED
    cross_entropy = torch.nn.functional.cross_entropy
    return cross_entropy(logits[:, :-1][counted].float(), wanted[counted], reduction="sum") * scale


class PipelineStepper(Stepper):
    """A Stepper whose engine takes whole steps only."""

    def _passes(self, micro_batches: Sequence[Sequence[Sample]], scale: float) -> float:
        """An equal part of the summed loss on every rank: the last stage tells it to all."""
        batches = [self._stage_data(samples, scale) for samples in micro_batches]
        mean = float(self.engine.train_batch(iter(batches)))
        return mean * len(batches) * self.place.replicas / scale / self.place.world_size

    def evaluate(self, samples: Sequence[Sample], micro_batch_size: int) -> float:
        """Mean loss per answer token over all samples; all ranks make equally many passes."""
        replicas, batches = self.place.replicas, []
        for start in range(0, len(samples), micro_batch_size * replicas):
            first = start + self.place.replica * micro_batch_size
            own = samples[first : first + micro_batch_size]
            batches.append(self._stage_data(own or [without_answer(samples[0])], 1.0))
        mean = float(self.engine.eval_batch(iter(batches), num_micro_batches=len(batches)))
        return mean * len(batches) * replicas / sum(sample.targets for sample in samples)

    def _stage_data(self, samples: Sequence[Sample], scale: float) -> tuple[Any, Any]:
        """Inputs of the first stage and targets of the last."""
        import torch

        batch = collate(samples, self.pad_token)
        tokens, labels = torch.from_numpy(batch.tokens), torch.from_numpy(batch.labels)
        target = (labels, torch.tensor(scale))
        if self.job.packing:
            return (tokens, torch.from_numpy(batch.positions)), target
        return tokens, target
