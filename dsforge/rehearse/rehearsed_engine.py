"""The engine around the model as training starts it: ZeRO alone, AutoTP, or a pipeline."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional

from dsforge.ds_config import batch_of, read
from dsforge.errors import SpecError
from dsforge.layout import Layout
from dsforge.rehearse.fake_tensors import moving_in_place
from dsforge.rehearse.rehearsed_job import RehearsedJob
from dsforge.rehearse.rehearsed_model import build
from dsforge.rehearse.storage_owners import Ownership
from dsforge.train.model.qlora import shard
from dsforge.train.parallel.autotp import tensor_groups, tensor_settings
from dsforge.train.parallel.modes import Mode, check_model
from dsforge.train.parallel.pipeline_model import PipelineDecoder, pipeline_settings
from dsforge.train.parallel.ulysses import sequence_groups


def start(job: RehearsedJob, settings: dict[str, Any], mode: Mode, ownership: Ownership) -> Any:
    """The engine of this rank, its model's memory claimed.

    A model that is split, or packed and sharded by ZeRO-3, has its whole weights in host memory
    first, as in training.
    """
    tracker = ownership.tracker
    packed = job.quantises and read(settings, filled_in=False).config.shards_parameters
    tracker.building = packed or mode.layout.model_ranks > 1
    model = build(job, settings)
    tracker.building = False
    if packed:
        shard_packed(model, settings)
    with moving_in_place(tracker):
        return _started(model, settings, mode, ownership)


def shard_packed(model: Any, settings: dict[str, Any]) -> None:
    """Move the scales of packed matrices to the device and shard the rest, as training does."""
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        for part in () if state is None else (state, state.state2):
            if part is not None:
                part.absmax = part.absmax.clone()
    shard(model, settings)


def _check(mode: Mode, configuration: Any, *, adapters: bool = False) -> None:
    """Raises SpecError with the constraints that a model breaks in a mode."""
    problems = check_model(mode, configuration, adapters=adapters)
    if problems:
        raise SpecError(tuple(problems))


def _started(model: Any, settings: dict[str, Any], mode: Mode, ownership: Ownership) -> Any:
    layout, groups = mode.layout, None
    if layout.pipeline_parallel_size > 1:
        adapters = any(not parameter.requires_grad for parameter in model.parameters())
        _check(mode, model.config, adapters=adapters)
        model = _stages(model, settings, mode)
        settings = pipeline_settings(settings)
    elif layout.tensor_parallel_size > 1:
        settings = tensor_settings(settings)
        with unset_fake_temporarily():  # ranks are numbers that it reads from tensors
            groups = tensor_groups(layout)
    elif layout.context_parallel_size > 1:
        _check(mode, model.config)
        size = layout.context_parallel_size
        groups = sequence_groups(model, size, micro_batch(settings, layout))
    ownership.claim_model(model)
    ownership.watch_gradients(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, config=settings, mpu=groups
    )
    check = getattr(engine, "first_dataloader_check", None)
    if check is not None:  # compares this rank's tokens with those of another
        check.remove()
    ownership.watch_optimizer(engine)
    return engine


def micro_batch(settings: dict[str, Any], layout: Layout) -> int:
    """Samples of a micro batch, as the engine derives them (runtime/config.py)."""
    found = batch_of(read(settings, filled_in=False).config, layout.data_parallel_size)
    return 1 if found is None else found.micro


def _stages(model: Any, settings: dict[str, Any], mode: Mode) -> Any:
    """The stage of this rank; its loss weighs all tokens, so that shapes are known."""
    stages = PipelineDecoder(model, mode, settings)
    stages.loss_fn = _loss
    return stages


def _loss(logits: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """What `train.pipeline_step.scaled_loss` computes where every token counts."""
    labels, scale = target
    told = logits[:, :-1].flatten(0, 1).float()
    return functional.cross_entropy(told, labels[:, 1:].flatten(), reduction="sum") * scale
