"""Rules about model, card and workload: what can be trained at all, by which back end."""

from __future__ import annotations

from dsforge.constraints.case import Case, Rule
from dsforge.errors import Problem
from dsforge.strategy import FULLY_SHARDED

OPTIMIZERS = {
    "deepspeed": ("adamw", "lion", "sgd", "adafactor", "muon"),
    "megatron": ("adamw", "sgd"),
}
UNLIMITED_POSITIONS = ("alibi", "relative")


def decoder_only(case: Case) -> Problem | None:
    """A model that is not a decoder.

    Causal language models only; the trainer computes a next-token loss. Ours.
    """
    if case.model.kind != "decoder":
        return Problem(
            "decoder-only",
            f"model `{case.model.name}` (={case.model.kind}) must be a decoder to train as a "
            "causal language model",
            "choose a decoder, such as llama-2-7b",
        )
    return None


def sequence_in_positions(case: Case) -> Problem | None:
    """A sequence longer than the model has positions.

    Positions beyond the table: index error in `nn.Embedding`; Megatron `validate_args` asserts
    it.
    """
    if (
        case.model.position not in UNLIMITED_POSITIONS
        and case.workload.sequence_length > case.model.max_position_embeddings
    ):
        return Problem(
            "sequence-length",
            f"`sequence_length` (={case.workload.sequence_length}) must not exceed "
            f"`max_position_embeddings` (={case.model.max_position_embeddings}) of "
            f"{case.model.name}",
            f"use {case.model.max_position_embeddings} or less",
        )
    return None


def precision_on_card(case: Case) -> Problem | None:
    """A precision that the card does not compute.

    The card has no tensor unit for it: `DeepSpeedEngine._do_sanity_check` (bf16, fp16),
    Transformer Engine (fp8).
    """
    if case.workload.precision not in case.cluster.gpu.peak_flops:
        return Problem(
            "precision",
            f"`precision` (={case.workload.precision}) must be one that {case.cluster.gpu.name} "
            "computes",
            f"use {' or '.join(case.cluster.gpu.peak_flops)}",
        )
    return None


def fp8_megatron(case: Case) -> Problem | None:
    """fp8 asked of DeepSpeed.

    Fp8 needs Transformer Engine layers, which Megatron builds (`--fp8-format`); DeepSpeed
    trains plain modules.
    """
    if case.workload.precision == "fp8" and not case.on_megatron:
        return Problem(
            "fp8-megatron",
            "`precision` (=fp8) must be trained by Megatron",
            "use bf16, or --for megatron",
        )
    return None


def optimizer_of_back_end(case: Case) -> Problem | None:
    """An optimizer that the back end does not have.

    `DeepSpeedEngine._configure_basic_optimizer`; Megatron `--optimizer` choices in
    `arguments.py`.
    """
    known = OPTIMIZERS[case.strategy.back_end]
    if case.workload.optimizer not in known:
        return Problem(
            "optimizer",
            f"`optimizer` (={case.workload.optimizer}) must be one that "
            f"{case.strategy.back_end} has",
            f"use {' or '.join(known)}",
        )
    return None


def lora_back_end(case: Case) -> Problem | None:
    """LoRA asked of Megatron.

    Adapters are peft modules on Hugging Face layers. Ours.
    """
    if case.workload.method == "lora" and case.on_megatron:
        return Problem(
            "lora-megatron",
            "`method` (=lora) must be trained by DeepSpeed",
            "use method full, or --for deepspeed",
        )
    return None


def lora_pipeline(case: Case) -> Problem | None:
    """LoRA under pipeline parallelism.

    Peft wraps a whole model, a pipeline stage is not one. Ours.
    """
    if case.workload.method == "lora" and case.layout.pipeline_parallel_size > 1:
        return Problem(
            "lora-pipeline",
            f"`pipeline_parallel_size` (={case.layout.pipeline_parallel_size}) must be 1 with LoRA",
            "use ZeRO instead",
        )
    return None


def lora_tensor(case: Case) -> Problem | None:
    """LoRA under tensor parallelism.

    DeepSpeed's AutoTP finds layers by their names in the plan of transformers; adapters change
    those, and nothing would be sharded.
    """
    tp = case.layout.tensor_parallel_size
    if case.workload.method == "lora" and not case.on_megatron and tp > 1:
        return Problem(
            "lora-tensor",
            f"`tensor_parallel_size` (={tp}) must be 1 with LoRA",
            "use ZeRO instead",
        )
    return None


def qlora_stage(case: Case) -> Problem | None:
    """QLoRA under ZeRO stage 3, with or without offloaded parameters.

    `Init._convert_to_deepspeed_param` partitions what a matrix is packed into, without its scales:
    bitsandbytes needs `bnb_4bit_quant_storage` in the compute precision there. Not proven here.
    """
    if case.workload.in_4_bits and case.strategy.zero_stage == FULLY_SHARDED:
        return Problem(
            "qlora-zero3",
            f"`zero_stage` (={case.strategy.zero_stage}) must be 0, 1 or 2 with QLoRA",
            "use ZeRO stage 2, or method lora",
        )
    return None


def ranks_on_gpu(case: Case) -> Problem | None:
    """Megatron on a cluster without CUDA (or ROCm, which torch calls CUDA too).

    Megatron-LM `initialize_megatron` asserts that CUDA is there.
    """
    gpu = case.cluster.gpu
    if case.on_megatron and (gpu.is_cpu or gpu.is_gaudi):
        return Problem(
            "megatron-gpu",
            f"Megatron-LM must have CUDA: the cluster has {'CPUs' if gpu.is_cpu else gpu.name}",
            "use --for deepspeed",
        )
    return None


RULES: tuple[Rule, ...] = (
    decoder_only,
    sequence_in_positions,
    precision_on_card,
    fp8_megatron,
    optimizer_of_back_end,
    lora_back_end,
    lora_pipeline,
    lora_tensor,
    qlora_stage,
    ranks_on_gpu,
)
