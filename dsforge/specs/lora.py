"""Adapters, and the frozen matrices under them: formats, and the kernels that compute on them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from dsforge.specs.frozen import FROZEN

FrozenBits = Literal[2, 3, 4, 8, 16]
QLORA_BITS: FrozenBits = 4
WHOLE_BITS: FrozenBits = 16  # not quantised
BaseFormat = Literal["nf4", "fp4", "int8", "gptq", "awq"]
GptqKernel = Literal["torch", "triton", "exllama"]
QuantStorage = Literal["uint8", "bf16", "fp16", "fp32"]
AdapterTarget = Literal["query", "key", "value", "output", "gate", "up", "down"]
SavedModule = Literal["embedding", "head"]
ALL_LINEAR: tuple[AdapterTarget, ...] = ("query", "key", "value", "output", "gate", "up", "down")
BITSANDBYTES_4_BIT: tuple[BaseFormat, ...] = ("nf4", "fp4")
BITSANDBYTES: tuple[BaseFormat, ...] = (*BITSANDBYTES_4_BIT, "int8")
# Bits that a format exists in; the first ones are meant where none are given.
FORMAT_BITS: dict[BaseFormat, tuple[FrozenBits, ...]] = {
    "nf4": (4,),
    "fp4": (4,),
    "int8": (8,),
    "gptq": (4, 2, 3, 8),
    "awq": (4,),
}
FORMAT_OF_BITS: dict[FrozenBits, BaseFormat] = {4: "nf4", 8: "int8"}  # where no format is named

# Settings of some formats alone, each with those formats.
_ONLY_OF: dict[str, tuple[BaseFormat, ...]] = {
    "kernel": ("gptq",),
    "group_size": ("gptq", "awq"),
    "double_quant": BITSANDBYTES_4_BIT,
    "quant_storage": BITSANDBYTES_4_BIT,
    "upcast": ("nf4", "fp4", "int8"),
}


class LoraSpec(BaseModel):
    """Low-rank adapters on the attention and MLP matrices."""

    model_config = FROZEN

    rank: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="Rank of the adapters: width between their two matrices.",
    )
    alpha: float = Field(
        default=32.0, gt=0, description="Scale of the adapters, multiplied by 1 / rank."
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the adapters' inputs that is dropped in training.",
    )
    bits: FrozenBits = Field(
        default=16,
        description="Bits of an element of the frozen matrices; 4: QLoRA, 16: not quantised.",
    )
    base: BaseFormat | None = Field(
        default=None,
        description="Format of the frozen matrices: bitsandbytes' nf4, fp4 or int8 (LLM.int8), "
        "GPTQ or AWQ; none: nf4 with 4 bits, int8 with 8.",
    )
    double_quant: bool = Field(
        default=True,
        description="The scales of nf4 and fp4 are quantised too (0.127 bits an element, not 0.5).",
    )
    group_size: int = Field(
        default=128,
        ge=16,
        le=65536,
        description="Elements that share a scale and a zero point in GPTQ and AWQ.",
    )
    kernel: GptqKernel = Field(
        default="torch",
        description="Kernels on a GPTQ base: `torch` unpacks with torch's operations (AutoGPTQ's "
        "cuda and cuda-old), `triton` in one kernel; `exllama` does not train.",
    )
    quant_storage: QuantStorage | None = Field(
        default=None,
        description="Type in which 4-bit matrices are stored (`bnb_4bit_quant_storage`); none: "
        "uint8, or the compute precision where ZeRO stage 3 shards them.",
    )
    upcast: bool = Field(
        default=False,
        description="Norms, embedding and head are kept in fp32, and so is what passes between "
        "layers (peft's `prepare_model_for_kbit_training`); not with DeepSpeed, which casts them.",
    )
    targets: tuple[AdapterTarget, ...] = Field(
        default=ALL_LINEAR,
        min_length=1,
        max_length=len(ALL_LINEAR),
        description="Matrices of attention and MLP that carry adapters (peft's `target_modules`).",
    )
    modules_to_save: tuple[SavedModule, ...] = Field(
        default=(),
        max_length=2,
        description="Modules that train as a whole beside the adapters, as copies of the frozen "
        "ones: the word embedding, the output head.",
    )

    @model_validator(mode="before")
    @classmethod
    def _bits_of_base(cls, values: Any) -> Any:
        """A format without bits has its usual ones."""
        if not isinstance(values, dict) or values.get("bits") is not None:
            return values
        bits = FORMAT_BITS.get(values.get("base") or "nf4")
        return {**values, "bits": bits[0]} if values.get("base") and bits else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse bits that the format does not exist in, and kernels that do not train."""
        if self.base is None and self.bits not in (WHOLE_BITS, *FORMAT_OF_BITS):
            raise ValueError(f"`bits` (={self.bits}) requires `base` gptq; set it, or use 4 or 8")
        known = () if self.base is None else FORMAT_BITS[self.base]
        if known and self.bits not in known:
            text = " or ".join(str(bits) for bits in sorted(known))
            raise ValueError(f"`bits` (={self.bits}) must be {text} with `base` (={self.base})")
        found = self.frozen_format
        if found is None and "bits" not in self.model_fields_set:
            found = FORMAT_OF_BITS[QLORA_BITS]  # a workload's `method: qlora` may still mean it
        for name, bases in _ONLY_OF.items():
            usual = type(self).model_fields[name].default
            if getattr(self, name) != usual and found not in bases:
                text = f"`{name}` requires `base` {bases[0]} (got {self.frozen_format})"
                raise ValueError(text)
        return self

    @property
    def is_on_all(self) -> bool:
        """Whether every matrix of attention and MLP carries adapters."""
        return set(self.targets) == set(ALL_LINEAR)

    @property
    def frozen_format(self) -> BaseFormat | None:
        """Format of the frozen matrices; none where they are not quantised."""
        of_bits = (base for bits, base in FORMAT_OF_BITS.items() if bits == self.bits)
        return self.base or next(of_bits, None)
