"""The DeepSpeed engine around a model, with our schedule on its optimizer, for every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsforge.train.engine_config import EngineConfig
from dsforge.train.imports import import_muon


def start_engine(model: Any, config: EngineConfig, factor: Callable[[int], float]) -> Any:
    """The engine; `factor` is the share of the peak learning rate by step. All ranks call it."""
    import deepspeed
    from torch.optim.lr_scheduler import LambdaLR

    settings, groups, layout = config.settings, None, config.mode.layout
    if layout.pipeline_parallel_size > 1:
        from dsforge.train.pipeline import PipelineDecoder
        from dsforge.train.pipeline_step import scaled_loss

        stages, partition = layout.pipeline_parallel_size, config.mode.partition
        model = PipelineDecoder(model, stages, partition, scaled_loss)
    if layout.tensor_parallel_size > 1:
        from dsforge.train.tensor_parallel import tensor_groups, tensor_settings

        settings, groups = tensor_settings(settings), tensor_groups(layout)
    import_muon(str(settings.get("optimizer", {}).get("type", "")))
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=settings,
        mpu=groups,
        lr_scheduler=lambda optimizer: LambdaLR(optimizer, factor),
    )
    return engine
