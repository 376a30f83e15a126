"""Sequence parallelism through DeepSpeed's Ulysses (ALST): ranks share the tokens of each sample.

Every rank holds a stretch of the sequence; in attention, an exchange gives it all tokens of some of
the heads (Jacobs et al. 2023). The exchange takes the place of transformers' own attention function
of that name, in this process. Losses of the stretches add up to the loss of the sample, and the
engine adds gradients of the ranks that share one (`stage_1_and_2.py`, `sequence_parallel_size`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsforge.strategy import FULLY_SHARDED
from dsforge.train.data.samples import IGNORED, MULTIPLE, Batch, Sample
from dsforge.train.run.step import Stepper


def sequence_groups(model: Any, ranks: int, micro_batch_size: int) -> Any:
    """DeepSpeed's module of sequence groups, after the exchange is put into attention."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    return UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation=model.config._attn_implementation,  # noqa: SLF001 - as it reads it
        sequence_parallel_size=ranks,
        micro_batch_size=micro_batch_size,
    )


def stretch_width(length: int, ranks: int) -> int:
    """Tokens of a rank's stretch of samples of so many tokens: a multiple of 8."""
    return -(-length // (MULTIPLE * ranks)) * MULTIPLE


def stretched(batch: Batch, rows: int, ranks: int, pad_token: int) -> Batch:
    """A batch of exactly so many rows, its length a multiple of 8 for each of so many ranks.

    Labels stand at the token that predicts them. Positions go on through the padding: where they
    begin anew, attention would see another sample.
    """
    had, length = batch.tokens.shape
    width = stretch_width(length, ranks) * ranks
    tokens = np.full((rows, width), pad_token, dtype=np.int64)
    labels = np.full((rows, width), IGNORED, dtype=np.int64)
    tokens[:had, :length] = batch.tokens
    labels[:had, : length - 1] = batch.labels[:, 1:]
    positions = np.broadcast_to(np.arange(width), (rows, width))
    return Batch(tokens, labels, positions)


class SequenceStepper(Stepper):
    """A Stepper whose ranks see a stretch of each sample."""

    def _passes(self, micro_batches: Sequence[Sequence[Sample]], scale: float) -> float:
        """Part of the summed loss that this rank's stretches have.

        ZeRO-3 takes the mean over all ranks (`stage3.py`, `__avg_scatter_grads`) where the other
        stages add those that share a sample.
        """
        sharded = self.engine.zero_optimization_stage() == FULLY_SHARDED
        ranks = self.place.sizes.context_parallel_size if sharded else 1
        return super()._passes(micro_batches, scale * ranks)

    def _loss(self, batch: Batch, scale: float = 1.0) -> Any:
        """Sum of the cross-entropy over the answer tokens of this rank's stretch, in fp32."""
        from dsforge.train.model.answer_loss import Targets, on_device

        sizes, device = self.place.sizes, self.engine.device
        ranks = sizes.context_parallel_size
        rows = self.engine.train_micro_batch_size_per_gpu()
        whole = stretched(batch, rows, ranks, self.pad_token)
        width = whole.tokens.shape[1] // ranks
        begin = sizes.coordinates(self.place.rank).context * width
        tokens, labels, positions = (
            array[:, begin : begin + width].copy()
            for array in (whole.tokens, whole.labels, whole.positions)
        )
        rows_at, columns = np.nonzero(labels != IGNORED)
        targets = Targets(
            on_device(rows_at * width + columns, device),
            on_device(labels[rows_at, columns], device),
        )
        inputs = {
            "input_ids": on_device(tokens, device),
            "position_ids": on_device(positions, device),
        }
        return self._over_targets(inputs, targets, scale)
