"""Rules of the engines: which of their features work together."""

from __future__ import annotations

from dsforge.constraints.case import Case, Rule
from dsforge.errors import Problem
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED

CPU_OPTIMIZERS = ("adamw", "lion")
# `model_type`s that `dsforge train` cuts into stages, and those whose tensor-parallel plan in
# transformers 5 has only styles that DeepSpeed 0.19 knows (`tp_plan_converter.py`).
PIPELINE_KINDS = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3")
TENSOR_KINDS = (
    *("cohere", "gemma", "gemma2", "gpt_neox", "granite", "llama", "mistral", "nemotron"),
    *("olmo", "phi", "qwen2", "qwen3", "smollm3", "starcoder2"),
)


def deepspeed_axes(case: Case) -> Problem | None:
    """Expert parallelism asked of DeepSpeed.

    Ours: it is not generated yet.
    """
    size = case.layout.expert_parallel_size
    if case.on_megatron or size == 1:
        return None
    message = f"with DeepSpeed `expert_parallel_size` must be 1 (got {size})"
    return Problem("deepspeed-axes", message, "use 1, or --for megatron")


def zero_with_pipeline(case: Case) -> Problem | None:
    """ZeRO 2 or 3 under the pipeline engine.

    DeepSpeed `runtime/pipe/engine.py`, `PipelineEngine.__init__`: ZeRO-2 and ZeRO-3 are
    incompatible with it.
    """
    pp = case.layout.pipeline_parallel_size
    if not case.on_megatron and pp > 1 and case.strategy.zero_stage >= GRADIENTS_SHARDED:
        return Problem(
            "zero-pipeline",
            f"`zero_stage` (={case.strategy.zero_stage}) must be 0 or 1 with pipeline parallelism "
            f"(={pp})",
            "use zero_stage 1, or pipeline_parallel_size 1",
        )
    return None


def zero_with_tensor(case: Case) -> Problem | None:
    """ZeRO 3 under AutoTP.

    DeepSpeed `DeepSpeedEngine._configure_tensor_parallel`: AutoTP training knows ZeRO 0, 1 and
    2.
    """
    tp = case.layout.tensor_parallel_size
    if not case.on_megatron and tp > 1 and case.strategy.zero_stage == FULLY_SHARDED:
        return Problem(
            "zero-tensor",
            f"`zero_stage` (=3) must be 0, 1 or 2 with tensor parallelism (={tp})",
            "use zero_stage 2, or tensor_parallel_size 1",
        )
    return None


def one_way_to_split(case: Case) -> Problem | None:
    """Two of tensor, pipeline and context parallelism in DeepSpeed.

    DeepSpeed `PipelineModule` takes layers, AutoTP and Ulysses take Hugging Face models: not both.
    """
    layout = case.layout
    sizes = {
        "tensor": layout.tensor_parallel_size,
        "pipeline": layout.pipeline_parallel_size,
        "context": layout.context_parallel_size,
    }
    split = [f"{name} (={size})" for name, size in sizes.items() if size > 1]
    if case.on_megatron or len(split) <= 1:
        return None
    return Problem(
        "deepspeed-3d",
        f"{' and '.join(split)} parallelism must not be combined in DeepSpeed",
        "use one of them, or --for megatron",
    )


def kind_of_pipeline(case: Case) -> Problem | None:
    """A kind of model that is not cut into DeepSpeed's stages. A size without a kind is a Llama.

    Ours: each kind is tested against one rank, as stages must do what its own forward does.
    """
    kind, pp = case.model.model_type, case.layout.pipeline_parallel_size
    if not case.on_megatron and pp > 1 and kind not in (None, *PIPELINE_KINDS):
        return Problem(
            "pipeline-model",
            f"models of type {kind} must not be cut into pipeline stages (={pp}) with DeepSpeed",
            "use ZeRO, or --for megatron",
        )
    return None


def kind_of_tensor(case: Case) -> Problem | None:
    """A kind of model that AutoTP does not shard. A size without a kind is a Llama.

    DeepSpeed `TPPlanConverter.convert` refuses plans with styles that it does not know.
    """
    kind, tp = case.model.model_type, case.layout.tensor_parallel_size
    if not case.on_megatron and tp > 1 and kind not in (None, *TENSOR_KINDS):
        return Problem(
            "tensor-model",
            f"models of type {kind} must not be tensor parallel (={tp}) with DeepSpeed",
            "use ZeRO, or --for megatron",
        )
    return None


def zero_of_megatron(case: Case) -> Problem | None:
    """A ZeRO stage that Megatron does not have.

    Megatron has no ZeRO; 1 stands for `--use-distributed-optimizer`.
    """
    if case.on_megatron and case.strategy.zero_stage > 1:
        return Problem(
            "megatron-zero",
            f"`zero_stage` (={case.strategy.zero_stage}) must be 0 or 1 with Megatron",
            "1 is its distributed optimizer",
        )
    return None


def offload_of_megatron(case: Case) -> Problem | None:
    """Offload asked of Megatron.

    Ours: Megatron has no parameter offload, and its optimizer offload is not generated yet.
    """
    if case.on_megatron and (
        case.strategy.offload_parameters != "none" or case.strategy.offload_optimizer != "none"
    ):
        return Problem(
            "megatron-offload",
            f"offload (optimizer={case.strategy.offload_optimizer}, "
            f"parameters={case.strategy.offload_parameters}) must be none with Megatron",
            "use --for deepspeed",
        )
    return None


