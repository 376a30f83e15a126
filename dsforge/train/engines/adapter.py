"""Adapter: what a run asks of its training software before there is an engine.

A new one is a module with an `ADAPTER` and its row in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge.errors import Problem
from dsforge.job import TrainJob
from dsforge.strategy import Strategy
from dsforge.train.engines.engine import Engine
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.step import Stepper

RateFactor = Callable[[int], float]  # share of the peak learning rate by step


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a run asks of its training software before it has an engine."""

    packages: tuple[str, ...]  # beside transformers and its kin
    # job, folder of train.yaml, ranks, global batch of the run that goes on
    read_config: Callable[[TrainJob, Path, int, int | None], EngineConfig]
    # why the job cannot run here, by what is known without the model; `gguf`: weights in one file
    job_problems: Callable[[TrainJob, EngineConfig, bool], list[Problem]]
    # why it cannot train a model, by its transformers configuration
    model_problems: Callable[[TrainJob, EngineConfig, Any], list[Problem]]
    silence: Callable[[], None]  # chatter of its libraries
    choose_device: Callable[[Place], None]
    check_precision: Callable[[str], None]  # raises DsforgeError
    join: Callable[[Place], None]  # form the process group
    # whether this rank loads the weights, or only builds the model without them
    loads_weights: Callable[[EngineConfig], bool]
    # the context in which transformers loads weights
    loading: Callable[[EngineConfig], AbstractContextManager[Any]]
    start: Callable[[Any, TrainJob, EngineConfig, RateFactor], Engine]
    stepper: Callable[[Engine, TrainJob, int, Place], Stepper]  # the third is the padding token
    is_planned: Callable[[Strategy, EngineConfig], bool]  # whether a price is one of this run
