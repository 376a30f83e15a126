"""Modes: how the DeepSpeed config splits the ranks beyond data parallelism, and what forbids it.

DeepSpeed reads these sizes after all ranks are up, and accepts some combinations silently without
doing what they say. The constraints are those that the planner asks, so a plan and a run agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from dsforge.constraints import Case, ModelShape, broken, case_of_config
from dsforge.constraints.layers import INDEXED_TYPE, RECURRENT_TYPES
from dsforge.ds_config import BALANCED, DsConfig, Partition
from dsforge.errors import Problem
from dsforge.layout import Layout
from dsforge.strategy import ZeroStage


class Mode(NamedTuple):
    """The parallel sizes of a run, and how the layers fall to the pipeline stages."""

    layout: Layout
    partition: Partition = BALANCED


DATA_PARALLEL = Mode(Layout())


def mode_of(config: DsConfig, world_size: int) -> tuple[Mode, list[Problem]]:
    """The mode that a config asks for on `world_size` ranks, and the constraints that it breaks."""
    layout = Layout(
        data_parallel_size=config.replicas(world_size),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_stages,
        context_parallel_size=config.sequence_parallel_size,
    )
    return Mode(layout, config.partition), list(broken(case_of_config(config, world_size)))


def check_model(
    mode: Mode,
    configuration: Any,
    *,
    adapters: bool,
    attention: str = "sdpa",
    packing: bool = False,
    compiled: bool = False,
    zero_stage: ZeroStage | None = None,
) -> list[Problem]:
    """The constraints that a model breaks in a mode; `configuration` is the transformers one.

    `adapters`: whether LoRA is trained; `attention`: the kernel; `packing`: samples share rows;
    `compiled`: torch.compile of the layers; `zero_stage`: where it is known.
    """
    layout = mode.layout
    case = Case(
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        partition=mode.partition if isinstance(mode.partition, tuple) else None,
        adapters=adapters,
        attention=attention,
        packing=packing,
        compiled=compiled,
        zero_stage=zero_stage,
        shape=shape_of_configuration(configuration),
    )
    return list(broken(case))


def shape_of_configuration(configuration: Any) -> ModelShape:
    """What constraints ask of a transformers configuration."""
    text = configuration.get_text_config()
    plan = getattr(configuration, "base_model_tp_plan", None) or {}
    window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    kinds = set(getattr(text, "layer_types", None) or ())
    return ModelShape(
        model_type=configuration.model_type,
        attention_heads=getattr(text, "num_attention_heads", None),
        kv_heads=getattr(text, "num_key_value_heads", None),
        layers=getattr(text, "num_hidden_layers", None),
        latent=getattr(text, "kv_lora_rank", None) is not None,
        windowed=bool(window),
        two_halves=bool(getattr(configuration, "is_encoder_decoder", False)),
        recurrent=bool(set(RECURRENT_TYPES) & kinds),
        indexed=INDEXED_TYPE in kinds,
        tensor_styles=frozenset(plan.values()),
    )


def explicit_bounds(counts: Sequence[int], before: int, after: int) -> list[int]:
    """Bounds of stages in the sequence of pieces, from the decoder layers of each stage.

    `before` and `after` are the pieces around the decoder layers: they go to the outer stages.
    """
    inner = [before + total for total in accumulate(counts)]
    return [0, *inner[:-1], inner[-1] + after]
