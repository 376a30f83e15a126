"""Constraints of DeepSpeed: which of its features work together, and what it does not have."""

from __future__ import annotations

from dsforge.constraints.case import Broken, Case, constraint
from dsforge.constraints.words import missing
from dsforge.zero_stages import FULLY_SHARDED, GRADIENTS_SHARDED

CPU_OPTIMIZERS = ("adamw", "lion")  # those that the planner names
HAVE_CPU_VERSION = ("adam", "adagrad", *CPU_OPTIMIZERS)
OFFLOAD_CONFIG = "DeepSpeed runtime/zero/offload_config.py"


def _below_stage_3(case: Case) -> bool:
    """Whether parameters are known to be whole on each rank."""
    return case.zero_stage is not None and case.zero_stage != FULLY_SHARDED


@constraint("deepspeed-axes", source="dsforge: expert parallelism is not generated for DeepSpeed")
def no_expert_parallelism(case: Case) -> Broken | None:
    """Expert parallelism with DeepSpeed."""
    size = case.expert_parallel_size
    if case.on_megatron or size == 1:
        return None
    return Broken(
        f"expert parallelism ({size}) is not available with DeepSpeed",
        "use 1, or --for megatron",
    )


@constraint(
    "zero-pipeline", source="DeepSpeed runtime/pipe/engine.py, PipelineEngine.__init__ (assertion)"
)
def zero_with_pipeline(case: Case) -> Broken | None:
    """ZeRO stage 2 or 3 with pipeline parallelism."""
    stages, zero_stage = case.pipeline_parallel_size, case.zero_stage or 0
    if not case.on_deepspeed or stages == 1 or zero_stage < GRADIENTS_SHARDED:
        return None
    return Broken(
        f"ZeRO stage {zero_stage} cannot be combined with pipeline parallelism ({stages} stages)",
        "use ZeRO stage 0 or 1, or no pipeline",
    )


@constraint(
    "zero-tensor",
    source="DeepSpeed runtime/engine.py, _configure_tensor_parallel_states: an assertion in "
    "earlier releases (deepspeedai/DeepSpeed#7389); 0.19.8 accepts it, not tested here",
    ours=True,
)
def zero_with_tensor(case: Case) -> Broken | None:
    """ZeRO stage 3 with tensor parallelism (AutoTP)."""
    size = case.tensor_parallel_size
    if not case.on_deepspeed or size == 1 or case.zero_stage != FULLY_SHARDED:
        return None
    return Broken(
        f"ZeRO stage 3 cannot be combined with tensor parallelism ({size})",
        "use ZeRO stage 0, 1 or 2, or no tensor parallelism",
    )


@constraint(
    "deepspeed-3d",
    source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py takes whole Hugging Face models; "
    "runtime/engine.py, _configure_tensor_parallel_states replaces its groups",
    ours=True,
)
def sequence_with_split(case: Case) -> Broken | None:
    """Sequence parallelism (Ulysses) with tensor or pipeline parallelism."""
    sizes = {"tensor": case.tensor_parallel_size, "pipeline": case.pipeline_parallel_size}
    split = [f"{name} ({size})" for name, size in sizes.items() if size > 1]
    if case.on_megatron or case.context_parallel_size == 1 or not split:
        return None
    return Broken(
        f"DeepSpeed cannot combine {' and '.join(split)} parallelism with sequence parallelism "
        f"({case.context_parallel_size})",
        "use one or the other, or Megatron-LM",
    )


@constraint(
    "offload-parameters",
    source=OFFLOAD_CONFIG + ", DeepSpeedZeroOffloadParamConfig: valid with stage 3; lower stages "
    "ignore it silently",
)
def offload_parameters_stage(case: Case) -> Broken | None:
    """Parameter offload below ZeRO stage 3."""
    if case.on_megatron or not case.offloads_parameters or not _below_stage_3(case):
        return None
    return Broken(
        f"parameter offload to {case.offload_parameters} requires ZeRO stage 3 "
        f"(got {case.zero_stage})",
        "use ZeRO stage 3, or keep parameters on the device",
    )


@constraint(
    "offload-optimizer",
    source=OFFLOAD_CONFIG + ", DeepSpeedZeroOffloadOptimizerConfig: valid with stage 1, 2 and 3",
)
def offload_optimizer_stage(case: Case) -> Broken | None:
    """Optimizer offload without ZeRO."""
    if case.on_megatron or not case.offloads_optimizer or case.zero_stage != 0:
        return None
    return Broken(
        f"optimizer offload to {case.offload_optimizer} requires ZeRO stage 1, 2 or 3 (got 0)",
        "use ZeRO stage 2, or keep the optimizer on the device",
    )


