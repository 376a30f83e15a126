"""EngineConfig of a run on plain torch, from the `torch` block of its train.yaml.

The global batch is what a run keeps: the learning rate, the schedule and the order of the data all
count in it. So on another number of ranks the accumulation follows, and where that does not suffice
the micro batch, which never grows. Ranks that cannot share it evenly are refused, with those that
can.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.constraints import divisors, listed
from dsforge.constraints.torch import torch_job_problems, torch_rank_problems
from dsforge.errors import Problem, SpecError
from dsforge.job import TorchSettings, TrainJob
from dsforge.layout import Layout
from dsforge.strategy import FULLY_SHARDED, ZeroStage
from dsforge.train.parallel.engine_config import STARTED_ALONE, EngineConfig
from dsforge.train.parallel.modes import Mode

# What a strategy shards, as the ZeRO stage that shards the same.
STAGES: dict[str, ZeroStage] = {"ddp": 0, "zero1": 1, "fsdp2": FULLY_SHARDED}
SHARDED_GRADIENTS: ZeroStage = 2
OF_ADAM = ("betas", "eps")
OPTIMIZER_FIELDS = ("learning_rate", "betas", "eps", "weight_decay", "momentum", "optimizer")
ELSEWHERE = (*OPTIMIZER_FIELDS, "gradient_clipping", "precision")
SIZES = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")


class Share(NamedTuple):
    """What falls to a data-parallel rank of a global batch."""

    micro: int
    steps: int


def settings_of(job: TrainJob) -> TorchSettings:
    """The `torch` block of a job that has one."""
    return job.torch or TorchSettings()  # `registry.adapter_of` chose this engine by it


def read_config(
    job: TrainJob, _: Path, world_size: int, global_batch_size: int | None
) -> EngineConfig:
    """The config of a job on `world_size` ranks. Raises SpecError with all problems.

    A run that goes on keeps its `global_batch_size`.
    """
    torch = settings_of(job)
    problems = [*torch_job_problems(job), *torch_rank_problems(torch, world_size, node_ranks())]
    if problems:
        raise SpecError(tuple(problems))
    tensor, stages = torch.tensor_parallel_size, torch.pipeline_parallel_size
    replicas = world_size // (tensor * stages)
    asked = torch.global_batch_size or (
        torch.micro_batch_size * (torch.gradient_accumulation_steps or 1) * replicas
    )
    share = shared(torch, global_batch_size or asked, replicas)
    return EngineConfig(
        settings=_settings(torch),
        zero_stage=stage_of(torch),
        precision=torch.precision,
        micro_batch_size=share.micro,
        gradient_accumulation_steps=share.steps,
        learning_rate=torch.learning_rate,
        mode=Mode(
            Layout(
                data_parallel_size=replicas,
                tensor_parallel_size=tensor,
                pipeline_parallel_size=stages,
            )
        ),
        asked_batch_size=asked,
        optimizer=torch.optimizer,
        engine="torch",
        strategy=torch.strategy,
        weights_in_fp32=job.lora is None,
    )


def shared(torch: TorchSettings, total: int, replicas: int) -> Share:
    """The share of each replica of a global batch. Raises SpecError where it is not whole."""
    if total % replicas:
        size = torch.tensor_parallel_size * torch.pipeline_parallel_size
        ranks = listed(tuple(count * size for count in divisors(total)))
        message = f"a global batch of {total} cannot be divided among {replicas} replicas"
        hint = f"start {ranks} ranks"
        if replicas * size == 1:
            hint += f"; world size is 1: {STARTED_ALONE}"
        raise SpecError((Problem("batch-resume", message, hint),))
    each = total // replicas
    micro = max(size for size in divisors(each) if size <= torch.micro_batch_size)
    return Share(micro, each // micro)


def stage_of(torch: TorchSettings) -> ZeroStage:
    """The ZeRO stage that shards what this strategy shards."""
    return SHARDED_GRADIENTS if torch.sharding == "gradients" else STAGES[torch.strategy]


def node_ranks() -> int:
    """Ranks of this node, as the launcher says."""
    text = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return int(text) if text.isascii() and text.isdecimal() and int(text) else 1


def _settings(torch: TorchSettings) -> dict[str, Any]:
    """The settings by the names that a DeepSpeed config has for them, where it has them.

    So a checkpoint of one engine says what has changed to the other.
    """
    plain = torch.model_dump(mode="json", exclude={*ELSEWHERE, *SIZES})
    return {
        "optimizer": {"type": torch.optimizer, "params": dict(_parameters(torch))},
        "gradient_clipping": torch.gradient_clipping,
        "torch": plain,
    }


def _parameters(torch: TorchSettings) -> Iterator[tuple[str, Any]]:
    """The settings of the optimizer that it has."""
    yield "lr", torch.learning_rate
    yield "weight_decay", torch.weight_decay
    if torch.optimizer == "sgd":
        yield "momentum", torch.momentum
        return
    for name in OF_ADAM:
        yield name, getattr(torch, name)
