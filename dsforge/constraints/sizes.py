"""Constraints of arithmetic: products, divisors, and what fits inside a node."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from dsforge.constraints.case import Broken, Case, constraint, divisors, listed

if TYPE_CHECKING:
    from dsforge.specs import ClusterSpec


@constraint(
    "world-size",
    source="DeepSpeed utils/groups.py, _create_model_parallel; Megatron-LM "
    "megatron/training/arguments.py, validate_args",
)
def world_size(case: Case) -> Broken | None:
    """Parallel sizes whose product is not the number of accelerators."""
    if case.world_size is None:
        return None
    ranks, gpus = case.model_ranks, case.world_size
    if (case.data_parallel_size or gpus // ranks) * ranks == gpus:
        return None
    sizes = {
        "tensor": case.tensor_parallel_size,
        "pipeline": case.pipeline_parallel_size,
        "sequence": case.context_parallel_size,
    }
    if gpus % ranks:
        named = " x ".join(f"{name} ({size})" for name, size in sizes.items() if size > 1)
        return Broken(
            f"{named} parallelism must divide the number of accelerators ({gpus})",
            f"use {listed(divisors(gpus))} together, or {-(-gpus // ranks) * ranks} accelerators",
        )
    sizes = {"data": case.data_parallel_size or 1, **sizes}
    named = " x ".join(f"{name} ({size})" for name, size in sizes.items() if size > 1)
    taken = sizes["data"] * ranks
    return Broken(
        f"{named or 'data (1)'} parallelism takes {taken} accelerators, the cluster has {gpus}",
        f"use dp {gpus // ranks}",
    )


@constraint(
    "batch-product",
    source="DeepSpeed runtime/config.py, DeepSpeedConfig._batch_assertion; megatron-core "
    "num_microbatches_calculator.py",
)
def batch_product(case: Case) -> Broken | None:
    """A global batch that is not micro batch x accumulation x data-parallel size."""
    factors = {
        "micro batch": case.micro_batch_size,
        "accumulation": case.gradient_accumulation_steps,
        "data-parallel size": case.data_parallel_size,
    }
    known = {name: size for name, size in factors.items() if size}
    product, batch = prod(known.values()), case.global_batch_size
    exact = len(known) == len(factors)
    if not batch or not known or (batch == product if exact else batch % product == 0):
        return None
    words = " x ".join(f"{name} ({size})" for name, size in known.items())
    rule = f"must be {words} = {product}" if exact else f"must be a multiple of {words} = {product}"
    return Broken(f"global batch size {batch} {rule}", _nearest_batches(case, batch, product))


def _nearest_batches(case: Case, batch: int, product: int) -> str:
    """The legal global batches next to the wanted one; any accumulation may be chosen."""
    micro, replicas = case.micro_batch_size, case.data_parallel_size
    unit = micro * replicas if micro and replicas else product
    below = batch // unit * unit
    near = (product,) if below == batch else tuple(n for n in (below, below + unit) if n)
    return f"use a global batch size of {listed(near)}"


@constraint(
    "tensor-heads",
    source="DeepSpeed module_inject/auto_tp.py shards whole heads; megatron-core "
    "TransformerConfig.__post_init__",
)
def tensor_divides_heads(case: Case) -> Broken | None:
    """Attention heads that tensor parallelism cannot share out."""
    size, heads = case.tensor_parallel_size, case.shape and case.shape.attention_heads
    if not heads or heads % size == 0:
        return None
    return Broken(
        f"tensor parallelism ({size}) must divide the attention heads ({heads})",
        f"use {listed(divisors(heads))}",
    )


@constraint(
    "tensor-kv-heads",
    source="DeepSpeed runtime/engine.py, _apply_autotp_partitioning; megatron-core "
    "TransformerConfig.__post_init__ (multiple or divisor)",
)
def tensor_divides_kv_heads(case: Case) -> Broken | None:
    """Key/value heads that tensor parallelism cannot share out."""
    size, shape = case.tensor_parallel_size, case.shape
    heads = shape and shape.kv_heads
    repeats = case.on_megatron or case.by_others
    replicated = bool(heads) and repeats and size % (heads or 1) == 0
    if shape is None or not heads or heads % size == 0 or replicated or shape.latent:
        return None
    return Broken(
        f"tensor parallelism ({size}) must divide the key/value heads ({heads})",
        f"use {listed(divisors(heads))}" + (", or a multiple" if case.on_megatron else ""),
    )


@constraint(
    "tensor-widths",
    source="megatron-core ColumnParallelLinear, divide(ffn_hidden_size, world_size)",
)
def tensor_divides_widths(case: Case) -> Broken | None:
    """Matrix widths that tensor parallelism cannot share out."""
    size, model = case.tensor_parallel_size, case.model
    if model is None:
        return None
    width = model.ffn_hidden_size if model.moe is None else model.moe.expert_ffn_hidden_size
    if width % size == 0 and model.hidden_size % size == 0:
        return None
    return Broken(
        f"tensor parallelism ({size}) must divide the hidden size ({model.hidden_size}) and the "
        f"MLP width ({width})",
        f"use {listed(tuple(n for n in divisors(width) if model.hidden_size % n == 0))}",
    )


@constraint(
    "tensor-in-node",
    source="dsforge: tensor ranks exchange activations four times a layer (Narayanan et al. 2021, "
    "section 3.2, takeaway 1)",
)
def tensor_in_node(case: Case) -> Broken | None:
    """Tensor parallelism across nodes, or across NVLink domains where these are larger."""
    size, cluster = case.tensor_parallel_size, case.cluster
    if cluster is None or size in tensor_sizes(cluster):
        return None
    slots, domain = cluster.gpus_per_node, cluster.nvlink_domain_nodes
    within = f", or be a multiple of it in the NVLink domain of {domain} nodes" * (domain > 1)
    return Broken(
        f"tensor parallelism ({size}) must divide the {slots} GPUs of a node{within}: across "
        f"{'NVLink domains' if domain > 1 else 'nodes'} it runs at the speed of the network",
        f"use {listed(tensor_sizes(cluster))}",
    )


def tensor_sizes(cluster: ClusterSpec) -> tuple[int, ...]:
    """Sizes of tensor parallelism that stay on `intra_node`: in a node, or on whole nodes of it."""
    slots = cluster.gpus_per_node
    return (*divisors(slots), *range(2 * slots, cluster.nvlink_domain_gpus + 1, slots))


@constraint(
    "pipeline-size", source="DeepSpeed runtime/pipe/module.py, PipelineModule._partition_layers"
)
def pipeline_within_layers(case: Case) -> Broken | None:
    """More pipeline stages than layers."""
    stages, layers = case.pipeline_parallel_size, case.shape and case.shape.layers
    if not layers or stages <= layers:
        return None
    return Broken(
        f"pipeline parallelism ({stages} stages) exceeds the {layers} layers of the model",
        f"use {layers} or less",
    )
