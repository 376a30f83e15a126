"""Programs with Megatron's layers or layouts: on Megatron-LM's core, or on DeepSpeed's engine."""

from __future__ import annotations

from dsforge.execution import Execution
from dsforge.programs.converters import BRIDGE
from dsforge.programs.program import IN_RAM, Program, Way

_FUSED = Execution.model_construct(trainer="deepspeed", kernels="fused", loss="softmax")
MEGATRON_DEEPSPEED = Program(
    "megatron-deepspeed",
    "Megatron-DeepSpeed",
    (
        Way(
            execution=_FUSED,
            source="Megatron-DeepSpeed megatron/arguments.py (--zero-stage, --no-pipeline-"
            "parallel, --ds-sequence-parallel-size), pretrain_gpt.py",
            stages=(0, 1, 2, 3),
            optimizers=("adamw", "sgd"),
            precisions=("bf16", "fp16", "fp32"),
            offload_optimizer=IN_RAM,
            tensor=True,
            pipeline=True,
            context=True,
            combines=True,
            kinds=("llama", "mistral", "gpt2"),
        ),
    ),
)
GPT_NEOX = Program(
    "gpt-neox",
    "GPT-NeoX",
    (
        Way(
            execution=_FUSED,
            source="gpt-neox megatron/neox_arguments/neox_args.py, deepspeed_args.py",
            stages=(0, 1, 2, 3),
            optimizers=("adamw", "sgd", "lion"),
            precisions=("bf16", "fp16", "fp32"),
            offload_optimizer=IN_RAM,
            tensor=True,
            pipeline=True,
            combines=True,
            kinds=("gpt_neox", "llama", "mistral", "gpt2"),
        ),
    ),
    starts_all=True,
)
MEGATRON_BRIDGE = Program(
    "megatron-bridge",
    "Megatron-Bridge",
    (
        Way(
            execution=Execution.model_construct(
                trainer="megatron", kernels="fused", gradients="fp32"
            ),
            source="megatron-bridge 0.3 training/config.py ConfigContainer, peft/lora.py; "
            f"megatron-core TransformerConfig; kinds of models: {BRIDGE.source}",
            stages=(0, 1),
            optimizers=("adamw", "sgd"),
            methods=("full", "lora"),
            precisions=("bf16", "fp16", "fp8"),
            recompute=("none", "selective", "full"),
            tensor=True,
            pipeline=True,
            context=True,
            expert=True,
            splits_adapters=True,
            combines=True,
            virtual_stages=True,
            kinds=BRIDGE.kinds,
        ),
    ),
)
# Colossal-AI's chunks and bucketed ZeRO are priced as DeepSpeed's, which they are modelled on.
COLOSSALAI = Program(
    "colossalai",
    "Colossal-AI",
    (
        Way(
            execution=Execution.model_construct(trainer="deepspeed", loss="plain"),
            source="colossalai 0.5 booster/plugin: LowLevelZeroPlugin (stage 1, 2), "
            "HybridParallelPlugin (tp, pp, sp; zero_stage 0, 1), GeminiPlugin",
            stages=(0, 1, 2, 3),
            optimizers=("adamw", "sgd"),
            methods=("full", "lora"),
            precisions=("bf16", "fp16", "fp32"),
            offload_optimizer=IN_RAM,
            offload_parameters=IN_RAM,
            tensor=True,
            pipeline=True,
            combines=True,
            kinds=("llama", "mistral", "qwen2", "qwen3", "gpt2", "bloom", "falcon", "mixtral"),
        ),
    ),
)
PROGRAMS = (MEGATRON_DEEPSPEED, GPT_NEOX, MEGATRON_BRIDGE, COLOSSALAI)
