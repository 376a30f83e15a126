"""The adapter of plain torch: device, process group, start."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from inspect import signature
from typing import Any

from dsforge.constraints.torch import torch_model_problems, torch_stage_problems
from dsforge.errors import DsforgeError, Problem
from dsforge.job import TrainJob
from dsforge.measurement import TRAINERS
from dsforge.strategy import Strategy
from dsforge.train.data.samples import MULTIPLE
from dsforge.train.engines.adapter import Adapter, RateFactor
from dsforge.train.engines.engine import Engine
from dsforge.train.engines.plain_torch.config import read_config, settings_of
from dsforge.train.engines.plain_torch.engine import TorchEngine
from dsforge.train.engines.plain_torch.optimizer import made_optimizer
from dsforge.train.engines.plain_torch.placement import compute_type, placed
from dsforge.train.engines.plain_torch.state import TrainingState
from dsforge.train.parallel.agreement import on_first_rank
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.modes import shape_of_configuration
from dsforge.train.parallel.ranks import (
    FIRST_WAIT,
    Place,
    form_group,
    meeting,
    share_cores,
)
from dsforge.train.run.preference_step import PreferenceStepper
from dsforge.train.run.step import Stepper


def job_problems(job: TrainJob, config: EngineConfig, gguf: bool) -> list[Problem]:
    """A torch that is too old; the rest is found in `read_config`."""
    if writes_shards():
        return []
    message = f"torch {version('torch')} cannot write checkpoints of shards as safetensors"
    return [Problem("torch-version", message, "install a newer torch, or use a DeepSpeed config")]


def writes_shards() -> bool:
    """Whether torch.distributed.checkpoint has the writer that checkpoints need."""
    import torch.distributed.checkpoint as found

    kind = getattr(found, "HuggingFaceStorageWriter", None)
    return kind is not None and "save_distributed" in signature(kind).parameters


def model_problems(job: TrainJob, config: EngineConfig, configuration: Any) -> list[Problem]:
    """What of a model the strategy cannot share."""
    layout, shape = config.mode.layout, shape_of_configuration(configuration)
    tied = bool(getattr(configuration.get_text_config(), "tie_word_embeddings", False))
    stages = torch_stage_problems(layout.pipeline_parallel_size, shape, tied=tied)
    return [*torch_model_problems(layout.tensor_parallel_size, shape), *stages]


def silence() -> None:
    """Keep the logs of torch.distributed.checkpoint out of the progress display."""
    import logging

    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.WARNING)


def device() -> Any:
    """The device of this rank: a GPU where there is one, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def choose_device(place: Place) -> None:
    """Bind this process to its GPU; on CPU ranks, share out the cores as threads."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank)
    else:
        share_cores()


def check_precision(precision: str) -> None:
    """Raise DsforgeError where the device of this rank cannot train in it."""
    import torch

    if precision == "bf16" and torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        message = "`torch.precision` (=bf16) is not supported by the GPU here"
        raise DsforgeError(message, "use fp16 or fp32")


def join(place: Place) -> None:
    """Form the process group of the job. Raises DsforgeError where ranks are missing."""
    import torch.distributed

    where = device()
    back_end = "gloo" if where.type == "cpu" else "cpu:gloo,cuda:nccl"  # CPU: offloaded shards
    form_group(
        place,
        lambda: torch.distributed.init_process_group(
            back_end, init_method=meeting(), timeout=FIRST_WAIT
        ),
    )


def loads_weights(config: EngineConfig) -> bool:
    """Where parameters are sharded the first rank alone, which sends them to the others."""
    import torch.distributed

    return config.strategy != "fsdp2" or torch.distributed.get_rank() == 0


def loading(config: EngineConfig) -> AbstractContextManager[Any]:
    """Weights are loaded into host memory as they are."""
    return nullcontext()


def start(model: Any, job: TrainJob, config: EngineConfig, factor: RateFactor) -> Engine:
    """The engine around a model; all ranks call it."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR

    on_first_rank(lambda: None)  # it may load for longer than ranks wait in a collective
    settings, where = settings_of(job), device()
    laid_out = placed(model, settings, where, config.mode.layout.data_parallel_size)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = made_optimizer(settings, parameters)
    scaler = torch.amp.GradScaler(where.type, enabled=settings.precision == "fp16")
    micro, steps = config.micro_batch_size, config.gradient_accumulation_steps
    pipeline = None
    if laid_out.stages is not None:
        from dsforge.train.engines.plain_torch.pipeline import made_pipeline

        length = -(-job.sequence_length // MULTIPLE) * MULTIPLE
        kind = compute_type(settings) or torch.float32
        shape = (micro, length, steps)
        pipeline = made_pipeline(laid_out.forward, laid_out.stages, shape, device=where, kind=kind)
    return TorchEngine(
        module=model,
        device=where,
        placed=laid_out,
        state=TrainingState(
            optimizer, LambdaLR(optimizer, factor), scaler, is_a_part=pipeline is not None
        ),
        settings=settings,
        micro_batch_size=micro,
        micro_steps=steps,
        pipeline=pipeline,
    )


def made_stepper(engine: Engine, job: TrainJob, pad_token: int, place: Place) -> Stepper:
    """The Stepper that suits the layout."""
    if place.sizes.pipeline_parallel_size == 1:
        kind = Stepper if job.preference is None else PreferenceStepper
        return kind(engine, job, pad_token, place)
    from dsforge.train.engines.plain_torch.pipeline import PipelineStepper

    return PipelineStepper(engine, job, pad_token, place)


def is_planned(plan: Strategy, config: EngineConfig) -> bool:
    """Whether a strategy of a plan, priced as PyTorch DDP or FSDP, is that of a config."""
    return (
        plan.runs_as.trainer == TRAINERS[config.strategy]
        and plan.layout == config.mode.layout
        and plan.zero_stage == config.zero_stage
        and plan.micro_batch_size == config.micro_batch_size
        and plan.gradient_accumulation_steps == config.gradient_accumulation_steps
        and (plan.offload_parameters != "none") == config.settings["torch"]["cpu_offload"]
    )


ADAPTER = Adapter(
    packages=("torch",),
    read_config=read_config,
    job_problems=job_problems,
    model_problems=model_problems,
    silence=silence,
    choose_device=choose_device,
    check_precision=check_precision,
    join=join,
    loads_weights=loads_weights,
    loading=loading,
    start=start,
    stepper=made_stepper,
    is_planned=is_planned,
)
