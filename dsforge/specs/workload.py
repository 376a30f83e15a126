"""What is to be computed: samples, precision, optimizer, and which weights train."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.specs.frozen import FROZEN
from dsforge.specs.lora import ALL_LINEAR, AdapterTarget, BaseFormat, LoraSpec

Precision = Literal["bf16", "fp16", "fp32", "fp8"]
OptimizerStates = Literal["8bit", "paged_8bit", "paged_32bit"]
Optimizer = Literal[
    "adamw",
    "lion",
    "sgd",
    "adafactor",
    "muon",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
]
# Optimizers of bitsandbytes: AdamW whose moments are stored in another way.
LOW_BIT: dict[Optimizer, OptimizerStates] = {
    "adamw_8bit": "8bit",
    "paged_adamw_8bit": "paged_8bit",
    "paged_adamw_32bit": "paged_32bit",
}
Method = Literal["full", "lora"]
MethodName = Literal["full", "lora", "qlora"]  # qlora: lora on quantised matrices
Preference = Literal["dpo", "orpo", "reward"]
Reference = Literal["model", "adapters_off", "precomputed"]
VisionTraining = Literal["frozen", "projector", "all"]
DataShape = Literal["auto", "text", "prompt", "messages"]


class DataSpec(BaseModel):
    """Where the samples are and what shape they have."""

    model_config = FROZEN

    train: str = Field(description="JSONL or Parquet file.")
    validation: str | None = Field(default=None, description="JSONL or Parquet file.")
    validation_fraction: float = Field(
        default=0.0, ge=0, lt=1, description="Share of `train` held out where `validation` is none."
    )
    shape: DataShape = Field(
        default="auto",
        description="Keys of a row: `text`; `prompt` and `completion`, or as Alpaca and Dolly name "
        "them; `messages`, or `conversations`.",
    )


class Workload(BaseModel):
    """What is to be computed, independent of where."""

    model_config = FROZEN

    sequence_length: int = Field(ge=1, description="Tokens per sample.")
    global_batch_size: int = Field(ge=1, description="Samples per optimizer step.")
    precision: Precision = Field(
        default="bf16", description="Type of weights and activations in forward and backward."
    )
    optimizer: Optimizer = Field(
        default="adamw",
        description="Optimizer that updates the trained weights; `adamw_8bit` and `paged_adamw_*` "
        "are those of bitsandbytes, with moments in 8 bits, or in pages that leave for RAM.",
    )
    learning_rate: float = Field(gt=0, lt=10, description="Peak learning rate of the schedule.")
    weight_decay: float = Field(
        default=0.0, ge=0, lt=1, description="Decoupled weight decay of the optimizer."
    )
    gradient_clipping: float = Field(default=1.0, ge=0, description="Largest norm; 0: none.")
    method: Method = Field(
        default="full", description="Which weights train: all of them, or adapters."
    )
    lora: LoraSpec | None = Field(
        default=None, description="Adapters, with method `lora`; none: all weights train."
    )
    preference: Preference | None = Field(
        default=None,
        description="Preference training: a sample is a pair of sequences, one chosen and one "
        "rejected. `dpo` compares with a frozen reference model, `orpo` (also SimPO, CPO) has "
        "none, `reward` trains a score in place of the output head. None: next-token loss.",
    )
    reference: Reference | None = Field(
        default=None,
        description="Reference of `dpo`: a second `model`, the base with `adapters_off`, or log "
        "probabilities `precomputed` before the run. None: adapters_off with LoRA, else model.",
    )
    image_tokens: int = Field(
        default=0,
        ge=0,
        description="Tokens of a sample that come from images; a vision tower computes their "
        "patches.",
    )
    vision_training: VisionTraining = Field(
        default="frozen",
        description="What trains of a vision tower: nothing, the `projector` that leads to the "
        "language model, or `all` of both; with LoRA the tower carries adapters.",
    )
    document_length: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of a document that shares a packed sample with others, and attends to "
        "itself alone (variable-length attention kernels). None: a sample is one document.",
    )
    tokens: int | None = Field(default=None, ge=1, description="Training tokens of the whole run.")
    epochs: float | None = Field(default=None, gt=0, description="Passes over the data.")
    samples: int | None = Field(
        default=None,
        ge=1,
        description="Number of training rows; only for runs of a number of epochs.",
    )
    data: DataSpec | None = Field(
        default=None, description="Samples to train on; none: they are named later."
    )
    seed: int = Field(default=42, ge=0, description="Seed of weights, adapters and data order.")

    @property
    def optimizer_states(self) -> OptimizerStates | None:
        """How bitsandbytes stores the moments of AdamW; none: they are torch's or DeepSpeed's."""
        return LOW_BIT.get(self.optimizer)

    @property
    def base(self) -> BaseFormat | None:
        """Format of quantised frozen matrices (QLoRA); none where nothing is quantised."""
        return self.lora.frozen_format if self.method == "lora" and self.lora is not None else None

    @property
    def is_quantised(self) -> bool:
        """Whether the frozen matrices are quantised (QLoRA)."""
        return self.base is not None

    @property
    def has_head(self) -> bool:
        """Whether there are logits: a reward model has a score instead."""
        return self.preference != "reward"

    @property
    def compares_with(self) -> Reference | None:
        """Reference of the loss; none where it has none."""
        if self.preference != "dpo":
            return None
        return self.reference or ("adapters_off" if self.method == "lora" else "model")

    @property
    def has_reference_model(self) -> bool:
        """Whether the weights of a second model are held."""
        return self.compares_with == "model"

    @property
    def has_reference_pass(self) -> bool:
        """Whether each micro step has a forward pass of the reference."""
        return self.compares_with in ("model", "adapters_off")

    @property
    def trains_head(self) -> bool:
        """Whether the output head has gradients."""
        if not self.has_head:
            return False
        return self.method == "full" or (
            self.lora is not None and "head" in self.lora.modules_to_save
        )

    @property
    def adapts(self) -> tuple[AdapterTarget, ...]:
        """Matrices whose inputs backward needs: all, or those that carry adapters."""
        return ALL_LINEAR if self.method == "full" or self.lora is None else self.lora.targets

    @property
    def method_name(self) -> MethodName:
        """What people call the method: full, lora or qlora."""
        return "qlora" if self.is_quantised else self.method

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample: of both sequences of a pair."""
        return self.sequence_length * (2 if self.preference else 1)

    @property
    def attended_length(self) -> int:
        """Tokens within which attention stays: of a document, or of a sequence."""
        return min(self.sequence_length, self.document_length or self.sequence_length)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sample_tokens * self.global_batch_size

    @property
    def steps(self) -> int | None:
        """Optimizer steps for the token budget; none where there is no budget."""
        return None if self.tokens is None else max(1, round(self.tokens / self.tokens_per_step))
