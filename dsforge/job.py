"""TrainJob: what `train.yaml` says and `dsforge train` does.

It stands between two rooms that must not know each other: `render/` writes it from a plan,
`train/` reads it. Everything about sharding, precision, batch sizes and the optimizer stands in
the DeepSpeed config that it names, so no value is written twice.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN, DataSpec, LoraSpec, OptimizerStates
from dsforge.strategy import AskedLoss

Schedule = Literal["cosine", "linear", "constant"]
OnBadRow = Literal["stop", "skip"]
Batching = Literal["random", "by_length"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]


class TrainJob(BaseModel):
    """One fine-tuning run. Relative paths are relative to the folder of `train.yaml`."""

    model_config = FROZEN

    model: str = Field(description="Folder, GGUF file, hub id, catalog name or config.json.")
    tokenizer: str | None = Field(default=None, description="As `model`; none: the model's own.")
    random_weights: bool = Field(default=False, description="Start from the bare config.")
    deepspeed_config: str = Field(description="The ds_config.json of this run.")
    data: DataSpec = Field(description="Samples to train on.")
    sequence_length: int = Field(ge=2, description="Longest sample in tokens; longer are cut.")
    on_bad_row: OnBadRow = Field(
        default="stop", description="A row that cannot be used ends the run, or is left out."
    )
    packing: bool = Field(
        default=False,
        description="Several samples in a sequence, blocked from each other; batches count those.",
    )
    batching: Batching = Field(
        default="random", description="`by_length`: batches of samples of like length."
    )
    steps: int | None = Field(default=None, ge=1, description="Optimizer steps; wins over epochs.")
    epochs: float = Field(default=1.0, gt=0, description="Passes over the data.")
    schedule: Schedule = Field(default="cosine", description="Learning rate after the warm-up.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up.")
    minimum_learning_rate_ratio: float = Field(
        default=0.1, ge=0, le=1, description="Last learning rate over its peak."
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Backward computes activations again instead of keeping them."
    )
    compile: bool = Field(
        default=False,
        description="Decoder layers through torch.compile; batches are padded to the length.",
    )
    attention: Attention = Field(default="sdpa", description="Attention kernels of transformers.")
    loss: AskedLoss = Field(
        default="chunked",
        description="`chunked`: logits of some tokens at a time, where the model allows it; "
        "`plain`: of the whole micro batch.",
    )
    optimizer_states: OptimizerStates | None = Field(
        default=None,
        description="bitsandbytes' AdamW in place of that of the DeepSpeed config, with its "
        "values: moments in 8 bits, or in pages that leave for RAM.",
    )
    lora: LoraSpec | None = Field(default=None, description="Adapters; none: all weights train.")
    seed: int = Field(default=42, ge=0, description="Seed of weights, adapters and data order.")
    output: str = Field(default="output", description="Folder of checkpoints, metrics, weights.")
    hang_after_s: float | None = Field(
        default=None,
        gt=0,
        description="Longest step; none: 20 times the slowest so far, at least 10 minutes.",
    )
    checkpoint_every: int | None = Field(default=None, ge=1, description="Steps; none: only last.")
    keep_checkpoints: int = Field(default=2, ge=1, description="Newest that are kept.")
    evaluate_every: int | None = Field(default=None, ge=1, description="Steps; none: only last.")
    save: bool = Field(
        default=True, description="Checkpoints and final weights; false in runs that only measure."
    )
    log_every: int = Field(default=1, ge=1, description="Steps between lines of metrics.jsonl.")