@constraint(
    "offload-ratio",
    source="DeepSpeed runtime/zero/config.py, DeepSpeedZeroConfig.offload_ratio_check",
)
def offload_ratio_stage(case: Case) -> Broken | None:
    """Partial optimizer offload below ZeRO stage 3."""
    said = dict(case.words).get("offload_ratio")
    if isinstance(said, (int, float)) and said < 1 and not missing(case, "offload_ratio"):
        case = case._replace(offload_ratio=said)
        if case.offload_optimizer not in (None, "cpu"):
            return Broken(
                f"a partial optimizer offload (ratio {said:g}) requires offload_optimizer cpu (got "
                f"{case.offload_optimizer})",
                "offload the optimizer to the CPU, or leave offload_ratio out",
            )
    if case.offload_ratio >= 1 or not _below_stage_3(case):
        return None
    return Broken(
        f"a partial optimizer offload (ratio {case.offload_ratio:g}) requires ZeRO stage 3 "
        f"(got {case.zero_stage})",
        "use ZeRO stage 3, or ratio 1",
    )


@constraint(
    "offload-kind",
    source="DeepSpeed runtime/engine.py, DeepSpeedEngine._configure_optimizer "
    "(zero_force_ds_cpu_optimizer): DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion",
)
def offload_optimizer_kind(case: Case) -> Broken | None:
    """An offloaded optimizer without a CPU version."""
    name = case.optimizer
    if name is None or name in HAVE_CPU_VERSION or case.any_cpu_optimizer:
        return None
    if not case.on_deepspeed or not case.offloads_optimizer:
        return None  # FSDP steps on the CPU with torch's own optimizers
    return Broken(
        f"optimizer {name[:60]} has no CPU version and cannot be offloaded",
        f"use {' or '.join(CPU_OPTIMIZERS)}, or keep the optimizer on the device",
    )


@constraint(
    "offload-pipeline",
    source="DeepSpeed runtime/pipe/engine.py, PipelineEngine: no ZeRO-Offload of its gradients",
)
def offload_with_pipeline(case: Case) -> Broken | None:
    """Optimizer offload with pipeline parallelism."""
    stages = case.pipeline_parallel_size
    if case.on_megatron or stages == 1 or not case.offloads_optimizer:
        return None
    return Broken(
        f"optimizer offload to {case.offload_optimizer} cannot be combined with pipeline "
        f"parallelism ({stages} stages)",
        "keep the optimizer on the device, or use no pipeline",
    )


@constraint("nvme-stage", source="DeepSpeed runtime/zero/stage3.py, _configure_tensor_swapping")
def nvme_stage(case: Case) -> Broken | None:
    """NVMe offload below ZeRO stage 3."""
    if not case.swaps or not _below_stage_3(case):
        return None
    return Broken(
        f"offload to NVMe requires ZeRO stage 3 (got {case.zero_stage})",
        "use ZeRO stage 3, or offload to cpu",
    )


@constraint(
    "nvme-disk",
    source="DeepSpeed runtime/swap_tensor/partitioned_param_swapper.py, "
    "AsyncPartitionedParameterSwapper: `nvme_path` is mandatory",
)
def nvme_disk(case: Case) -> Broken | None:
    """NVMe offload on a cluster that names no disk."""
    if case.cluster is None or case.cluster.nvme is not None or not case.swaps:
        return None
    return Broken(
        "offload to NVMe requires a disk, and the cluster file has none",
        "name its folder: `--nvme-path`, or `nvme` in the cluster file",
    )


@constraint(
    "grad-accum-dtype",
    source="DeepSpeed runtime/engine.py, DeepSpeedEngine._do_optimizer_sanity_check",
)
def gradient_type_without_zero(case: Case) -> Broken | None:
    """Gradients accumulated in another type than the precision without ZeRO."""
    kind, own = case.gradient_type, case.precision
    if not case.on_deepspeed or case.zero_stage != 0 or None in (kind, own) or kind == own:
        return None
    return Broken(
        f"`grad_accum_dtype` {kind} with {own} requires ZeRO stage 1, 2 or 3 (got 0)",
        f"use ZeRO stage 1, or accumulate in {own}",
    )


@constraint(
    "recompute",
    source="transformers, gradient_checkpointing_enable checkpoints whole layers; only "
    "Megatron-LM has selective recomputation",
    ours=True,
)
def recompute_kind(case: Case) -> Broken | None:
    """Selective recomputation with DeepSpeed."""
    others = case.trainer not in (None, "deepspeed")  # torch's policies choose operations
    if case.on_megatron or others or case.recompute != "selective":
        return None
    return Broken("recompute=selective requires Megatron-LM", "use none or full, or --for megatron")


