"""Rules of arithmetic: products, divisors, and what fits inside a node."""

from __future__ import annotations

from dsforge.constraints.case import Case, Rule, divisors, listed
from dsforge.errors import Problem
from dsforge.layout import layer_split
from dsforge.specs import ClusterSpec


def world_size(case: Case) -> Problem | None:
    """Parallel sizes whose product is not the number of accelerators.

    `DeepSpeedConfig._configure_train_batch_size` and Megatron `validate_args`: every rank has a
    place.
    """
    size = case.layout.world_size
    if size != case.cluster.gpus:
        return Problem(
            "world-size",
            f"`dp x tp x pp x cp` (={size}, {case.layout.label()}) must equal the accelerators "
            f"(={case.cluster.gpus})",
            _other_sizes(case),
        )
    return None


def batch_product(case: Case) -> Problem | None:
    """Batch sizes whose product is not the global batch.

    `DeepSpeedConfig._batch_assertion`; Megatron `num_microbatches_calculator`.
    """
    batch = case.strategy.global_batch_size
    if batch != case.workload.global_batch_size:
        return Problem(
            "batch-product",
            f"`global_batch_size` (={case.workload.global_batch_size}) must equal micro batch "
            f"(={case.strategy.micro_batch_size}) x accumulation "
            f"(={case.strategy.gradient_accumulation_steps}) x dp "
            f"(={case.layout.data_parallel_size})",
            _nearest_batches(case),
        )
    return None


def tensor_divides_heads(case: Case) -> Problem | None:
    """Attention heads that tensor parallelism cannot share out.

    megatron-core `TransformerConfig.__post_init__`; DeepSpeed `AutoTP` shards whole heads.
    """
    tp = case.layout.tensor_parallel_size
    if case.model.attention_heads % tp:
        return Problem(
            "tensor-heads",
            f"`tensor_parallel_size` (={tp}) must divide `attention_heads` "
            f"(={case.model.attention_heads})",
            f"use {listed(divisors(case.model.attention_heads))}",
        )
    return None


def tensor_divides_kv_heads(case: Case) -> Problem | None:
    """Key/value heads that tensor parallelism cannot share out.

    megatron-core `TransformerConfig.__post_init__` (multiple or divisor); DeepSpeed
    `_apply_autotp_partitioning`.
    """
    tp, heads = case.layout.tensor_parallel_size, case.model.kv_heads
    replicated = case.on_megatron and tp % heads == 0
    if heads % tp and not replicated and case.model.mla is None:
        return Problem(
            "tensor-kv-heads",
            f"`tensor_parallel_size` (={tp}) must divide `kv_heads` (={heads})",
            f"use {listed(divisors(heads))}" + (", or a multiple" if case.on_megatron else ""),
        )
    return None


def tensor_divides_widths(case: Case) -> Problem | None:
    """Matrix widths that tensor parallelism cannot share out.

    megatron-core `divide(ffn_hidden_size, world_size)` in `ColumnParallelLinear`.
    """
    tp = case.layout.tensor_parallel_size
    width = (
        case.model.ffn_hidden_size
        if case.model.moe is None
        else case.model.moe.expert_ffn_hidden_size
    )
    if width % tp or case.model.hidden_size % tp:
        return Problem(
            "tensor-widths",
            f"`tensor_parallel_size` (={tp}) must divide `hidden_size` (={case.model.hidden_size}) "
            f"and the MLP width (={width})",
            f"use {listed(tuple(n for n in divisors(width) if case.model.hidden_size % n == 0))}",
        )
    return None


def tensor_in_node(case: Case) -> Problem | None:
    """Tensor parallelism across nodes, or across NVLink domains where these are larger.

    Ours: two all-reduces a layer and direction over the network cost more than they save
    (Narayanan et al. 2021, takeaway 1).
    """
    tp, slots = case.layout.tensor_parallel_size, case.cluster.gpus_per_node
    legal = tensor_sizes(case.cluster)
    if tp not in legal:
        domain = case.cluster.nvlink_domain_nodes
        within = f", or be a multiple of it within the NVLink domain of {domain} nodes"
        return Problem(
            "tensor-in-node",
            f"`tensor_parallel_size` (={tp}) must divide `gpus_per_node` (={slots})"
            f"{within if domain > 1 else ''}: no tensor parallelism across "
            f"{'NVLink domains' if domain > 1 else 'nodes'}",
            f"use {listed(legal)}",
        )
    return None


def tensor_sizes(cluster: ClusterSpec) -> tuple[int, ...]:
    """Sizes of tensor parallelism that stay on `intra_node`: in a node, or on whole nodes of it."""
    slots = cluster.gpus_per_node
    return (*divisors(slots), *range(2 * slots, cluster.nvlink_domain_gpus + 1, slots))


