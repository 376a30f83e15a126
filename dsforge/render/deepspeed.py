"""Priced strategy -> context of the ZeRO template that shows it.

There is one template per way of sharding, so that `templates/deepspeed/zero3.json.j2` reads like
the file it makes; what they share stands in includes. Every number comes from the plan. Keys are
those that DeepSpeed 0.19 knows: unknown ones inside a block are refused by it, unknown top-level
ones are silently ignored, which is why a test compares ours with its source.

No scheduler block: the training loop owns the schedule. No activation_checkpointing block: the loop
turns checkpointing on in the model (`gradient_checkpointing` in train.yaml).
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.constraints import Case, broken
from dsforge.errors import RenderError
from dsforge.estimate.cut import stages_of
from dsforge.plan import Plan, Priced
from dsforge.specs import ClusterSpec, Workload
from dsforge.strategy import AioSettings, Buckets, Offload, Strategy

# Adam's second moment forgets over 1/(1-beta2) steps: 0.95 is what large language models are
# trained with since GPT-3 (Brown et al. 2020, appendix B); Lion's pair is its paper's default.
ADAM_BETAS = (0.9, 0.95)
LION_BETAS = (0.9, 0.99)
ADAM_EPSILON = 1e-8
MOMENTUM = {"sgd": 0.9, "muon": 0.95}


class LossScale(NamedTuple):
    """The dynamic scaler of fp16: starts at 2^16 and halves after two overflows in a row."""

    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    min_loss_scale: int = 1


class OptimizerBlock(NamedTuple):
    """`optimizer.type` and `optimizer.params`; a value that the optimizer lacks is none."""

    type: str
    lr: float
    weight_decay: float
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    torch_adam: bool = False
    untested: bool = False


class DiskBuffers(NamedTuple):
    """Where a block lives on the disk and what stages it; sizes in elements."""

    path: str
    buffers: int
    size: int | None = None
    max_in_cpu: int | None = None


class OffloadBlock(NamedTuple):
    """One of the offload blocks; `disk` where its device is nvme."""

    device: Offload
    pin_memory: bool
    disk: DiskBuffers | None = None
    ratio: float | None = None  # of the optimizer, what is offloaded; none: all


class Job(NamedTuple):
    """What every ds_config says, whatever is sharded."""

    train_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    bf16: bool
    bf16_states: bool  # master weights, gradients and moments in bf16, too
    loss_scale: LossScale | None
    optimizer: OptimizerBlock
    gradient_clipping: float
    reduce_scatter: bool  # Muon needs whole gradients; the engine refuses both together
    tensor_parallel_size: int | None
    sequence_parallel_size: int | None
    pipeline_stages: int | None
    pipeline_layers: tuple[int, ...]  # of each stage: the cut that the prediction prices
    sums_in_fp32: bool  # gradients of micro batches, under bf16 or fp16
    sends_fp32: bool  # gradients to other ranks


class Shards(NamedTuple):
    """How ranks share parameters under ZeRO-3, ZeRO++ included."""

    hpz_partition_size: int | None  # none: no second copy of the weights
    quantized_weights: bool
    quantized_gradients: bool


class Zero0Context(NamedTuple):
    """Fields of zero0.json.j2: plain data parallelism."""

    job: Job


class ZeroContext(NamedTuple):
    """Fields of zero1.json.j2 and zero2.json.j2: everything on the device."""

    job: Job
    buckets: Buckets


class Zero3Context(NamedTuple):
    """Fields of zero3.json.j2: everything on the device."""

    job: Job
    buckets: Buckets
    shards: Shards


class ZeroOffloadContext(NamedTuple):
    """Fields of zero1_offload.json.j2 and zero2_offload.json.j2."""

    job: Job
    buckets: Buckets
    offload_optimizer: OffloadBlock


class Zero3OffloadContext(NamedTuple):
    """Fields of zero3_offload.json.j2: optimizer, parameters or both on the host."""

    job: Job
    buckets: Buckets
    shards: Shards
    offload_optimizer: OffloadBlock | None
    offload_parameters: OffloadBlock | None


class NvmeContext(NamedTuple):
    """Fields of zero3_nvme.json.j2: at least one block on the disk."""

    job: Job
    buckets: Buckets
    shards: Shards
    offload_optimizer: OffloadBlock | None
    offload_parameters: OffloadBlock | None
    aio: AioSettings


Context = (
    Zero0Context
    | ZeroContext
    | Zero3Context
    | ZeroOffloadContext
    | Zero3OffloadContext
    | NvmeContext
)

CONTEXTS: dict[str, type[Context]] = {
    "deepspeed/zero0.json.j2": Zero0Context,
    "deepspeed/zero1.json.j2": ZeroContext,
    "deepspeed/zero2.json.j2": ZeroContext,
    "deepspeed/zero3.json.j2": Zero3Context,
    "deepspeed/zero1_offload.json.j2": ZeroOffloadContext,
    "deepspeed/zero2_offload.json.j2": ZeroOffloadContext,
    "deepspeed/zero3_offload.json.j2": Zero3OffloadContext,
    "deepspeed/zero3_nvme.json.j2": NvmeContext,
}


def zero_template(strategy: Strategy) -> str:
    """Name of the template that shows how this strategy shards and offloads.

    Raises RenderError where the stage cannot offload that: DeepSpeed would accept the file without
    doing it.
    """
    stage, moved = strategy.zero_stage, {strategy.offload_optimizer, strategy.offload_parameters}
    sharded = Case(
        zero_stage=stage,
        offload_optimizer=strategy.offload_optimizer,
        offload_parameters=strategy.offload_parameters,
    )
    for problem in broken(sharded):
        raise RenderError(problem.message, problem.hint)
    suffix = "_nvme" if "nvme" in moved else "_offload" if "cpu" in moved else ""
    return f"deepspeed/zero{stage}{suffix}.json.j2"


def zero_context(plan: Plan, priced: Priced) -> Context:
    """Context of `zero_template(priced.strategy)`."""
    job, buckets = _job(plan, priced.strategy), priced.buckets
    kind = CONTEXTS[zero_template(priced.strategy)]
    if kind is Zero0Context:
        return Zero0Context(job)
    if kind is ZeroContext:
        return ZeroContext(job, buckets)
    shards = _shards(priced.strategy)
    if kind is Zero3Context:
        return Zero3Context(job, buckets, shards)
    optimizer, parameters = _offloaded(plan.cluster, priced)
    if kind is ZeroOffloadContext and optimizer is not None:
        return ZeroOffloadContext(job, buckets, optimizer)
    if priced.aio is None:
        return Zero3OffloadContext(job, buckets, shards, optimizer, parameters)
    return NvmeContext(job, buckets, shards, optimizer, parameters, priced.aio)


def _shards(strategy: Strategy) -> Shards:
    """What ZeRO++ does, as it is priced."""
    size, run = strategy.hpz_partition_size, strategy.runs_as
    return Shards(size if size > 1 else None, run.quantized_weights, run.quantized_gradients)


def _job(plan: Plan, strategy: Strategy) -> Job:
    """The part that does not depend on what is sharded."""
    tensor = strategy.layout.tensor_parallel_size
    stages = strategy.layout.pipeline_parallel_size
    cut = stages_of(plan.model, strategy)
    context = strategy.layout.context_parallel_size
    return Job(
        train_batch_size=strategy.global_batch_size,
        micro_batch_size=strategy.micro_batch_size,
        gradient_accumulation_steps=strategy.gradient_accumulation_steps,
        bf16=plan.workload.precision in ("bf16", "fp8"),
        bf16_states=not strategy.runs_as.master_weights,
        loss_scale=LossScale() if plan.workload.precision == "fp16" else None,
        optimizer=_optimizer(plan.workload, plan.cluster, sharded=strategy.zero_stage > 0),
        gradient_clipping=plan.workload.gradient_clipping,
        reduce_scatter=plan.workload.optimizer != "muon",
        tensor_parallel_size=tensor if tensor > 1 else None,
        sequence_parallel_size=context if context > 1 else None,
        pipeline_stages=stages if stages > 1 else None,
        pipeline_layers=tuple(stage.layers for stage in cut),
        sums_in_fp32=strategy.runs_as.gradients == "fp32" and plan.workload.precision != "fp32",
        sends_fp32=strategy.runs_as.reduced == "fp32" and plan.workload.precision != "fp32",
    )


def _optimizer(workload: Workload, cluster: ClusterSpec, *, sharded: bool) -> OptimizerBlock:
    """The optimizer as DeepSpeed names it (runtime/engine.py, `_configure_basic_optimizer`).

    On a GPU cluster Adam is DeepSpeed's own: fused, or its C++ version where it runs on the host.
    CPU ranks take torch's, which needs no compiler. Names that are not DeepSpeed's are looked up in
    torch.optim; ZeRO calls those untested and wants that said.
    """
    lr, decay = workload.learning_rate, workload.weight_decay
    match workload.optimizer:
        case "adamw":
            torch_adam = cluster.gpu.is_cpu
            return OptimizerBlock("AdamW", lr, decay, ADAM_BETAS, ADAM_EPSILON, None, torch_adam)
        case "adamw_8bit" | "paged_adamw_8bit" | "paged_adamw_32bit":
            # Its values; `dsforge train` makes the optimizer of bitsandbytes (`optimizer_states`).
            return OptimizerBlock(
                "AdamW", lr, decay, ADAM_BETAS, ADAM_EPSILON, torch_adam=True, untested=sharded
            )
        case "lion":
            return OptimizerBlock("Lion", lr, decay, LION_BETAS)
        case "muon":
            return OptimizerBlock("Muon", lr, decay, ADAM_BETAS, ADAM_EPSILON, MOMENTUM["muon"])
        case "sgd":
            return OptimizerBlock("SGD", lr, decay, momentum=MOMENTUM["sgd"], untested=sharded)
        case "adafactor":
            return OptimizerBlock("Adafactor", lr, decay, untested=sharded)


def _offloaded(
    cluster: ClusterSpec, priced: Priced
) -> tuple[OffloadBlock | None, OffloadBlock | None]:
    """The blocks of the optimizer and of the parameters."""
    optimizer, parameters = priced.strategy.offload_optimizer, priced.strategy.offload_parameters
    state_disk, parameter_disk = _disk(cluster, priced)
    ratio = priced.strategy.runs_as.offload_ratio
    first = _offload(cluster, optimizer, state_disk)
    if first is not None and ratio < 1:
        first = first._replace(ratio=ratio)
    return first, _offload(cluster, parameters, parameter_disk)


def _disk(cluster: ClusterSpec, priced: Priced) -> tuple[DiskBuffers | None, DiskBuffers | None]:
    """What optimizer and parameters would use on the disk. Raises RenderError without one."""
    moved = {priced.strategy.offload_optimizer, priced.strategy.offload_parameters}
    if "nvme" not in moved:
        return None, None
    nvme, aio = cluster.nvme, priced.aio
    if nvme is None or aio is None:
        raise RenderError("the plan offloads to NVMe but describes no disk", "add `nvme` and plan")
    return (
        DiskBuffers(nvme.path, aio.optimizer_buffer_count),
        DiskBuffers(
            nvme.path, aio.parameter_buffer_count, aio.parameter_buffer_size, aio.max_in_cpu
        ),
    )


def _offload(
    cluster: ClusterSpec, device: Offload, disk: DiskBuffers | None
) -> OffloadBlock | None:
    """An offload block. CPU ranks have no transfer to pin memory for."""
    if device == "none":
        return None
    return OffloadBlock(device, not cluster.gpu.is_cpu, disk if device == "nvme" else None)
