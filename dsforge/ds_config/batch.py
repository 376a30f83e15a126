"""The batch sizes of a DeepSpeed config: two of the three give the third."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.ds_config.config import DsConfig


class Batch(NamedTuple):
    """Samples of an optimizer step, of one forward on a data-parallel rank, and forwards a step."""

    total: int
    micro: int
    steps: int

    def product(self, replicas: int) -> int:
        """Samples that so many data-parallel ranks take in a step."""
        return self.micro * self.steps * replicas


def batch_of(config: DsConfig, replicas: int) -> Batch | None:
    """The sizes on so many data-parallel ranks, as DeepSpeed derives them; none without a batch.

    DeepSpeed `DeepSpeedConfig._set_batch_related_parameters`, which rounds down; what does not
    divide it refuses in `_batch_assertion`, so the product may differ from the total here.
    """
    total, micro = config.train_batch_size, config.micro_batch_size
    steps = config.gradient_accumulation_steps
    if micro is None:
        if total is None:
            return None
        micro = max(1, total // (replicas * (steps or 1)))
    if steps is None:
        steps = 1 if total is None else max(1, total // (replicas * micro))
    return Batch(micro * steps * replicas if total is None else total, micro, steps)
