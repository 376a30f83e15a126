"""The rehearsed model: full size, with weights that are fake tensors.

It is built where training would have it: on the device in the precision of the config, for ZeRO-3
partition by partition (`zero.Init`), which is how weights are loaded from a folder. A model that a
script builds whole on the device first has a higher peak at init than is shown here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from dsforge.ds_config import read
from dsforge.rehearse.fake_gpu import DEVICE
from dsforge.rehearse.rehearsed_job import RehearsedJob
from dsforge.train.model.adapters import with_adapters
from dsforge.train.model.checkpointing import checkpoint_layers, tile_mlps
from dsforge.train.model.source import auto_class

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def build(job: RehearsedJob, settings: dict[str, Any]) -> torch.nn.Module:
    """The language model on the fake device, adapters included."""
    from transformers import AutoConfig

    written = read(settings, filled_in=False).config
    dtype = PRECISIONS[written.precision or "fp32"]  # as the engine decides it (get_data_types)
    values = dict(job.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    packed, sharded = job.quantises, written.shards_parameters
    with _build_device(settings, shards_parameters=sharded and not packed):
        model = auto_class(config).from_config(config, dtype=dtype)
    model.config.use_cache = False
    if job.recompute:
        checkpoint_layers(model, packed_shards=packed and sharded, in_ram=job.offload_activations)
    if job.tiled_mlp:
        tile_mlps(model, shards=sharded)
    if job.lora is not None:
        with torch.device(DEVICE):
            if packed:
                from dsforge.rehearse.packed_linear import pack

                pack(model, job.lora, sharded=sharded)
            model = with_adapters(model, job.lora)
    return model


def _build_device(
    settings: dict[str, Any], *, shards_parameters: bool
) -> AbstractContextManager[Any]:
    if shards_parameters:
        import deepspeed

        partitions: AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=settings)
        return partitions
    device: AbstractContextManager[Any] = torch.device(DEVICE)
    return device
