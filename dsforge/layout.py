"""The parallel sizes and the rank grid they span.

Ranks are one reshaped range. From slowest to fastest the axes are pipeline, data, context, tensor:
tensor ranks are neighbours and so stay inside a node, pipeline stages lie farthest apart. That is
Megatron's default order (`tp-cp-ep-dp-pp`, fastest first) and DeepSpeed's
`PipeModelDataParallelTopology` (`pipe, data, model`, slowest first).
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN


class Coordinates(NamedTuple):
    """Where a rank stands on each axis of the grid, counted from 0."""

    pipeline: int
    data: int
    context: int
    tensor: int


class Layout(BaseModel):
    """How many ranks share each axis; the product of all but the experts is the world size."""

    model_config = FROZEN

    data_parallel_size: int = Field(default=1, ge=1, description="Replicas of the sharded model.")
    tensor_parallel_size: int = Field(default=1, ge=1, description="Ranks per layer's matrices.")
    pipeline_parallel_size: int = Field(default=1, ge=1, description="Stages along the layers.")
    context_parallel_size: int = Field(default=1, ge=1, description="Ranks sharing one sequence.")
    expert_parallel_size: int = Field(
        default=1, ge=1, description="Ranks sharing the experts, taken from the data-parallel axis."
    )

    @property
    def world_size(self) -> int:
        """Ranks in the job: dp x tp x pp x cp."""
        return self.data_parallel_size * self.model_ranks

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica together: tp x pp x cp."""
        sizes = self.tensor_parallel_size, self.pipeline_parallel_size, self.context_parallel_size
        return sizes[0] * sizes[1] * sizes[2]

    @property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO shards: dp x cp, as context ranks hold the same parameters."""
        return self.data_parallel_size * self.context_parallel_size

    def coordinates(self, rank: int) -> Coordinates:
        """Grid position of a rank. Raises ValueError outside 0 <= rank < world_size."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank (={rank}) must lie in 0..{self.world_size - 1}")
        rest, tensor = divmod(rank, self.tensor_parallel_size)
        rest, context = divmod(rest, self.context_parallel_size)
        pipeline, data = divmod(rest, self.data_parallel_size)
        return Coordinates(pipeline, data, context, tensor)

    def rank(self, at: Coordinates) -> int:
        """Rank at a grid position; the inverse of `coordinates`."""
        stage = at.pipeline * self.data_parallel_size + at.data
        return (
            stage * self.context_parallel_size + at.context
        ) * self.tensor_parallel_size + at.tensor

    def label(self) -> str:
        """The sizes that are not 1, as people write them: `dp8 tp2 pp4`."""
        sizes = {
            "dp": self.data_parallel_size,
            "tp": self.tensor_parallel_size,
            "pp": self.pipeline_parallel_size,
            "cp": self.context_parallel_size,
            "ep": self.expert_parallel_size,
        }
        return " ".join(f"{key}{size}" for key, size in sizes.items() if size > 1 or key == "dp")
