"""Rules of the engines: which of their features work together."""

from __future__ import annotations

from dsforge.errors import Problem
from dsforge.rules.case import Case, Rule

CPU_OPTIMIZERS = ("adamw", "lion")


def deepspeed_axes(case: Case) -> Problem | None:
    """Deepspeed axes: ours: Ulysses and expert parallelism for DeepSpeed are not generated yet."""
    layout = case.layout
    if not (
        not case.on_megatron
        and (layout.context_parallel_size > 1 or layout.expert_parallel_size > 1)
    ):
        return None
    return Problem(
        "deepspeed-axes",
        f"`context_parallel_size` (={layout.context_parallel_size}) and `expert_parallel_size` (={layout.expert_parallel_size}) must be 1 with DeepSpeed",
        "use 1, or --for megatron",
    )


def zero_with_pipeline(case: Case) -> Problem | None:
    """Zero with pipeline.

    DeepSpeed `runtime/pipe/engine.py`, `PipelineEngine.__init__`: ZeRO-2 and ZeRO-3 are
    incompatible with it.
    """
    pp = case.layout.pipeline_parallel_size
    if not (not case.on_megatron and pp > 1 and case.strategy.zero_stage >= 2):
        return None
    return Problem(
        "zero-pipeline",
        f"`zero_stage` (={case.strategy.zero_stage}) must be 0 or 1 with pipeline parallelism (={pp})",
        "use zero_stage 1, or pipeline_parallel_size 1",
    )


def zero_with_tensor(case: Case) -> Problem | None:
    """Zero with tensor.

    DeepSpeed `DeepSpeedEngine._configure_tensor_parallel`: AutoTP training knows ZeRO 0, 1 and
    2.
    """
    tp = case.layout.tensor_parallel_size
    if not (not case.on_megatron and tp > 1 and case.strategy.zero_stage == 3):
        return None
    return Problem(
        "zero-tensor",
        f"`zero_stage` (=3) must be 0, 1 or 2 with tensor parallelism (={tp})",
        "use zero_stage 2, or tensor_parallel_size 1",
    )


def tensor_with_pipeline(case: Case) -> Problem | None:
    """Tensor with pipeline.

    DeepSpeed `PipelineModule` takes layers, AutoTP takes Hugging Face models: not both. Use
    Megatron.
    """
    layout = case.layout
    if not (
        not case.on_megatron
        and layout.tensor_parallel_size > 1
        and layout.pipeline_parallel_size > 1
    ):
        return None
    return Problem(
        "deepspeed-3d",
        f"tensor (={layout.tensor_parallel_size}) and pipeline parallelism (={layout.pipeline_parallel_size}) must not meet in DeepSpeed",
        "use one of them, or --for megatron",
    )


def zero_of_megatron(case: Case) -> Problem | None:
    """Zero of megatron: Megatron has no ZeRO; 1 stands for `--use-distributed-optimizer`."""
    if not (case.on_megatron and case.strategy.zero_stage > 1):
        return None
    return Problem(
        "megatron-zero",
        f"`zero_stage` (={case.strategy.zero_stage}) must be 0 or 1 with Megatron",
        "1 is its distributed optimizer",
    )


def offload_of_megatron(case: Case) -> Problem | None:
    """Offload of megatron.

    Ours: Megatron has no parameter offload, and its optimizer offload is not generated yet.
    """
    if not (
        case.on_megatron
        and (
            case.strategy.offload_parameters != "none" or case.strategy.offload_optimizer != "none"
        )
    ):
        return None
    return Problem(
        "megatron-offload",
        f"offload (optimizer={case.strategy.offload_optimizer}, parameters={case.strategy.offload_parameters}) must be none with Megatron",
        "use --for deepspeed",
    )


