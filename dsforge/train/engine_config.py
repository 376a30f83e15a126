"""EngineConfig: the ds_config.json of a run, checked before any process group exists.

DeepSpeed checks its config only after all ranks are up, and then every rank prints a traceback.
What the loop itself depends on (JSON, batch product, optimizer, precision) is checked here first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dsforge.errors import Problem, SpecError
from dsforge.layout import Layout
from dsforge.reading.source import read_text
from dsforge.train.modes import DATA_PARALLEL, Mode, read_mode
from dsforge.train.refit import asked_batch_size, batch_of_restart, refitted

Precision = Literal["bf16", "fp16", "fp32"]
MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
STARTED_ALONE = (
    "one process was started: use `deepspeed --num_gpus N --module dsforge.train train.yaml` "
    "or `torchrun --nproc_per_node N -m dsforge.train train.yaml`, not plain python"
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What DeepSpeed is told, and the values of it that the loop needs."""

    settings: dict[str, Any]
    zero_stage: int
    precision: Precision
    micro_batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    mode: Mode = DATA_PARALLEL
    asked_batch_size: int | None = None  # the global batch of the file, which a resume may not take

    @property
    def shards_parameters(self) -> bool:
        """Whether each rank holds only a part of every parameter (ZeRO stage 3)."""
        return self.zero_stage == 3  # noqa: PLR2004 - the stage is its name


def read_engine_config(
    path: Path, world_size: int, global_batch_size: int | None = None
) -> EngineConfig:
    """The config of a run on `world_size` ranks. Raises SpecError with all problems.

    A run that goes on keeps its `global_batch_size`, whatever ranks the config was written for.
    """
    settings = _mapping(path)
    draft = _Draft(settings, str(path))
    stage = draft.zero_stage()
    mode, problems = read_mode(settings, stage, world_size)
    asked = asked_batch_size(settings, mode.layout.data_parallel_size)
    kept = global_batch_size or batch_of_restart(settings)
    if kept is not None and not problems:
        settings = refitted(settings, kept, mode.layout.data_parallel_size)
        draft.settings = settings
    draft.problems += [replace(problem, place=draft.place) for problem in problems]
    batches = draft.batches(mode.layout) if not problems else _Batches(1, 1)
    draft.monitors()
    config = EngineConfig(
        settings=settings,
        zero_stage=stage,
        precision=draft.precision(),
        micro_batch_size=batches.micro_batch_size,
        gradient_accumulation_steps=batches.accumulation,
        learning_rate=draft.learning_rate(),
        mode=mode,
        asked_batch_size=asked,
    )
    if draft.problems:
        raise SpecError(tuple(draft.problems))
    return config


def _mapping(path: Path) -> dict[str, Any]:
    """The JSON object in a file, each key once. Raises SpecError."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated.extend(sorted({key for key in keys if keys.count(key) > 1}))
        return dict(pairs)

    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        place = f"{path}:{getattr(error, 'lineno', 1)}"
        message = f"is not JSON: {getattr(error, 'msg', 'nested too deeply')}"
        raise SpecError((Problem("ds-config-json", message, place=place),)) from error
    problems = [
        Problem("ds-config-duplicate", f"`{key}` is written twice", "keep one", str(path))
        for key in repeated
    ]
    if not isinstance(value, dict):
        problems.append(Problem("ds-config-mapping", "must be a JSON object", place=str(path)))
    if problems:
        raise SpecError(tuple(problems))
    return dict(value)


class _Batches(NamedTuple):
    micro_batch_size: int
    accumulation: int


class _Draft:
    """A config that is being read; collects problems."""

    def __init__(self, settings: dict[str, Any], place: str) -> None:
        self.settings = settings
        self.place = place
        self.problems: list[Problem] = []

    def _problem(self, rule: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(rule, message, hint, self.place))

    def _block(self, key: str) -> dict[str, Any]:
        block = self.settings.get(key, {})
        if isinstance(block, dict):
            return block
        self._problem("ds-config-block", f"`{key}` must be a JSON object")
        return {}

    def zero_stage(self) -> int:
        """The ZeRO stage; 0 where none is given."""
        stage = self._block("zero_optimization").get("stage", 0)
        if stage in (0, 1, 2, 3) and not isinstance(stage, bool):
            return int(stage)
        self._problem("zero-stage", f"`zero_optimization.stage` (={stage}) must be 0, 1, 2 or 3")
        return 0

    def precision(self) -> Precision:
        """The precision of the weights in forward and backward."""
        bf16 = self._block("bf16").get("enabled") is True
        fp16 = self._block("fp16").get("enabled") is True
        if bf16 and fp16:
            self._problem("one-precision", "`bf16` and `fp16` are both enabled", "keep one")
        return "bf16" if bf16 else "fp16" if fp16 else "fp32"

    def monitors(self) -> None:
        """What DeepSpeed's monitor would miss: it looks for it on the first rank only."""
        for key, package in MONITORS.items():
            if self._block(key).get("enabled") is True and find_spec(package) is None:
                message = f"`{key}` is enabled, but the package {package} is not installed"
                hint = f"`pip install {package}`, or drop the block"
                self._problem("monitor-missing", message, hint)

    def learning_rate(self) -> float:
        """The peak learning rate."""
        optimizer = self._block("optimizer")
        if "type" not in optimizer:
            hint = 'add `"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}`'
            self._problem("optimizer-missing", "there is no `optimizer` with a `type`", hint)
            return 0.0
        params = optimizer.get("params")
        rate = params.get("lr", 1e-3) if isinstance(params, dict) else 1e-3
        if isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0:
            return float(rate)
        message = f"`optimizer.params.lr` (={rate}) must be a number above 0"
        self._problem("learning-rate", message, "the loop schedules around this peak")
        return 0.0

    def _count(self, key: str) -> int | None:
        value = self.settings.get(key)
        if value is None or (isinstance(value, int) and value is not True and value >= 1):
            return value
        self._problem("batch-count", f"`{key}` (={value}) must be a whole number above 0")
        return None

    def batches(self, layout: Layout) -> _Batches:
        """Micro batch and accumulation, as DeepSpeed would derive them."""
        replicas = layout.data_parallel_size
        total = self._count("train_batch_size")
        micro = self._count("train_micro_batch_size_per_gpu")
        steps = self._count("gradient_accumulation_steps")
        if micro is None and total is None:
            hint = "write `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps`"
            self._problem("batch-missing", "no batch size is given", hint)
            return _Batches(1, 1)
        if micro is None:
            micro = max(1, (total or 1) // (replicas * (steps or 1)))
        if steps is None:
            steps = 1 if total is None else max(1, total // (replicas * micro))
        if total is not None and total != micro * steps * replicas:
            self._batch_product(total, micro, steps, layout)
        return _Batches(micro, steps)

    def _batch_product(self, total: int, micro: int, steps: int, layout: Layout) -> None:
        replicas = layout.data_parallel_size
        what = "world size" if layout.model_ranks == 1 else "data-parallel size"
        message = (
            f"`train_batch_size` (={total}) must be micro batch (={micro}) x accumulation "
            f"(={steps}) x {what} (={replicas}) = {micro * steps * replicas}"
        )
        wanted, rest = divmod(total, micro * steps)
        ranks = wanted * layout.model_ranks
        hint = f"start {ranks} ranks" if rest == 0 else f"set it to {micro * steps * replicas}"
        if layout.world_size == 1:
            hint += f"; world size is 1: {STARTED_ALONE}"
        self._problem("batch-product", message, hint)
