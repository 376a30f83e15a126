"""Programs on PyTorch's own parallelism: `dsforge train`, Lightning and others; ms-swift."""

from __future__ import annotations

from dsforge.execution import Execution
from dsforge.programs.hugging_face import AXOLOTL, LLAMA_FACTORY
from dsforge.programs.program import ALL_METHODS, ANYWHERE, HALF, IN_RAM, MIXED, Program, Way

_ZERO = AXOLOTL.ways[0]
# Gradients are summed and sent in fp32 (train/engines/plain_torch/placement.py, `reduce_dtype`; DDP
# has fp32 weights under autocast).
_DDP = Way(
    execution=Execution.model_construct(trainer="ddp", gradients="fp32"),
    source="dsforge/job.py TorchSettings: ddp, zero1; dsforge/constraints/torch.py",
    stages=(0, 1),
    optimizers=("adamw", "sgd"),
    methods=("full", "lora"),
    precisions=MIXED,
    activations_in_ram=True,
    tiled_mlp=True,
    chunks_loss=True,
)
TORCH = Program(
    "torch",
    "dsforge train (plain torch)",
    (
        _DDP,
        _DDP._replace(
            execution=Execution.model_construct(trainer="fsdp", gradients="fp32"),
            source="dsforge/job.py TorchSettings: fsdp2; dsforge/constraints/torch.py",
            stages=(2, 3),
            offload_optimizer=IN_RAM,
            offload_parameters=IN_RAM,
            offloads_together=True,
            tensor=True,
            pipeline=True,
            combines=True,
            hybrid=True,
        ),
    ),
    start="torchrun.sh",
    is_own=True,
)
LIGHTNING = Program(
    "lightning",
    "PyTorch Lightning",
    (
        _ZERO._replace(
            source="lightning 2.6 pytorch/strategies/deepspeed.py DeepSpeedStrategy",
            optimizers=("adamw", "sgd", "adafactor"),
            methods=("full", "lora"),
            hpz=False,
            zero_plus=False,
        ),
        Way(
            execution=Execution.model_construct(trainer="fsdp", loss="plain"),
            source="lightning 2.6 pytorch/strategies/fsdp.py FSDPStrategy, model_parallel.py "
            "ModelParallelStrategy (data x tensor, FSDP2)",
            stages=(2, 3),
            optimizers=("adamw", "sgd"),
            methods=("full", "lora"),
            precisions=HALF,
            offload_optimizer=IN_RAM,
            offload_parameters=IN_RAM,
            offloads_together=True,
            tensor=True,
        ),
    ),
)
# ChunkedLossWrapper computes head and loss of some tokens at a time.
TORCHTITAN = Program(
    "torchtitan",
    "torchtitan",
    (
        Way(
            execution=Execution.model_construct(
                trainer="fsdp", kernels="compiled", loss="chunked", gradients="fp32"
            ),
            source="torchtitan 0.3 config/configs.py ParallelismConfig, TrainingConfig, "
            "components/optimizer, components/loss.py ChunkedLossWrapper",
            stages=(2, 3),
            optimizers=("adamw",),
            precisions=("bf16", "fp32"),
            recompute=("none", "selective", "full"),
            offload_optimizer=IN_RAM,
            offload_parameters=IN_RAM,
            offloads_together=True,
            tensor=True,
            pipeline=True,
            context=True,
            expert=True,
            combines=True,
            sequence_parallel=True,
            kinds=("llama", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss"),
        ),
    ),
)
# All of weights, gradients and moments are in bf16 (recipes, `dtype: bf16`); FSDP2 shards them.
TORCHTUNE = Program(
    "torchtune",
    "torchtune",
    (
        Way(
            execution=Execution.model_construct(
                trainer="torchtune",
                loss="chunked_output",
                master_weights=False,
                moments="bf16",
            ),
            source="torchtune 0.6.1 recipes/full_finetune_distributed.py (FSDP2, "
            "tensor_parallel_dim, fsdp_cpu_offload; fp16 is refused), "
            "recipes/lora_finetune_distributed.py",
            stages=(3,),
            optimizers=("adamw", "adamw_8bit", "paged_adamw_8bit", "sgd"),
            methods=ALL_METHODS,
            precisions=("bf16",),
            offload_optimizer=IN_RAM,
            offload_parameters=IN_RAM,
            offloads_together=True,
            tensor=True,
            kinds=("llama", "mistral", "qwen2", "gemma", "gemma2", "phi3"),
        ),
    ),
)
MS_SWIFT = Program(
    "ms-swift",
    "ms-swift",
    (
        LLAMA_FACTORY.ways[0]._replace(
            source="ms-swift 4.6 swift/arguments: `deepspeed`, `sequence_parallel_size`",
            offload_optimizer=ANYWHERE,
            precisions=MIXED,
            context=True,
        ),
        LLAMA_FACTORY.ways[1]._replace(source="ms-swift 4.6 swift/arguments: `fsdp`"),
        Way(
            execution=Execution.model_construct(
                trainer="megatron", kernels="fused", gradients="fp32"
            ),
            source="ms-swift 4.6 swift/megatron/arguments: MegatronArguments",
            stages=(0, 1),
            optimizers=("adamw", "sgd"),
            methods=("full", "lora"),
            precisions=("bf16", "fp16"),
            recompute=("none", "selective", "full"),
            tensor=True,
            pipeline=True,
            context=True,
            expert=True,
            splits_adapters=True,
            combines=True,
            virtual_stages=True,
        ),
    ),
)
PROGRAMS = (TORCH, MS_SWIFT, LIGHTNING, TORCHTITAN, TORCHTUNE)
