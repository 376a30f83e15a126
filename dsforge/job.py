"""TrainJob: what `train.yaml` says and `dsforge train` does.

It stands between two rooms that must not know each other: `render/` writes it from a plan,
`train/` reads it. Everything about sharding, precision, batch sizes and the optimizer stands in
the DeepSpeed config that it names, or in its `torch` block, so no value is written twice.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from dsforge.specs import FROZEN, DataSpec, LoraSpec, OptimizerStates
from dsforge.strategy import AskedLoss

Schedule = Literal["cosine", "linear", "constant"]
OnBadRow = Literal["stop", "skip"]
Batching = Literal["random", "by_length"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
TrainedPreference = Literal["dpo"]
TrainedReference = Literal["adapters_off", "precomputed"]
TorchStrategy = Literal["ddp", "zero1", "fsdp2"]
Sharding = Literal["full", "hybrid", "gradients"]
TorchPrecision = Literal["bf16", "fp16", "fp32"]
TorchOptimizer = Literal["adamw", "adam", "sgd"]


class TorchSettings(BaseModel):
    """Training without DeepSpeed: how torch's own parts share the work, and the optimizer."""

    model_config = FROZEN

    strategy: TorchStrategy = Field(
        default="fsdp2",
        description="`ddp`: every rank holds all; `zero1`: DDP with ZeroRedundancyOptimizer, which "
        "shards the optimizer state; `fsdp2`: `fully_shard`.",
    )
    sharding: Sharding = Field(
        default="full",
        description="Of fsdp2. `full`: parameters, gradients and optimizer state over all ranks; "
        "`hybrid`: over `shard_size` ranks, replicated between them; `gradients`: as `full`, but "
        "gathered parameters stay until backward (reshard_after_forward=False).",
    )
    shard_size: int | None = Field(
        default=None,
        ge=1,
        description="Ranks of a shard group, with sharding `hybrid`; none: the ranks of a node.",
    )
    cpu_offload: bool = Field(
        default=False,
        description="Of fsdp2: shards, gradients and optimizer state in host memory.",
    )
    no_sync: bool = Field(
        default=False,
        description="Of fsdp2: reduce gradients once a step, not in each micro step; whole "
        "gradients stay on each rank in between. ddp and zero1 always do.",
    )
    precision: TorchPrecision = Field(
        default="bf16",
        description="Type of the computation; weights and optimizer state of trained parameters "
        "stay in fp32.",
    )
    micro_batch_size: int = Field(
        default=1, ge=1, description="Samples of a data-parallel rank in one forward pass."
    )
    gradient_accumulation_steps: int | None = Field(
        default=None,
        ge=1,
        description="Micro batches per optimizer step; none: 1, or what `global_batch_size` needs.",
    )
    global_batch_size: int | None = Field(
        default=None,
        ge=1,
        description="Samples per optimizer step of all ranks. On any number of ranks that divides "
        "it, accumulation and if need be the micro batch follow (elastic runs).",
    )
    optimizer: TorchOptimizer = Field(default="adamw", description="Optimizer of torch.optim.")
    learning_rate: float = Field(
        default=2e-5, gt=0, description="Peak learning rate of the schedule."
    )
    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="Decay of the moments of Adam and AdamW."
    )
    eps: float = Field(default=1e-8, gt=0, description="Term in the denominator of Adam and AdamW.")
    weight_decay: float = Field(
        default=0.0, ge=0, description="Weight decay; decoupled with adamw."
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Momentum of sgd.")
    gradient_clipping: float = Field(
        default=1.0, ge=0, description="Largest norm of the gradients; 0: none."
    )
    bucket_mb: float = Field(
        default=25.0,
        gt=0,
        description="Gradient bucket of ddp and zero1, MiB; a full one is reduced in backward.",
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, description="Ranks that share the matrices of each layer; of fsdp2."
    )
    pipeline_parallel_size: int = Field(
        default=1, ge=1, description="Stages that the layers are divided into; of fsdp2."
    )

    @property
    def is_fsdp(self) -> bool:
        """Whether `fully_shard` divides the model."""
        return self.strategy == "fsdp2"


class PreferenceSettings(BaseModel):
    """Training on pairs of a chosen and a rejected answer in place of next tokens."""

    model_config = FROZEN

    kind: TrainedPreference = Field(
        default="dpo",
        description="Loss. `dpo`: -log sigmoid of `beta` times how much more than the reference "
        "the model prefers the chosen answer (Rafailov et al. 2023), the mean over pairs.",
    )
    beta: float = Field(
        default=0.1,
        gt=0,
        allow_inf_nan=False,
        description="Factor of the log probability ratios; larger stays nearer the reference.",
    )
    reference: TrainedReference | None = Field(
        default=None,
        description="The untrained model as reference: `adapters_off`, one forward pass more in "
        "each micro step, or `precomputed`, one pass over the data before the first step. "
        "None: `adapters_off` with LoRA, else `precomputed`.",
    )


class TrainJob(BaseModel):
    """One fine-tuning run. Relative paths are relative to the folder of `train.yaml`."""

    model_config = FROZEN

    model: str = Field(description="Folder, GGUF file, hub id, catalog name or config.json.")
    tokenizer: str | None = Field(
        default=None,
        description="Tokenizer, in the same forms as `model`; none: that of the model.",
    )
    random_weights: bool = Field(
        default=False, description="Random weights: only the config of the model is read."
    )
    torch: TorchSettings | None = Field(
        default=None,
        description="Settings of a run on plain torch (DDP, ZeroRedundancyOptimizer, FSDP2), in "
        "place of `deepspeed_config`.",
    )
    deepspeed_config: str | None = Field(
        default=None,
        validate_default=True,
        description="The ds_config.json of a run on DeepSpeed.",
    )
    data: DataSpec = Field(description="Samples to train on.")
    sequence_length: int = Field(
        ge=2, description="Sequence length in tokens; longer samples are truncated."
    )
    on_bad_row: OnBadRow = Field(
        default="stop", description="Invalid rows: stop the run, or skip them."
    )
    packing: bool = Field(
        default=False,
        description="Several samples per sequence, without attention between them; batch sizes "
        "count sequences.",
    )
    batching: Batching = Field(
        default="random",
        description="Order of the samples: random, or `by_length` (batches of similar length).",
    )
    steps: int | None = Field(
        default=None, ge=1, description="Optimizer steps; takes precedence over epochs."
    )
    epochs: float = Field(default=1.0, gt=0, description="Passes over the data.")
    schedule: Schedule = Field(
        default="cosine", description="Learning rate schedule after the warm-up."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up.")
    minimum_learning_rate_ratio: float = Field(
        default=0.1, ge=0, le=1, description="Last learning rate, relative to the peak."
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Activation checkpointing: backward recomputes activations."
    )
    offload_activations: bool = Field(
        default=False,
        description="Inputs of checkpointed layers wait in host memory; needs "
        "`gradient_checkpointing`.",
    )
    tiled_mlp: bool = Field(
        default=False,
        description="MLPs take as many tokens at a time as the hidden size, and once more in "
        "backward; needs `gradient_checkpointing`.",
    )
    compile: bool = Field(
        default=False,
        description="Compile decoder layers with torch.compile; batches are padded to the "
        "sequence length.",
    )
    attention: Attention = Field(default="sdpa", description="Attention kernels of transformers.")
    loss: AskedLoss = Field(
        default="chunked",
        description="`chunked`: logits of a chunk of tokens at a time, if the model allows it; "
        "`plain`: of the whole micro batch, as always with `preference`.",
    )
    preference: PreferenceSettings | None = Field(
        default=None,
        description="Training on preferences: rows with `prompt`, `chosen` and `rejected`, each a "
        "sample of two sequences; none: on next tokens.",
    )
    optimizer_states: OptimizerStates | None = Field(
        default=None,
        description="bitsandbytes' AdamW in place of that of the DeepSpeed config, with its "
        "values: moments in 8 bits, or in pages that leave for RAM.",
    )
    lora: LoraSpec | None = Field(
        default=None, description="LoRA adapters; none: all weights are trained."
    )
    seed: int = Field(default=42, ge=0, description="Seed of weights, adapters and data order.")
    output: str = Field(default="output", description="Folder of checkpoints, metrics, weights.")
    hang_after_s: float | None = Field(
        default=None,
        gt=0,
        description="Time limit of a step in seconds; none: 20 times the slowest so far, at "
        "least 10 minutes.",
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="Interval in optimizer steps; none: only at the end."
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, description="Number of newest checkpoints that are not deleted."
    )
    evaluate_every: int | None = Field(
        default=None, ge=1, description="Interval in optimizer steps; none: only at the end."
    )
    save: bool = Field(
        default=True, description="Write checkpoints and final weights; false for measurements."
    )
    log_every: int = Field(default=1, ge=1, description="Steps between lines of metrics.jsonl.")

    @field_validator("deepspeed_config")
    @classmethod
    def _names_one_engine(cls, name: str | None, others: ValidationInfo) -> str | None:
        """The settings of the engine stand in one place."""
        if "torch" not in others.data:
            return name  # its own problems are said
        if name is not None and others.data["torch"] is not None:
            raise ValueError("cannot be combined with `torch`: a run has one engine")
        if name is None and others.data["torch"] is None:
            raise PydanticCustomError("missing", "or give a `torch` block to train without it")
        return name
