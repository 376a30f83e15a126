"""Tensor parallelism through DeepSpeed's AutoTP: process groups, settings, and whole weights.

AutoTP replaces linear layers of the Hugging Face model by their shards inside `initialize`. Neither
`deepspeed.initialize` nor its config know the data-parallel size of such a run unless they are
given the groups, so the groups are made here first. With a pipeline, whose engine has groups of its
own, the layers of a stage are sharded before `initialize`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from dsforge.checkpoints.zero.shares import Share
from dsforge.errors import DsforgeError
from dsforge.layout import Layout


def tensor_groups(layout: Layout) -> Any:
    """DeepSpeed's module of process groups, set up for a layout; all ranks must call it."""
    from deepspeed.utils import groups

    groups._init_tp_mesh_device(layout.tensor_parallel_size)  # noqa: SLF001 - as the engine does
    return groups


def tensor_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The config with logits of the whole vocabulary: the loss picks the tokens of answers.

    Left alone, AutoTP splits the vocabulary of models with tied embeddings and replaces the loss.
    """
    block = {**settings["tensor_parallel"], "vocab_parallel_lm_head": False}
    return {**settings, "tensor_parallel": block}


def shard_layers(model: Any, settings: dict[str, Any], group: Any) -> None:
    """Replace the linear layers of a model by their shards; all ranks of the group must call it.

    What AutoTP does inside `initialize` (`runtime/engine.py`, `_apply_autotp_partitioning`), for a
    group that another engine made. Weights on the meta device stay there.
    """
    import torch.distributed
    from deepspeed.module_inject import set_autotp_mode
    from deepspeed.module_inject.layers import configure_tensor_parallel_runtime
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.tensor_parallel.config import get_tensor_parallel_config
    from deepspeed.utils import groups

    set_autotp_mode(training=True)
    groups._TENSOR_MODEL_PARALLEL_GROUP = group  # noqa: SLF001 - where AutoTP looks for it
    config = get_tensor_parallel_config(tensor_settings(settings))
    config.tensor_parallel.tp_group = group
    configure_tensor_parallel_runtime(config)
    engine = SimpleNamespace(
        autotp_size=lambda: torch.distributed.get_world_size(group),
        local_rank=-1,  # the device of this process is chosen already
        is_deepcompile_enabled=lambda: False,
    )
    DeepSpeedEngine._apply_autotp_partitioning(engine, model, config)  # noqa: SLF001 - see above


def shares_of(module: Any) -> dict[str, Share]:
    """The part that this rank holds of each parameter, by its name in the module.

    Raises DsforgeError where AutoTP was told to shard matrices in several blocks.
    """
    from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META

    names = getattr(module, "names_in_model", {})
    found = {}
    for local, parameter in module.named_parameters():
        name, meta = names.get(local, local), getattr(parameter, DS_AUTOTP_UC_META, None)
        sharded = getattr(parameter, "tensor_model_parallel", False)
        if not sharded or meta is None:
            found[local] = Share(name, tuple(getattr(parameter, "ds_shape", parameter.shape)))
            continue
        if meta["sub_param_sizes"] is not None or meta["partition_sizes"] is None:
            message = f"the tensor-parallel parts of {name} are not contiguous"
            raise DsforgeError(message, "remove `tensor_parallel.partition_config`")
        dim, sizes = meta["partition_dim"], meta["partition_sizes"]
        rank = parameter.gather_params.__self__.tp_index
        begin = sum(sizes[:rank])
        found[local] = Share(name, tuple(meta["logical_shape"]), dim, begin, sizes[rank])
    return found


@contextmanager
def whole_shards(module: Any) -> Iterator[None]:
    """Parameters of one module as they were before AutoTP sharded them; all ranks must enter.

    The shards are put back as they were, not cut again: ZeRO's flat buffers hold those.
    """
    parameters = list(module.parameters(recurse=False))
    if not any(hasattr(parameter, "gather_params") for parameter in parameters):
        yield
        return
    shards = [parameter.data for parameter in parameters]
    module.gather_params(parameters)
    try:
        yield
    finally:
        for parameter, shard in zip(parameters, shards, strict=True):
            parameter.data = shard