@constraint(
    "bf16-states-stage",
    source="DeepSpeed runtime/config.py, _do_error_check: only ZeRO's optimizers have them",
)
def bf16_states_without_zero(case: Case) -> Broken | None:
    """Master weights and moments in bf16 without ZeRO."""
    if not case.on_deepspeed or not case.bf16_states or case.zero_stage != 0:
        return None
    return Broken(
        "bf16_states requires ZeRO stage 1, 2 or 3 (got 0)",
        "use ZeRO stage 1, or leave out bf16_states",
    )


@constraint(
    "bf16-states-sums",
    source="DeepSpeed runtime/engine.py, _do_optimizer_sanity_check: BF16_Optimizer, which has "
    "float32 states",
)
def bf16_states_with_sums(case: Case) -> Broken | None:
    """States in bf16 where float32 sums under ZeRO stage 1 take another optimizer."""
    if not case.on_deepspeed or not case.bf16_states or case.offloads_optimizer:
        return None
    if case.zero_stage != 1 or case.gradient_type != "fp32":
        return None
    return Broken(
        "bf16_states cannot be combined with gradient sums in fp32 under ZeRO stage 1",
        "sum gradients in bf16, or use ZeRO stage 2",
    )


@constraint(
    "bf16-states-offload",
    source="DeepSpeed runtime/zero/stage3.py and stage_1_and_2.py, _enforce_cpu_offload: "
    "DeepSpeedCPUAdam with fp32_optimizer_states=False",
)
def bf16_states_offloaded(case: Case) -> Broken | None:
    """Offloaded states in bf16 under another optimizer than DeepSpeed's Adam for the CPU."""
    if not case.on_deepspeed or not case.bf16_states or not case.offloads_optimizer:
        return None
    on_cpu = case.cluster is not None and case.cluster.gpu.is_cpu
    if case.optimizer in (None, "adam", "adamw") and not on_cpu:
        return None
    got = "CPU ranks, which take torch's" if on_cpu else f"optimizer {str(case.optimizer)[:60]}"
    return Broken(
        f"bf16_states with an offloaded optimizer requires DeepSpeed's CPU Adam (got {got})",
        "use adamw on a GPU cluster, or keep the optimizer on the device",
    )


@constraint(
    "hpz-stage",
    source="DeepSpeed runtime/zero/partition_parameters.py, _partition_param_sec: stage 3 only",
)
def hpz_stage(case: Case) -> Broken | None:
    """A secondary copy of the weights (ZeRO++ hpZ) without ZeRO stage 3."""
    if case.hpz_partition_size == 1 or not (case.on_megatron or _below_stage_3(case)):
        return None
    if missing(case, "hpz_partition_size"):  # at any stage
        return None
    got = "Megatron-LM" if case.on_megatron else str(case.zero_stage)
    return Broken(
        f"an hpZ partition size of {case.hpz_partition_size} requires ZeRO stage 3 (got {got})",
        "use ZeRO stage 3, or no hpZ",
    )


@constraint(
    "hpz-partition",
    source="DeepSpeed utils/groups.py, _create_zero_param_parallel_group: groups of equal size",
)
def hpz_divides_ranks(case: Case) -> Broken | None:
    """An hpZ partition size that does not divide the data-parallel ranks."""
    size, ranks = case.hpz_partition_size, case.data_parallel_size
    if ranks is None or ranks % size == 0:
        return None
    return Broken(
        f"the hpZ partition size ({size}) must divide the data-parallel size ({ranks})",
        "use the GPUs of one node, or no hpZ",
    )


@constraint(
    "hpz-with-offload",
    source="dsforge: a secondary copy in RAM gains nothing; deepspeedai/DeepSpeed#6889 reports "
    "that it breaks",
)
def hpz_with_offload(case: Case) -> Broken | None:
    """A secondary copy of the weights (ZeRO++ hpZ) with states that are offloaded."""
    placed = case.offload_parameters if case.offloads_parameters else None
    if case.hpz_partition_size == 1 or not (placed or case.offload_optimizer == "nvme"):
        return None
    what = f"parameter offload to {placed}" if placed else "optimizer offload to nvme"
    return Broken(
        f"an hpZ partition size of {case.hpz_partition_size} cannot be combined with {what}",
        "use one of them",
    )


@constraint(
    "sequence-hpz",
    source="dsforge: DeepSpeed makes the groups of hpZ without those of the sequence; not tested "
    "together",
)
def hpz_with_sequence(case: Case) -> Broken | None:
    """A secondary copy of the weights (ZeRO++ hpZ) with sequence parallelism."""
    size, copies = case.context_parallel_size, case.hpz_partition_size
    if case.on_megatron or size == 1 or copies == 1:
        return None
    return Broken(
        f"an hpZ partition size of {copies} cannot be combined with sequence parallelism ({size})",
        "use no hpZ",
    )
