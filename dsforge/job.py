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
    tokenizer: str | None = Field(
        default=None,
        description="Tokenizer, in the same forms as `model`; none: that of the model.",
    )
    random_weights: bool = Field(
        default=False, description="Random weights: only the config of the model is read."
    )
    deepspeed_config: str = Field(description="The ds_config.json of this run.")
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
    compile: bool = Field(
        default=False,
        description="Compile decoder layers with torch.compile; batches are padded to the "
        "sequence length.",
    )
    attention: Attention = Field(default="sdpa", description="Attention kernels of transformers.")
    loss: AskedLoss = Field(
        default="chunked",
        description="`chunked`: logits of a chunk of tokens at a time, if the model allows it; "
        "`plain`: of the whole micro batch.",
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
