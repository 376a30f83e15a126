"""EngineConfig: the ds_config.json of a run, checked before any process group exists.

DeepSpeed checks its config only after all ranks are up, and then every rank prints a traceback.
What the loop itself depends on (JSON, batch product, optimizer, precision) is checked here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsforge.constraints import batch_problem
from dsforge.ds_config import Batch, DsConfig, batch_of, read
from dsforge.ds_config.config import Precision
from dsforge.errors import Problem, SpecError
from dsforge.layout import Layout
from dsforge.reading.ds_config import json_mapping
from dsforge.strategy import FULLY_SHARDED, ZeroStage
from dsforge.train.parallel.modes import DATA_PARALLEL, Mode, mode_of
from dsforge.train.parallel.refit import batch_of_restart, refitted

MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
USUAL_RATE = 1e-3  # of torch's and DeepSpeed's Adam
STARTED_ALONE = (
    "one process was started: use `deepspeed --num_gpus N --module dsforge.train train.yaml` "
    "or `torchrun --nproc_per_node N -m dsforge.train train.yaml`, not plain python"
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What DeepSpeed is told, and the values of it that the loop needs."""

    settings: dict[str, Any]
    zero_stage: ZeroStage
    precision: Precision
    micro_batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    mode: Mode = DATA_PARALLEL
    asked_batch_size: int | None = None  # the global batch of the file, which a resume may not take
    optimizer: str = ""  # in small letters

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
    """What DeepSpeed's monitor would miss: it looks for it on the first rank only."""
    for key, package in MONITORS.items():
        block = settings.get(key)
        is_on = isinstance(block, dict) and block.get("enabled") is True
        if is_on and find_spec(package) is None:
            message = f"`{key}` is enabled, but the package {package} is not installed"
            hint = f"`pip install {package}`, or drop the block"
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
        yield Problem("learning-rate", message, "the loop schedules around this peak")


def _rate(config: DsConfig) -> Any:
    """The peak learning rate as written."""
    return config.optimizer_parameters.get("lr", USUAL_RATE)


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
