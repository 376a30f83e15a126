"""Layers that carry a state along the sequence: state-space models, linear attention, convolutions.

Their memory and work grow with the tokens of a sample, not with pairs of tokens: there are no keys
and values to keep and no scores.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.specs.frozen import FROZEN

RecurrentKind = Literal["mamba", "mamba2", "gated_delta", "short_conv"]
Mixer = Literal["attention", "recurrent", "both", "none"]
Mlp = Literal["dense", "moe", "none"]


class RecurrentSpec(BaseModel):
    """The recurrent part of a layer.

    `mamba`: selective state space (arXiv:2312.00752); `mamba2`: state space duality
    (arXiv:2405.21060); `gated_delta`: gated delta rule (arXiv:2412.06464); `short_conv`: gated
    short convolution (LFM2).
    """

    model_config = FROZEN

    kind: RecurrentKind = Field(
        description="Recurrence: mamba, mamba2, gated_delta (linear attention) or short_conv."
    )
    heads: int = Field(default=1, ge=1, description="Heads, each with a state of its own.")
    head_size: int = Field(ge=1, description="Width of the values of one head.")
    groups: int = Field(
        default=1, ge=1, description="Groups of heads that share keys and queries (B and C)."
    )
    state_size: int = Field(
        default=1, ge=1, description="Elements of the state for one value; of a key, gated_delta."
    )
    in_projections: int = Field(
        default=1, ge=1, description="Matrices that the input projection consists of."
    )
    conv_kernel: int = Field(ge=1, description="Tokens that the convolution looks back.")
    conv_bias: bool = Field(default=False, description="The convolution has a bias.")
    in_bias: bool = Field(default=False, description="The input projection has a bias.")
    out_bias: bool = Field(default=False, description="The output projection has a bias.")
    time_step_rank: int = Field(
        default=0, ge=0, description="Rank of mamba's time step; 0: a time step for each head."
    )
    inner_norm: Literal["head", "full"] | None = Field(
        default=None, description="Norm before the output projection, by head or in full; none: no."
    )
    state_norms: bool = Field(
        default=False, description="Time step, B and C are normalized (Jamba)."
    )
    chunk_size: int = Field(
        default=1, ge=1, description="Tokens that a kernel processes at once as matrix products."
    )

    @property
    def width(self) -> int:
        """Elements of the values of all heads."""
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Elements of the keys (B), and of the queries (C), of all groups."""
        return self.groups * self.state_size

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: values, and keys and queries where they pass it."""
        beside = 2 * self.key_width if self.kind in ("mamba2", "gated_delta") else 0
        return self.width + beside
