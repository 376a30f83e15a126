"""Programs around transformers: its Trainer, and those that build on it."""

from __future__ import annotations

from dsforge.execution import Execution
from dsforge.programs.program import ALL_METHODS, ANYWHERE, IN_RAM, MIXED, Program, Way
from dsforge.specs import Optimizer

# transformers' modules compute one operation at a time and return whole logits in fp32
# (loss/loss_utils.py, ForCausalLMLoss).
_DEEPSPEED = Execution.model_construct(trainer="deepspeed", loss="plain")
_FSDP = Execution.model_construct(trainer="fsdp", loss="plain")
_OPTIMIZERS: tuple[Optimizer, ...] = (
    *("adamw", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"),
    *("lion", "sgd", "adafactor"),
)
_OWN_OPTIMIZERS: tuple[Optimizer, ...] = ("adamw", "sgd", "adafactor")  # FSDP2 has DTensors


def _zero(source: str, *, activations_in_ram: bool = True) -> Way:
    """The Trainer on DeepSpeed: what a `ds_config` says, less model parallelism.

    Checkpoints in RAM are transformers' (modeling_utils.py, `offload` among
    `gradient_checkpointing_kwargs`).
    """
    return Way(
        execution=_DEEPSPEED,
        source=source,
        stages=(0, 1, 2, 3),
        optimizers=_OPTIMIZERS,
        methods=ALL_METHODS,
        bases=("nf4", "fp4", "int8"),
        precisions=MIXED,
        offload_optimizer=ANYWHERE,
        offload_parameters=ANYWHERE,
        hpz=True,
        zero_plus=True,
        activations_in_ram=activations_in_ram,
    )


def _fsdp(source: str, *, splits: bool = False) -> Way:
    """The Trainer on FSDP; CPU offload takes parameters, gradients and optimizer together."""
    return Way(
        execution=_FSDP,
        source=source,
        stages=(2, 3),
        optimizers=_OWN_OPTIMIZERS,
        methods=ALL_METHODS,
        precisions=MIXED,
        offload_optimizer=IN_RAM,
        offload_parameters=IN_RAM,
        offloads_together=True,
        tensor=splits,
        context=splits,
        combines=splits,
    )


TRANSFORMERS = Program(
    "transformers",
    "Hugging Face Trainer",
    (
        _zero("transformers 5.23 training_args.py `deepspeed`, integrations/deepspeed.py"),
        _fsdp("transformers 5.23 training_args.py `fsdp_config`; accelerate 1.15 utils/fsdp_utils"),
    ),
)
ACCELERATE_FSDP = Program(
    "accelerate-fsdp",
    "Hugging Face accelerate (FSDP2)",
    (
        _fsdp(
            "accelerate 1.15 utils/dataclasses.py FullyShardedDataParallelPlugin, "
            "parallelism_config.py ParallelismConfig: dp_shard with tp and cp",
            splits=True,
        ),
    ),
    start="accelerate.yaml",
)
ACCELERATE_FSDP1 = Program(
    "accelerate-fsdp1",
    "Hugging Face accelerate (FSDP1)",
    (
        _fsdp(
            "accelerate 1.15 utils/dataclasses.py FullyShardedDataParallelPlugin; "
            "parallelism_config.py: tp and cp need fsdp_version 2"
        ),
    ),
    start="accelerate.yaml",
)
TRL = Program(
    "trl",
    "TRL (sft)",
    (
        _zero("trl 1.16 trainer/sft_config.py SFTConfig, trainer/model_config.py ModelConfig"),
        _fsdp("trl 1.16 accelerate_configs/fsdp2.yaml, trainer/sft_config.py"),
    ),
)
AXOLOTL = Program(
    "axolotl",
    "axolotl",
    (
        _zero("axolotl 0.19 utils/schemas/config.py `deepspeed`")._replace(tiled_mlp=True),
        _fsdp(
            "axolotl 0.19 utils/schemas/config.py `fsdp_config`, `tensor_parallel_size`, "
            "`context_parallel_size`: model parallelism with FSDP2",
            splits=True,
        ),
    ),
)
LLAMA_FACTORY = Program(
    "llama-factory",
    "LLaMA-Factory",
    (
        _zero(
            "llamafactory 0.9.5 hparams/training_args.py, model_args.py QuantizationArguments; "
            "model/model_utils/checkpointing.py has its own checkpoints",
            activations_in_ram=False,
        ),
        _fsdp("llamafactory 0.9.5 hparams/training_args.py; examples/accelerate/fsdp_config.yaml"),
    ),
)
PROGRAMS = (TRANSFORMERS, ACCELERATE_FSDP, ACCELERATE_FSDP1, TRL, AXOLOTL, LLAMA_FACTORY)
