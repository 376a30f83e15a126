"""Constraints of quantised frozen matrices (QLoRA): which formats train, and who can shard them."""

from __future__ import annotations

from dsforge.constraints.case import Broken, Case, constraint
from dsforge.zero_stages import FULLY_SHARDED

SHARDED_FORMATS = ("nf4", "fp4")  # packed parameters of bitsandbytes, their scales beside them
FLOAT_STORAGE = ("bf16", "fp16", "fp32")


@constraint(
    "qlora-zero3",
    source="DeepSpeed runtime/zero/partition_parameters.py, Init._convert_to_zero_parameters "
    "shards parameters: packed GPTQ and AWQ matrices are buffers (AutoGPTQ qlinear_cuda_old.py, "
    "register_buffer), and LLM.int8 multiplies state.CB (bitsandbytes autograd/_functions.py)",
)
def qlora_stage(case: Case) -> Broken | None:
    """A base that ZeRO stage 3 cannot shard."""
    if case.base in (None, *SHARDED_FORMATS) or case.zero_stage != FULLY_SHARDED:
        return None
    return Broken(
        f"a base in {case.base} requires ZeRO stage 0, 1 or 2 (got 3)",
        "use ZeRO stage 2, or base nf4",
    )


@constraint(
    "qlora-megatron",
    source="Megatron-Bridge src/megatron/bridge/peft: adapters on layers in 16 or 8 bits; nf4, "
    "GPTQ and AWQ are linear layers of Hugging Face models",
)
def megatron_base(case: Case) -> Broken | None:
    """A quantised base with Megatron-LM."""
    if case.base is None or not case.on_megatron:
        return None
    hint = "use method lora, or --for deepspeed"
    return Broken(f"a base in {case.base} requires DeepSpeed", hint)


@constraint(
    "quantised-experts",
    source="bitsandbytes nn/modules.py: `Linear4bit` holds one whole matrix",
)
def quantised_experts(case: Case) -> Broken | None:
    """Quantised experts, modules of their own, shared between expert parallel ranks."""
    size = case.expert_parallel_size
    if case.base is None or not case.expert_modules or size == 1:
        return None
    return Broken(
        f"expert_modules with a base in {case.base} cannot be combined with expert parallelism "
        f"({size})",
        "use expert_parallel_size 1, or leave out expert_modules",
    )


@constraint(
    "quant-storage",
    source="DeepSpeed runtime/engine.py, _configure_distributed_model casts every floating "
    "parameter to the compute precision, packed bits among them",
)
def storage_type(case: Case) -> Broken | None:
    """4-bit matrices in a floating type that the engine casts."""
    if case.quant_storage not in FLOAT_STORAGE or case.precision in (None, case.quant_storage):
        return None
    return Broken(
        f"quant_storage={case.quant_storage} cannot be combined with precision={case.precision}: "
        "the engine would cast packed bits",
        f"use {case.precision} or uint8, or leave it out",
    )


@constraint(
    "qlora-quantized-weights",
    source="DeepSpeed runtime/zero/partition_parameters.py, AllGatherCoalescedHandle: qwZ rounds "
    "gathered elements to 8 bits; those of a packed matrix are no numbers",
)
def packed_weights_rounded(case: Case) -> Broken | None:
    """ZeRO++ qwZ with packed matrices."""
    if case.base is None or not case.quantized_weights:
        return None
    return Broken(
        f"quantized_weights (qwZ) cannot be combined with a base in {case.base}",
        "leave quantized_weights out: packed matrices are gathered in 4 bits",
    )


@constraint(
    "gptq-exllama",
    source="AutoGPTQ nn_modules/qlinear/qlinear_exllama.py and qlinear_exllamav2.py, "
    "QuantLinear.__init__: `Exllama kernel does not support training.`",
)
def training_kernel(case: Case) -> Broken | None:
    """A kernel that has no backward."""
    if case.kernel != "exllama":
        return None
    return Broken(
        "kernel=exllama does not support training",
        "use torch or triton (`GPTQConfig(use_exllama=False)`)",
    )
