"""Steps of encoder-decoder models: the mean over the answer tokens that the decoder predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsforge.train.data.samples import IGNORED, Sample
from dsforge.train.data.sides import collate_sides
from dsforge.train.run.step import Stepper


class SidesStepper(Stepper):
    """A Stepper whose model has an encoder and a decoder."""

    def micro_loss(self, samples: Sequence[Sample], scale: float = 1.0) -> Any:
        """Summed cross-entropy of the answers, in fp32; `scale` is what it is multiplied with."""
        from dsforge.train.model.answer_loss import Targets, on_device

        device, config = self.engine.device, self.engine.module.config
        start = config.decoder_start_token_id
        batch = collate_sides(samples, self.pad_token, self.pad_token if start is None else start)
        rows, columns = np.nonzero(batch.labels != IGNORED)
        targets = Targets(
            on_device(rows * batch.labels.shape[1] + columns, device),
            on_device(batch.labels[rows, columns], device),
        )
        inputs = {
            "input_ids": on_device(batch.prompts, device),
            "attention_mask": on_device(batch.mask, device),
            "decoder_input_ids": on_device(batch.given, device),
        }
        return self._over_targets(inputs, targets, scale)
