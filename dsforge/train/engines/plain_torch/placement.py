"""How plain torch lays a model out over the ranks: DDP, or FSDP2 with tensor parallelism.

Ranks form a grid of data-parallel rows and tensor-parallel columns; a hybrid FSDP2 divides the rows
again, into groups that share one copy and groups that hold the same shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from dsforge.constraints.torch import shard_group
from dsforge.job import TorchSettings
from dsforge.train.engines.plain_torch.config import node_ranks
from dsforge.train.engines.plain_torch.weights import send_weights

STAGES, DATA, REPLICAS, SHARDS, TENSOR = "stages", "data", "replicas", "shards", "tensor"
EACH_LAYER = "layers.*."  # how names of a tensor-parallel plan begin
HIDDEN = "hidden_states"  # what transformers calls the input of attention and MLP


class Placed(NamedTuple):
    """A model on its ranks: what computes it, and how a micro step keeps its gradients here."""

    forward: Any
    # the context of a micro step, by whether it is the last of an optimizer step
    micro_step: Callable[[bool], AbstractContextManager[Any]]
    autocast: Any = None  # the type that operations compute in, where the engine does not cast
    stages: Any = None  # the mesh of the pipeline stages; none: there is one


def placed(model: Any, torch_settings: TorchSettings, device: Any, replicas: int) -> Placed:
    """The model on this rank's device; all ranks call it."""
    for parameter in model.parameters():
        if parameter.requires_grad:  # peft copies modules in the type of the frozen weights
            parameter.data = parameter.data.float()
    if torch_settings.is_fsdp:
        return _fully_sharded(model, torch_settings, device, replicas)
    return _replicated(model, torch_settings, device)


def compute_type(settings: TorchSettings) -> Any:
    """The type of the computation; none for fp32."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[settings.precision]


def _replicated(model: Any, settings: TorchSettings, device: Any) -> Placed:
    """DDP: gradients are reduced bucket by bucket while backward goes on."""
    import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(
        model.to(device),
        device_ids=None if device.type == "cpu" else [device],
        bucket_cap_mb=settings.bucket_mb,
        broadcast_buffers=False,  # what decoders have is computed, not trained
        gradient_as_bucket_view=True,
    )
    # DDP's own reduction, but through torch.distributed, where `traffic` counts it
    wrapped.register_comm_hook(None, hooks.allreduce_hook)

    def micro_step(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else wrapped.no_sync()

    return Placed(wrapped, micro_step, compute_type(settings))


def _fully_sharded(model: Any, settings: TorchSettings, device: Any, replicas: int) -> Placed:
    """FSDP2: each decoder layer a group, the rest of the model another.

    Only the first rank has weights yet. They go to the others group by group, and each group is
    sharded before the next one comes: beside its shards no rank ever holds more than a layer.
    """
    import torch
    from torch.distributed.fsdp import fully_shard

    from dsforge.train.engines.plain_torch.pipeline import Stage, own_layers

    mesh = _mesh(settings, device, replicas)
    options = _sharding_options(settings, mesh, device)
    home = torch.device("cpu") if settings.cpu_offload else device
    stages = mesh[STAGES] if settings.pipeline_parallel_size > 1 else None
    layers = decoder_layers(model)
    own = own_layers(len(layers), *stage_of(stages))
    for number, layer in enumerate(layers):
        send_weights(layer, home)
        if number not in own:
            layer.to("meta")  # of another stage
            continue
        if settings.tensor_parallel_size > 1:
            _share_matrices(layer, model.config.base_model_tp_plan, mesh[TENSOR])
        fully_shard(layer, **options)
    send_weights(model, home, without=layers)
    forward = model if stages is None else Stage(model, *stage_of(stages))
    fully_shard(forward, **options)
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)

    def micro_step(last: bool) -> AbstractContextManager[Any]:
        if settings.no_sync:
            forward.set_requires_gradient_sync(last)
        elif settings.sharding == "hybrid":  # shards are summed once a step between the replicas
            forward.set_requires_all_reduce(last)
        return nullcontext()

    return Placed(forward, micro_step, stages=stages)


def _sharding_options(settings: TorchSettings, mesh: Any, device: Any) -> dict[str, Any]:
    """What `fully_shard` needs for each group."""
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options: dict[str, Any] = {
        "mesh": mesh[REPLICAS, SHARDS] if settings.sharding == "hybrid" else mesh[DATA],
        "reshard_after_forward": settings.sharding != "gradients",
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=compute_type(settings), reduce_dtype=torch.float32
        ),
    }
    if settings.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    return options


def stage_of(stages: Any) -> tuple[int, int]:
    """The stage of this rank and how many there are."""
    return (0, 1) if stages is None else (stages.get_local_rank(), stages.size())


def _mesh(settings: TorchSettings, device: Any, replicas: int) -> Any:
    """The grid of the ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    stages, tensor = {STAGES: settings.pipeline_parallel_size}, settings.tensor_parallel_size
    if settings.sharding == "hybrid":
        shard = shard_group(settings, node_ranks())
        sizes = {**stages, REPLICAS: replicas // shard, SHARDS: shard, TENSOR: tensor}
    else:
        sizes = {**stages, DATA: replicas, TENSOR: tensor}
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def decoder_layers(model: Any) -> list[Any]:
    """The decoder layers of a transformers model, adapters around it or not."""
    from torch.nn import ModuleList

    depth = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, ModuleList))
    return list(next((found for found in lists if len(found) == depth), ()))


def _share_matrices(layer: Any, plan: Mapping[str, str], mesh: Any) -> None:
    """Split the matrices of a layer by the plan that transformers has for the model."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    kinds: dict[str, Callable[[], Any]] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        # norms of single heads: whole weights, each rank its own heads (samples, tokens, heads, _)
        "replicated_with_grad_allreduce": lambda: SequenceParallel(
            sequence_dim=2, use_local_output=True
        ),
    }
    own = {n.removeprefix(EACH_LAYER): s for n, s in plan.items() if n.startswith(EACH_LAYER)}
    parallelize_module(layer, mesh, {name: kinds[style]() for name, style in own.items()})
    parents = Counter(name.rpartition(".")[0] for name, style in own.items() if style == "colwise")
    for name, matrices in parents.items():
        if matrices > 1:
            part = layer.get_submodule(name)
            part.register_forward_pre_hook(_one_input(mesh), with_kwargs=True)


def _one_input(mesh: Any) -> Callable[[Any, Any, Any], Any]:
    """A hook by which the matrices of a module share one input, whose gradient is summed once.

    Each of them alone would have its own summed: of queries, keys and values three times as much.
    """
    from torch.distributed.tensor import DTensor, Replicate

    def hook(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        hidden = args[0] if args else named[HIDDEN]
        shared = DTensor.from_local(hidden, mesh, (Replicate(),), run_check=False)
        return ((shared, *args[1:]), named) if args else (args, {**named, HIDDEN: shared})

    return hook
