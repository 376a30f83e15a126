"""Which engine trains a job: the one place that chooses."""

from __future__ import annotations

from dsforge.job import TrainJob
from dsforge.train.engines import deepspeed
from dsforge.train.engines.adapter import Adapter
from dsforge.train.engines.plain_torch import adapter as plain_torch


def adapter_of(job: TrainJob) -> Adapter:
    """The adapter of the engine that a job names."""
    return deepspeed.ADAPTER if job.torch is None else plain_torch.ADAPTER
