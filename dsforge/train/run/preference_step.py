"""Steps of preference training: DPO (Rafailov et al. 2023, equation 7), the mean over pairs.

With log probabilities of answers summed over their tokens, the loss of a pair is
-log sigmoid(beta * ((chosen - its reference) - (rejected - its reference))). The reference is the
model before training: with adapters the same weights without them, in a pass of its own or, like
that of a model that trains as a whole, computed once before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from dsforge.job import PreferenceSettings
from dsforge.train.data.pairs import SIDES, Pair, References
from dsforge.train.data.samples import IGNORED, Sample, collate
from dsforge.train.parallel.agreement import summed
from dsforge.train.run.step import Stepper, without_answer

GATHERED = 1 << 20  # values of references that ranks add up at a time


@dataclass(slots=True)
class PreferenceStepper(Stepper):
    """A Stepper whose samples are pairs."""

    margins: Any = field(init=False, default=0.0)  # sums over the pairs of the last passes
    preferred: Any = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """No LossHead: each sequence has a log probability of its own."""

    @property
    def settings(self) -> PreferenceSettings:
        """The `preference` block of the job."""
        return self.job.preference or PreferenceSettings()

    @property
    def figures(self) -> tuple[str, ...]:
        """Fields of a StepResult that are means of what `more` gives."""
        return ("reward_margin", "reward_accuracy")

    def counted(self, samples: Sequence[Sample]) -> int:
        """What the loss is a mean over: pairs."""
        return len(samples)

    def more(self) -> Sequence[float]:
        """Sums of the margins, and of the pairs whose chosen answer has the higher reward."""
        found = tuple(float(total) / self.place.copies for total in (self.margins, self.preferred))
        self.margins = self.preferred = 0.0
        return found

    def micro_loss(self, samples: Sequence[Sample], scale: float = 1.0) -> Any:
        """Summed loss of the pairs of a micro batch; those without answers add nothing."""
        import torch

        pairs = cast("Sequence[Pair]", samples)
        before = self._reference(pairs)
        gained = (self._log_probabilities(pairs) - before) * self.settings.beta
        margins = gained[:, 0] - gained[:, 1]
        real = torch.tensor([float(pair.targets > 0) for pair in pairs], device=margins.device)
        if torch.is_grad_enabled():
            known = margins.detach() * real
            self.margins = self.margins + known.sum()
            self.preferred = self.preferred + (known > 0).sum()
        return (torch.nn.functional.softplus(-margins) * real).sum()

    def _reference(self, pairs: Sequence[Pair]) -> Any:
        """Log probabilities of both sequences of each pair by the reference, (pairs, sides)."""
        import torch

        known = [pair.reference for pair in pairs if pair.reference is not None]
        if len(known) == len(pairs):
            return torch.tensor(known, dtype=torch.float32, device=self.engine.device)
        module = self.engine.module
        training = module.training
        off = module.disable_adapter if hasattr(module, "disable_adapter") else nullcontext
        self.engine.eval()  # a reference has no dropout
        try:
            with torch.no_grad(), off():
                return self._log_probabilities(pairs)
        finally:
            if training:
                self.engine.train()

    def _log_probabilities(self, pairs: Sequence[Pair]) -> Any:
        """Log probabilities of the answers of both sequences of each pair, in fp32."""
        from dsforge.train.model.answer_loss import (
            answer_log_probabilities,
            on_device,
            targets_of,
        )

        sides = [pair.sides[side] for side in range(SIDES) for pair in pairs]
        batch = collate(sides, self.pad_token, least=self.least)
        device = self.engine.device
        targets = targets_of(batch.labels, IGNORED, device)
        logits = self.engine(input_ids=on_device(batch.tokens, device)).logits
        sums = answer_log_probabilities(logits, targets)
        return sums.reshape(SIDES, len(pairs)).t()

    def references(self, pairs: Sequence[Pair], on_pair: Callable[[], None]) -> References:
        """What the reference says of all pairs, before the first step; every rank gets all of it.

        `on_pair` is called after each.
        """
        found = np.zeros((len(pairs), SIDES))
        size = self.engine.micro_batch_size
        stride = size * self.place.replicas
        for start in range(0, len(pairs), stride):
            first = start + self.place.replica * size
            own = list(pairs[first : first + size])
            idle = [cast("Pair", without_answer(pairs[0]))]
            made = self._reference(own or idle).cpu().numpy()
            if own:
                found[first : first + len(own)] = made
            for _ in range(start, min(start + stride, len(pairs))):
                on_pair()
        flat = found.reshape(-1)
        parts = [flat[at : at + GATHERED] for at in range(0, len(flat), GATHERED)]
        gathered = [summed(*part.tolist()) for part in parts]
        return np.concatenate(gathered).reshape(found.shape) / self.place.copies
