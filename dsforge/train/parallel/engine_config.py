"""EngineConfig: the ds_config.json of a run, checked before any process group exists.

DeepSpeed checks its config only after all ranks are up, and then every rank prints a traceback.
What the loop itself depends on (JSON, batch product, optimizer, precision) is checked here first.

A resumed run keeps its global batch: the learning rate, the schedule and the order of the data all
count in global batches. So on other ranks the accumulation changes, and where that does not
suffice the micro batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsforge.constraints import batch_problem, divisors, listed
from dsforge.ds_config import Batch, DsConfig, batch_of, read
from dsforge.ds_config.config import Precision
from dsforge.errors import Problem, SpecError
from dsforge.layout import Layout
from dsforge.measurement import EngineName
from dsforge.reading.ds_config import json_mapping
from dsforge.strategy import FULLY_SHARDED, ZeroStage
from dsforge.train.parallel.modes import DATA_PARALLEL, Mode, mode_of

MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
DEFAULT_LEARNING_RATE = 1e-3  # of torch's and DeepSpeed's Adam
MICRO, TOTAL, ACCUMULATION = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
)
STARTED_ALONE = (
    "one process was started: use `deepspeed --num_gpus N --module dsforge.train train.yaml` "
    "or `torchrun --nproc_per_node N -m dsforge.train train.yaml`, not plain python"
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings given to the engine, and the values of them that the loop needs."""

    settings: dict[str, Any]
    zero_stage: ZeroStage
    precision: Precision
    micro_batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    mode: Mode = DATA_PARALLEL
    asked_batch_size: int | None = None  # the global batch of the file, which a resume may not take
    optimizer: str = ""  # in small letters
    engine: EngineName = "deepspeed"
    strategy: str = ""  # what shards the states, where it is not ZeRO
    weights_in_fp32: bool = False  # as they are loaded; the engine casts them to the precision

    @property
    def shards_parameters(self) -> bool:
        """Whether each rank holds only a part of every parameter (ZeRO stage 3)."""
        return self.zero_stage == FULLY_SHARDED


def read_engine_config(
    path: Path, world_size: int, global_batch_size: int | None = None
) -> EngineConfig:
    """The config of a run on `world_size` ranks. Raises SpecError with all problems.

    A run that goes on keeps its `global_batch_size`, whatever ranks the config was written for.
    """
    settings = json_mapping(path)
    config, found = read(settings, filled_in=False)
    mode, clashes = mode_of(config, world_size)
    problems = list(dict.fromkeys((*found, *clashes)))
    replicas = mode.layout.data_parallel_size
    asked = batch_of(config, replicas)
    kept = global_batch_size or batch_of_restart(settings)
    if kept is not None and not problems:
        settings = refitted(settings, kept, replicas)
        config = read(settings, filled_in=False).config
    batch = batch_of(config, replicas)
    problems += [] if clashes else _batch_problems(batch, mode.layout)
    problems += [*_monitors(settings), *_optimizer_problems(settings, config)]
    if problems or batch is None:
        raise SpecError(tuple(replace(problem, place=str(path)) for problem in problems))
    return EngineConfig(
        settings=settings,
        zero_stage=config.zero_stage or 0,
        precision=config.precision or "fp32",
        micro_batch_size=batch.micro,
        gradient_accumulation_steps=batch.steps,
        learning_rate=float(_rate(config)),
        mode=mode,
        asked_batch_size=None if asked is None else asked.total,
        optimizer=config.optimizer_name,
    )


def _monitors(settings: dict[str, Any]) -> Iterator[Problem]:
    """Missing packages of DeepSpeed's monitors; the engine looks on the first rank only."""
    for key, package in MONITORS.items():
        block = settings.get(key)
        is_on = isinstance(block, dict) and block.get("enabled") is True
        if is_on and find_spec(package) is None:
            message = f"`{key}` is enabled, but the package {package} is not installed"
            hint = f"`pip install {package}`, or remove the block"
            yield Problem("monitor-missing", message, hint)


def _optimizer_problems(settings: dict[str, Any], config: DsConfig) -> Iterator[Problem]:
    """A config without an optimizer, or without the rate that the loop schedules around."""
    block = settings.get("optimizer", {})
    if isinstance(block, dict) and "type" not in block:
        hint = 'add `"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}`'
        yield Problem("optimizer-missing", "there is no `optimizer` with a `type`", hint)
        return
    rate = _rate(config)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not rate > 0:
        message = f"`optimizer.params.lr` (={rate}) must be a number above 0"
        yield Problem("learning-rate", message, "the learning rate schedule uses it as its peak")


def _rate(config: DsConfig) -> Any:
    """The peak learning rate as written."""
    return config.optimizer_parameters.get("lr", DEFAULT_LEARNING_RATE)


def _batch_problems(batch: Batch | None, layout: Layout) -> Iterator[Problem]:
    """No batch size, or a global batch that the ranks do not make."""
    if batch is None:
        hint = "write `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps`"
        yield Problem("batch-missing", "no batch size is given", hint)
        return
    problem = batch_problem(batch, layout.data_parallel_size)
    if problem is None:
        return
    wanted, rest = divmod(batch.total, batch.micro * batch.steps)
    hint = problem.hint if rest else f"start {wanted * layout.model_ranks} ranks"
    if layout.world_size == 1:
        hint += f"; world size is 1: {STARTED_ALONE}"
    yield replace(problem, hint=hint)


def refitted(settings: dict[str, Any], global_batch_size: int, replicas: int) -> dict[str, Any]:
    """The DeepSpeed config with the same global batch on another number of replicas.

    The micro batch never grows; the config stays as it is where it gives that batch already.
    Raises SpecError where the samples cannot be shared out evenly.
    """
    micro, steps = settings.get(MICRO), settings.get(ACCUMULATION)
    if not isinstance(micro, int) or micro < 1:
        return settings  # what is wrong with it is said by whoever reads it
    if isinstance(steps, int) and micro * steps * replicas == global_batch_size:
        return settings
    if global_batch_size % replicas:
        legal = listed(divisors(global_batch_size))
        message = (
            f"a global batch of {global_batch_size} cannot be divided among {replicas} replicas"
        )
        raise SpecError((Problem("batch-resume", message, f"resume on {legal} of them"),))
    each = global_batch_size // replicas
    fitting = max(size for size in divisors(each) if size <= micro)
    sizes = {TOTAL: global_batch_size, MICRO: fitting, ACCUMULATION: each // fitting}
    return {**settings, **sizes}


def batch_of_restart(settings: dict[str, Any]) -> int | None:
    """The global batch that a run keeps after torchrun restarted it on the remaining ranks.

    DSFORGE_ELASTIC is of launch scripts whose nodes come and go from the first start on.
    """
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    again = again or os.environ.get("DSFORGE_ELASTIC") == "1"
    total = settings.get(TOTAL)
    return total if again and isinstance(total, int) else None