def pipeline_divides_layers(case: Case) -> Problem | None:
    """Layers that pipeline stages cannot share out.

    Megatron `validate_args` and megatron-core `TransformerConfig.__post_init__`: stages of equal
    size, embedding and head as a layer each, or another number at both ends; chunks of equal size.
    DeepSpeed splits as it likes.
    """
    pp, virtual = case.layout.pipeline_parallel_size, case.strategy.virtual_stages
    split = layer_split(case.model.layers, pp)
    if case.on_megatron and (split is None or not split.interleaves(virtual)):
        legal = tuple(
            n
            for n in range(1, case.model.layers + 1)
            if _interleaves(case.model.layers, n, virtual)
        )
        return Problem(
            "pipeline-layers",
            f"`pipeline_parallel_size` (={pp}) with {virtual} virtual stages must share out "
            f"`layers` (={case.model.layers})",
            f"use {listed(legal)}" if legal else "use virtual_stages 1",
        )
    return None


def _interleaves(layers: int, pp: int, virtual: int) -> bool:
    split = layer_split(layers, pp)
    return split is not None and split.interleaves(virtual)


def pipeline_within_layers(case: Case) -> Problem | None:
    """More pipeline stages than layers.

    DeepSpeed `PipelineModule._partition_layers`: a stage needs a layer.
    """
    pp = case.layout.pipeline_parallel_size
    if pp > case.model.layers:
        return Problem(
            "pipeline-size",
            f"`pipeline_parallel_size` (={pp}) must not exceed `layers` (={case.model.layers})",
            f"use {case.model.layers} or less",
        )
    return None


def virtual_stages(case: Case) -> Problem | None:
    """Interleaving where the schedule does not allow it.

    Megatron `validate_args`: interleaving needs a pipeline and micro batches in multiples of
    it; DeepSpeed has none.
    """
    pp, micro = case.layout.pipeline_parallel_size, case.strategy.gradient_accumulation_steps
    if case.strategy.virtual_stages > 1 and (not case.on_megatron or pp == 1 or micro % pp):
        return Problem(
            "virtual-stages",
            f"`virtual_stages` (={case.strategy.virtual_stages}) must have Megatron, a pipeline "
            f"(={pp}) and micro batches (={micro}) in multiples of it",
            "use virtual_stages 1",
        )
    return None


def context_splits_sequence(case: Case) -> Problem | None:
    """A sequence that context ranks cannot share out.

    Megatron `validate_args`: each context rank takes two chunks, for balance under the causal
    mask. Under Ulysses `dsforge train` pads samples.
    """
    cp = case.layout.context_parallel_size
    if case.on_megatron and cp > 1 and case.workload.sequence_length % (2 * cp):
        return Problem(
            "context-sequence",
            f"`sequence_length` (={case.workload.sequence_length}) must be a multiple of 2 x "
            f"`context_parallel_size` (={2 * cp})",
            f"use {case.workload.sequence_length // (2 * cp) * 2 * cp or 2 * cp}",
        )
    return None


def sequence_parallel(case: Case) -> Problem | None:
    """Sequence parallelism where nothing can be split.

    megatron-core `ModelParallelConfig.__post_init__`; the sequence is cut by tp (and cp).
    """
    tp, cp = case.layout.tensor_parallel_size, case.layout.context_parallel_size
    if case.strategy.sequence_parallel and (
        tp == 1 or not case.on_megatron or case.workload.sequence_length % (tp * cp)
    ):
        return Problem(
            "sequence-parallel",
            f"`sequence_parallel` must have Megatron, tp > 1 (={tp}) and a sequence "
            f"(={case.workload.sequence_length}) divisible by tp x cp (={tp * cp})",
            "turn it off, or change the sequence length",
        )
    return None


def expert_parallel(case: Case) -> Problem | None:
    """Experts that expert ranks cannot share out.

    megatron-core `MoELayer.__init__` (experts) and `parallel_state.initialize_model_parallel`
    (ranks).
    """
    ep, dp = case.layout.expert_parallel_size, case.layout.shard_ranks
    experts = case.model.moe.experts if case.model.moe else 1
    if experts % ep or dp % ep:
        return Problem(
            "expert-parallel",
            f"`expert_parallel_size` (={ep}) must divide the experts (={experts}) and dp x cp "
            f"(={dp})",
            f"use {listed(tuple(n for n in divisors(experts) if dp % n == 0))}",
        )
    return None


def _other_sizes(case: Case) -> str:
    """Data-parallel sizes that would fill the cluster, or the model sizes that divide it."""
    ranks, gpus = case.layout.model_ranks, case.cluster.gpus
    if gpus % ranks == 0:
        return f"use dp {gpus // ranks}"
    return f"tp x pp x cp must divide {gpus}: {listed(divisors(gpus))}"


def _nearest_batches(case: Case) -> str:
    """The legal global batches next to the wanted one."""
    unit = case.strategy.micro_batch_size * case.layout.data_parallel_size
    below = case.workload.global_batch_size // unit * unit
    if not below:
        return f"the nearest legal global batch is {unit}"
    return f"the nearest legal global batches are {listed((below, below + unit))}"


RULES: tuple[Rule, ...] = (
    world_size,
    batch_product,
    tensor_divides_heads,
    tensor_divides_kv_heads,
    tensor_divides_widths,
    tensor_in_node,
    pipeline_divides_layers,
    pipeline_within_layers,
    virtual_stages,
    context_splits_sequence,
    sequence_parallel,
    expert_parallel,
)
