"""Rules about model, card and workload: what can be trained at all, by which back end."""

from __future__ import annotations

from dsforge.errors import Problem
from dsforge.rules.case import Case, Rule

OPTIMIZERS = {
    "deepspeed": ("adamw", "lion", "sgd", "adafactor", "muon"),
    "megatron": ("adamw", "sgd"),
}
UNLIMITED_POSITIONS = ("alibi", "relative")


def decoder_only(case: Case) -> Problem | None:
    """Decoder only: causal language models only; the trainer computes a next-token loss. Ours."""
    if not (case.model.kind != "decoder"):
        return None
    return Problem(
        "decoder-only",
        f"model `{case.model.name}` (={case.model.kind}) must be a decoder to train as a causal language model",
        "choose a decoder, such as llama-2-7b",
    )


def sequence_in_positions(case: Case) -> Problem | None:
    """Sequence in positions.

    Positions beyond the table: index error in `nn.Embedding`; Megatron `validate_args` asserts
    it.
    """
    if not (
        case.model.position not in UNLIMITED_POSITIONS
        and case.workload.sequence_length > case.model.max_position_embeddings
    ):
        return None
    return Problem(
        "sequence-length",
        f"`sequence_length` (={case.workload.sequence_length}) must not exceed `max_position_embeddings` (={case.model.max_position_embeddings}) of {case.model.name}",
        f"use {case.model.max_position_embeddings} or less",
    )


def precision_on_card(case: Case) -> Problem | None:
    """Precision on card.

    The card has no tensor unit for it: `DeepSpeedEngine._do_sanity_check` (bf16, fp16),
    Transformer Engine (fp8).
    """
    if not (case.workload.precision not in case.cluster.gpu.peak_flops):
        return None
    return Problem(
        "precision",
        f"`precision` (={case.workload.precision}) must be one that {case.cluster.gpu.name} computes",
        f"use {' or '.join(case.cluster.gpu.peak_flops)}",
    )


def fp8_megatron(case: Case) -> Problem | None:
    """Fp8 megatron.

    fp8 needs Transformer Engine layers, which Megatron builds (`--fp8-format`); DeepSpeed
    trains plain modules.
    """
    if not (case.workload.precision == "fp8" and not case.on_megatron):
        return None
    return Problem(
        "fp8-megatron",
        "`precision` (=fp8) must be trained by Megatron",
        "use bf16, or --for megatron",
    )


def optimizer_of_back_end(case: Case) -> Problem | None:
    """Optimizer of back end.

    `DeepSpeedEngine._configure_basic_optimizer`; Megatron `--optimizer` choices in
    `arguments.py`.
    """
    known = OPTIMIZERS[case.strategy.back_end]
    if not (case.workload.optimizer not in known):
        return None
    return Problem(
        "optimizer",
        f"`optimizer` (={case.workload.optimizer}) must be one that {case.strategy.back_end} has",
        f"use {' or '.join(known)}",
    )


def lora_back_end(case: Case) -> Problem | None:
    """Lora back end: adapters are peft modules on Hugging Face layers. Ours."""
    if not (case.workload.method == "lora" and case.on_megatron):
        return None
    return Problem(
        "lora-megatron",
        "`method` (=lora) must be trained by DeepSpeed",
        "use method full, or --for deepspeed",
    )


def lora_pipeline(case: Case) -> Problem | None:
    """Lora pipeline: peft wraps a whole model, a pipeline stage is not one. Ours."""
    if not (case.workload.method == "lora" and case.layout.pipeline_parallel_size > 1):
        return None
    return Problem(
        "lora-pipeline",
        f"`pipeline_parallel_size` (={case.layout.pipeline_parallel_size}) must be 1 with LoRA",
        "use ZeRO instead",
    )


def ranks_on_gpu(case: Case) -> Problem | None:
    """Ranks on gpu: Megatron-LM `initialize_megatron` asserts that CUDA is there."""
    if not (case.on_megatron and case.cluster.gpu.is_cpu):
        return None
    return Problem(
        "megatron-gpu",
        "Megatron must have GPUs: the cluster computes on CPUs",
        "use --for deepspeed",
    )


RULES: tuple[Rule, ...] = (
    decoder_only,
    sequence_in_positions,
    precision_on_card,
    fp8_megatron,
    optimizer_of_back_end,
    lora_back_end,
    lora_pipeline,
    ranks_on_gpu,
)