def offload_parameters_stage(case: Case) -> Problem | None:
    """Parameter offload without ZeRO 3.

    DeepSpeed `DeepSpeedZeroConfig.offload_param`: valid with stage 3 only; lower stages ignore
    it in silence.
    """
    if case.strategy.offload_parameters != "none" and case.strategy.zero_stage != FULLY_SHARDED:
        return Problem(
            "offload-parameters",
            f"`offload_parameters` (={case.strategy.offload_parameters}) must have `zero_stage` 3 "
            f"(={case.strategy.zero_stage})",
            "use zero_stage 3",
        )
    return None


def offload_optimizer_stage(case: Case) -> Problem | None:
    """Optimizer offload without ZeRO.

    DeepSpeed `DeepSpeedZeroConfig.offload_optimizer`: valid with stage 1, 2 and 3.
    """
    if case.strategy.offload_optimizer != "none" and case.strategy.zero_stage == 0:
        return Problem(
            "offload-optimizer",
            f"`offload_optimizer` (={case.strategy.offload_optimizer}) must have `zero_stage` 1, 2 "
            "or 3 (=0)",
            "use zero_stage 2",
        )
    return None


def offload_optimizer_kind(case: Case) -> Problem | None:
    """An offloaded optimizer that does not run on the CPU.

    DeepSpeed `DeepSpeedEngine._configure_optimizer`: offload wants DeepSpeedCPUAdam or
    DeepSpeedCPULion.
    """
    if case.strategy.offload_optimizer != "none" and case.workload.optimizer not in CPU_OPTIMIZERS:
        return Problem(
            "offload-kind",
            f"`optimizer` (={case.workload.optimizer}) must be one that runs on the CPU, as it is "
            "offloaded",
            f"use {' or '.join(CPU_OPTIMIZERS)}",
        )
    return None


def offload_pipeline(case: Case) -> Problem | None:
    """Optimizer offload under the pipeline engine.

    DeepSpeed `PipelineEngine`: ZeRO-Offload of its stage-1 gradients is not supported.
    """
    pp = case.layout.pipeline_parallel_size
    if case.strategy.offload_optimizer != "none" and pp > 1:
        return Problem(
            "offload-pipeline",
            f"`offload_optimizer` (={case.strategy.offload_optimizer}) must be none with pipeline "
            f"parallelism (={pp})",
            "use pipeline_parallel_size 1",
        )
    return None


def nvme_stage(case: Case) -> Problem | None:
    """NVMe offload without ZeRO 3.

    DeepSpeed `stage3.py`, `_configure_tensor_swapping`: only stage 3 swaps to NVMe.
    """
    if (
        "nvme" in (case.strategy.offload_optimizer, case.strategy.offload_parameters)
        and case.strategy.zero_stage != FULLY_SHARDED
    ):
        return Problem(
            "nvme-stage",
            f"offload to nvme must have `zero_stage` 3 (={case.strategy.zero_stage})",
            "use zero_stage 3, or cpu",
        )
    return None


def nvme_disk(case: Case) -> Problem | None:
    """NVMe offload on a cluster that names no disk.

    `nvme_path` is mandatory: DeepSpeed `AsyncPartitionedParameterSwapper`.
    """
    if (
        "nvme" in (case.strategy.offload_optimizer, case.strategy.offload_parameters)
        and case.cluster.nvme is None
    ):
        return Problem(
            "nvme-disk",
            "offload to nvme must have a disk: the cluster names no `nvme`",
            "name its folder: `--nvme-path`, or `nvme` in the cluster file",
        )
    return None


def recompute_kind(case: Case) -> Problem | None:
    """Selective recomputation asked of DeepSpeed.

    Hugging Face checkpoints whole layers (`gradient_checkpointing_enable`); only Megatron has
    selective.
    """
    if not case.on_megatron and case.strategy.recompute == "selective":
        return Problem(
            "recompute",
            "`recompute` (=selective) must be none or full with DeepSpeed",
            "use full, or --for megatron",
        )
    return None


def second_copy(case: Case) -> Problem | None:
    """A second copy of the weights (hpZ) where the engine keeps none.

    DeepSpeed `partition_parameters.py`, `_partition_param_sec`: only stage 3 has it; its groups are
    neighbouring ranks of equal number (`groups._create_zero_param_parallel_group`), and it lies
    beside the shards, so offloaded parameters would put it into RAM and gain nothing.
    """
    strategy, ranks = case.strategy, case.layout.data_parallel_size
    size = strategy.hpz_partition_size
    if size == 1:
        return None
    kept = strategy.offload_parameters == "none" and strategy.offload_optimizer != "nvme"
    if not case.on_megatron and strategy.zero_stage == FULLY_SHARDED and kept and ranks % size == 0:
        return None
    return Problem(
        "hpz-partition",
        f"`hpz_partition_size` (={size}) must divide the data-parallel ranks (={ranks}), under "
        "DeepSpeed's ZeRO-3 with parameters on the device and nothing on NVMe",
        "use zero_stage 3 and the GPUs of one node, or hpz_partition_size 1",
    )


RULES: tuple[Rule, ...] = (
    deepspeed_axes,
    second_copy,
    zero_with_pipeline,
    zero_with_tensor,
    one_way_to_split,
    kind_of_pipeline,
    kind_of_tensor,
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
