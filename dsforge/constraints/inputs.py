"""Constraints on model, card and workload: what can be trained at all, by which back end."""

from __future__ import annotations

from dsforge.constraints.case import BackEnd, Broken, Case, constraint

# Of bitsandbytes, which DeepSpeed takes as it takes any optimizer of torch.
LOW_BIT = ("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit")
# Of Megatron-LM those that its distributed optimizer shards, as plans assume. With lion and muon
# core 0.16 refuses it, and 0.20 gives whole matrices to ranks instead (layer_wise_optimizer.py).
OPTIMIZERS: dict[BackEnd, tuple[str, ...]] = {
    "deepspeed": ("adamw", "lion", "sgd", "adafactor", "muon", *LOW_BIT),
    "megatron": ("adamw", "sgd"),
}
BACK_END_NAMES: dict[BackEnd, str] = {"deepspeed": "DeepSpeed", "megatron": "Megatron-LM"}


@constraint("decoder-only", source="dsforge: the trainer computes a next-token loss")
def decoder_only(case: Case) -> Broken | None:
    """A model that is not a decoder."""
    if case.model is None or case.model.kind != "encoder":
        return None
    return Broken(
        f"training requires a causal language model; {case.model.name} is an {case.model.kind}",
        "choose a decoder, such as llama-2-7b, or plan for your own scripts with --software others",
    )


@constraint(
    "encoder-decoder",
    source="dsforge: the encoder reads a prompt and the decoder its answer, under DeepSpeed's ZeRO "
    "alone (dsforge/train/run/sides_step.py)",
)
def encoder_decoder(case: Case) -> Broken | None:
    """What models with an encoder and a decoder are not trained with."""
    shape = case.shape
    if shape is None or not shape.two_halves:
        return None
    sizes = (case.tensor_parallel_size, case.pipeline_parallel_size, case.context_parallel_size)
    asked = {
        "packing=true": case.packing,
        "compile=true": case.compiled,
        "preference": case.preference is not None,
        "lora": case.adapters,
        "a `torch` block": case.trainer in ("ddp", "fsdp", "torch_zero1"),
        "tensor, pipeline or sequence parallelism": any(size > 1 for size in sizes),
    }
    found = [what for what, is_asked in asked.items() if is_asked]
    if case.on_megatron or not found:
        return None
    return Broken(
        f"models of type {shape.model_type} have an encoder and a decoder, and cannot be combined "
        f"with {' and '.join(found)}",
        "leave it out, or train a decoder",
    )


@constraint(
    "sequence-length",
    source="torch nn.Embedding (index error beyond the table); Megatron-LM "
    "megatron/training/arguments.py, validate_args",
    ours=True,
)
def sequence_in_positions(case: Case) -> Broken | None:
    """A sequence longer than the model has positions."""
    positions = case.shape and case.shape.positions
    if case.shape is None or not positions or not case.sequence_length:
        return None
    if case.sequence_length <= positions:
        return None
    return Broken(
        f"sequence length {case.sequence_length} exceeds the {positions} positions of "
        f"{case.shape.name}",
        f"use {positions} or less",
    )


@constraint(
    "precision",
    source="DeepSpeed runtime/engine.py, DeepSpeedEngine._do_sanity_check (bf16, fp16); "
    "Transformer Engine (fp8)",
)
def precision_on_card(case: Case) -> Broken | None:
    """A precision that the card does not compute."""
    if case.cluster is None or case.precision is None:
        return None
    gpu = case.cluster.gpu
    if case.precision in gpu.peak_flops:
        return None
    described = case.by_others and case.program is None and not case.on_megatron
    if case.precision == "bf16" and gpu.emulates_bf16 and described:
        return None  # no plan of ours asks for it, nor one for a program or Megatron-LM
    return Broken(
        f"{gpu.name} does not support {case.precision}", f"use {' or '.join(gpu.peak_flops)}"
    )


@constraint(
    "fp8-megatron",
    source="Megatron-LM --fp8-format: fp8 needs the layers of Transformer Engine",
    ours=True,
)
def fp8_megatron(case: Case) -> Broken | None:
    """fp8 with DeepSpeed, which trains plain modules."""
    if case.precision != "fp8" or case.on_megatron:
        return None
    return Broken("precision=fp8 requires Megatron-LM", "use bf16, or --for megatron")


@constraint(
    "optimizer",
    source="DeepSpeed runtime/engine.py, _configure_basic_optimizer; Megatron-LM "
    "megatron/training/arguments.py, validate_args (emerging optimizers), megatron-core "
    "optimizer/__init__.py and optimizer/muon.py",
    ours=True,
)
def optimizer_of_back_end(case: Case) -> Broken | None:
    """An optimizer that the back end does not have."""
    known = OPTIMIZERS[case.back_end]  # names of a workload: a config has those of torch, too
    if case.model is None or case.optimizer is None or case.optimizer in known:
        return None
    others = [name for name, has in OPTIMIZERS.items() if case.optimizer in has]
    where = BACK_END_NAMES[case.back_end] + "'s distributed optimizer" * case.on_megatron
    return Broken(
        f"optimizer={case.optimizer} is not available with {where}",
        ", or ".join(("use " + " or ".join(known), *(f"--for {name}" for name in others))),
    )


@constraint(
    "lora-pipeline",
    source="dsforge: peft wraps a complete model, and a pipeline stage is only a part",
)
def lora_pipeline(case: Case) -> Broken | None:
    """LoRA with pipeline parallelism under DeepSpeed."""
    if not case.adapters or case.on_megatron or case.pipeline_parallel_size == 1:
        return None
    return Broken(
        f"LoRA cannot be combined with pipeline parallelism ({case.pipeline_parallel_size} stages)",
        "use ZeRO instead; `dsforge estimate --for megatron` prices it",
    )


@constraint(
    "lora-tensor",
    source="DeepSpeed module_inject/auto_tp.py finds layers by their names in the plan of "
    "transformers; adapters change the names, and nothing would be sharded",
    ours=True,
)
def lora_tensor(case: Case) -> Broken | None:
    """LoRA with tensor parallelism under DeepSpeed."""
    if not case.adapters or case.on_megatron or case.tensor_parallel_size == 1:
        return None
    return Broken(
        f"LoRA cannot be combined with tensor parallelism ({case.tensor_parallel_size})",
        "use ZeRO instead; `dsforge estimate --for megatron` prices it",
    )


@constraint(
    "lora-tied-modules",
    source="peft utils/other.py: ModulesToSaveWrapper trains a copy of a module, so that embedding "
    "and head no longer share their weights",
)
def tied_modules(case: Case) -> Broken | None:
    """Trained copies of an embedding and a head that are one matrix."""
    if not case.tied_modules:
        return None
    return Broken(
        f"modules_to_save={', '.join(case.tied_modules)} cannot be combined with tied embeddings",
        "leave modules_to_save out, or use method full",
    )


@constraint("megatron-gpu", source="Megatron-LM initialize_megatron asserts CUDA (or ROCm)")
def ranks_on_gpu(case: Case) -> Broken | None:
    """Megatron-LM on a cluster without CUDA (or ROCm, which torch calls CUDA too)."""
    gpu = None if case.cluster is None else case.cluster.gpu
    if not case.on_megatron or gpu is None or not (gpu.is_cpu or gpu.is_gaudi):
        return None
    return Broken(
        f"Megatron-LM requires CUDA; the cluster has {'CPUs' if gpu.is_cpu else gpu.name}",
        "use --for deepspeed",
    )
