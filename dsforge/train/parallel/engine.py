"""Starts DeepSpeed's engine around a model, for every mode."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from dsforge.specs import OptimizerStates
from dsforge.train.parallel.autotp import tensor_groups, tensor_settings
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.low_bit_optimizer import make_optimizer
from dsforge.train.parallel.tensor_dropout import vary_attention_dropout
from dsforge.train.parallel.ulysses import sequence_groups

COMPILER_SWITCH = "TORCHDYNAMO_DISABLE"  # torch looks at it at each `torch.compile`
MUON = "deepspeed.runtime.zero.muon.muon_optimizer"


def start_engine(
    model: Any,
    config: EngineConfig,
    factor: Callable[[int], float],
    states: OptimizerStates | None = None,
) -> Any:
    """The engine; `factor` is the share of the peak learning rate by step. All ranks call it.

    `states`: how bitsandbytes stores the moments of its optimizer; none: the config's optimizer.
    """
    import deepspeed
    from torch.optim.lr_scheduler import LambdaLR

    settings, groups, layout = config.settings, None, config.mode.layout
    if layout.tensor_parallel_size > 1:
        vary_attention_dropout(model, layout.coordinates(deepspeed.comm.get_rank()).tensor)
    if layout.pipeline_parallel_size > 1:
        from dsforge.train.parallel.pipeline_model import PipelineDecoder, pipeline_settings

        model = PipelineDecoder(model, config.mode, settings)
        settings = pipeline_settings(settings)
    elif layout.tensor_parallel_size > 1:
        settings, groups = tensor_settings(settings), tensor_groups(layout)
    elif layout.context_parallel_size > 1:
        groups = sequence_groups(model, layout.context_parallel_size, config.micro_batch_size)
    _import_muon(config.optimizer)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = None
    if states is not None:
        optimizer = make_optimizer(states, trained, settings["optimizer"].get("params", {}))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        model_parameters=trained,
        config=settings,
        mpu=groups,
        lr_scheduler=lambda optimizer: LambdaLR(optimizer, factor),
    )
    return engine


def _import_muon(optimizer: str) -> None:
    """Import DeepSpeed's Muon without torch's compiler, unless it is the optimizer of the run.

    DeepSpeed imports its Muon for every optimizer, and a decorator there asks torch for its
    compiler as soon as it is read: Inductor and all that it brings, 4 to 15 s for nothing.
    """
    if "muon" in optimizer.lower() or COMPILER_SWITCH in os.environ:
        return
    os.environ[COMPILER_SWITCH] = "1"
    try:
        with suppress(ImportError):  # an older DeepSpeed has none
            import_module(MUON)
    finally:
        del os.environ[COMPILER_SWITCH]
