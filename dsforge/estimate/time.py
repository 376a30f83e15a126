"""Step time: seconds of one optimizer step, term by term."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN
from dsforge.units import Interval


class TimeTerms(BaseModel):
    """Likely seconds of one optimizer step on the slowest rank; the sum is the step."""

    model_config = FROZEN

    compute_s: float = Field(ge=0, description="Forward, backward, recomputation.")
    communication_s: float = Field(ge=0, description="Collectives that nothing hides.")
    bubble_s: float = Field(ge=0, description="Idle pipeline stages.")
    offload_s: float = Field(ge=0, description="Copies to host and NVMe that nothing hides.")
    optimizer_s: float = Field(ge=0, description="The optimizer step itself.")


class TimeEstimate(BaseModel):
    """How fast one strategy runs."""

    model_config = FROZEN

    terms: TimeTerms
    step_s: Interval
    tokens_per_s_per_gpu: float = Field(gt=0)
    model_tflops_per_gpu: float = Field(gt=0, description="Useful TFLOP/s, recompute not counted.")
    sent_bytes: int = Field(ge=0, description="Bytes that one rank sends in one step.")
