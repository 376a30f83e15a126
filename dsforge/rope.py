"""How rotary position embeddings are stretched for long sequences: the names of Hugging Face."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RopeScaling(BaseModel):
    """How rotary frequencies are stretched for long sequences; Hugging Face names."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: str = Field(description="`rope_type`: llama3, yarn, linear, dynamic, longrope, ...")
    factor: float = Field(default=1.0, gt=0, description="How many times longer sequences become.")
    original_max_position_embeddings: int = Field(
        default=8192, ge=1, description="Longest sequence before scaling, tokens."
    )
    low_freq_factor: float = Field(
        default=1.0,
        gt=0,
        description="llama3: wavelengths above original length / this are scaled in full.",
    )
    high_freq_factor: float = Field(
        default=4.0,
        gt=0,
        description="llama3: wavelengths below original length / this are not scaled.",
    )
    beta_fast: float = Field(
        default=32.0,
        gt=0,
        description="yarn: rotations per original length from which nothing is scaled.",
    )
    beta_slow: float = Field(
        default=1.0,
        gt=0,
        description="yarn: rotations per original length up to which all is scaled.",
    )
    mscale: float = Field(default=1.0, ge=0, description="yarn: factor of attention's temperature.")
    mscale_all_dim: float = Field(
        default=0.0, ge=0, description="yarn: factor of attention's temperature in every dimension."
    )