def offload_parameters_stage(case: Case) -> Problem | None:
    """Offload parameters stage.

    DeepSpeed `DeepSpeedZeroConfig.offload_param`: valid with stage 3 only; lower stages ignore
    it in silence.
    """
    if not (case.strategy.offload_parameters != "none" and case.strategy.zero_stage != 3):
        return None
    return Problem(
        "offload-parameters",
        f"`offload_parameters` (={case.strategy.offload_parameters}) must have `zero_stage` 3 (={case.strategy.zero_stage})",
        "use zero_stage 3",
    )


def offload_optimizer_stage(case: Case) -> Problem | None:
    """Offload optimizer stage.

    DeepSpeed `DeepSpeedZeroConfig.offload_optimizer`: valid with stage 1, 2 and 3.
    """
    if not (case.strategy.offload_optimizer != "none" and case.strategy.zero_stage == 0):
        return None
    return Problem(
        "offload-optimizer",
        f"`offload_optimizer` (={case.strategy.offload_optimizer}) must have `zero_stage` 1, 2 or 3 (=0)",
        "use zero_stage 2",
    )


def offload_optimizer_kind(case: Case) -> Problem | None:
    """Offload optimizer kind.

    DeepSpeed `DeepSpeedEngine._configure_optimizer`: offload wants DeepSpeedCPUAdam or
    DeepSpeedCPULion.
    """
    if not (
        case.strategy.offload_optimizer != "none" and case.workload.optimizer not in CPU_OPTIMIZERS
    ):
        return None
    return Problem(
        "offload-kind",
        f"`optimizer` (={case.workload.optimizer}) must be one that runs on the CPU, as it is offloaded",
        f"use {' or '.join(CPU_OPTIMIZERS)}",
    )


def offload_pipeline(case: Case) -> Problem | None:
    """Offload pipeline.

    DeepSpeed `PipelineEngine`: ZeRO-Offload of its stage-1 gradients is not supported.
    """
    pp = case.layout.pipeline_parallel_size
    if not (case.strategy.offload_optimizer != "none" and pp > 1):
        return None
    return Problem(
        "offload-pipeline",
        f"`offload_optimizer` (={case.strategy.offload_optimizer}) must be none with pipeline parallelism (={pp})",
        "use pipeline_parallel_size 1",
    )


def nvme_stage(case: Case) -> Problem | None:
    """Nvme stage.

    DeepSpeed `stage3.py`, `_configure_tensor_swapping`: only stage 3 swaps to NVMe.
    """
    if not (
        "nvme" in (case.strategy.offload_optimizer, case.strategy.offload_parameters)
        and case.strategy.zero_stage != 3
    ):
        return None
    return Problem(
        "nvme-stage",
        f"offload to nvme must have `zero_stage` 3 (={case.strategy.zero_stage})",
        "use zero_stage 3, or cpu",
    )


def nvme_disk(case: Case) -> Problem | None:
    """Nvme disk: `nvme_path` is mandatory: DeepSpeed `AsyncPartitionedParameterSwapper`."""
    if not (
        "nvme" in (case.strategy.offload_optimizer, case.strategy.offload_parameters)
        and case.cluster.nvme is None
    ):
        return None
    return Problem(
        "nvme-disk",
        "offload to nvme must have a disk: the cluster names no `nvme`",
        "add nvme: path, size_gib and bandwidth to the cluster",
    )


def recompute_kind(case: Case) -> Problem | None:
    """Recompute kind.

    Hugging Face checkpoints whole layers (`gradient_checkpointing_enable`); only Megatron has
    selective.
    """
    if not (not case.on_megatron and case.strategy.recompute == "selective"):
        return None
    return Problem(
        "recompute",
        "`recompute` (=selective) must be none or full with DeepSpeed",
        "use full, or --for megatron",
    )


RULES: tuple[Rule, ...] = (
    deepspeed_axes,
    zero_with_pipeline,
    zero_with_tensor,
    tensor_with_pipeline,
    zero_of_megatron,
    offload_of_megatron,
    offload_parameters_stage,
    offload_optimizer_stage,
    offload_optimizer_kind,
    offload_pipeline,
    nvme_stage,
    nvme_disk,
    recompute_kind,
)
