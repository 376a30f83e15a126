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


class LayerSplit(NamedTuple):
    """How many layers the first pipeline stage holds, each stage between, and the last."""

    first: int
    middle: int
    last: int
    ends_count: bool = False  # embedding and head take the place of a layer each

    def interleaves(self, chunks: int) -> bool:
        """Whether every stage can be cut into so many equal chunks."""
        if self.ends_count:
            return self.middle % chunks == 0
        whole = not (self.first % chunks or self.middle % chunks or self.last % chunks)
        return chunks == 1 or (whole and self.even)

    @property
    def even(self) -> bool:
        """Whether all stages hold the same."""
        return self.first == self.middle == self.last

    def of_stages(self, stages: int) -> tuple[int, ...]:
        """Layers of each of so many stages, in order."""
        if stages == 1:
            return (self.first,)
        return (self.first, *(self.middle,) * (stages - 2), self.last)


def layer_split(layers: int, stages: int) -> LayerSplit | None:
    """How layers fall on pipeline stages; none where a stage would stay empty.

    Evenly; else with embedding and head as a layer each, where that divides (Megatron's
    `--account-for-embedding-in-pipeline-split` and its sister: BLOOM, Llama 3.1); else whatever the
    full stages leave goes to both ends, less to the last, which has the head.
    """
    if stages > layers:
        return None
    if layers % stages == 0:
        return LayerSplit(*(layers // stages,) * 3)
    share = (layers + 2) // stages
    if (layers + 2) % stages == 0 and share > 1:
        return LayerSplit(share - 1, share, share - 1, ends_count=True)
    full = -(-layers // stages)
    left = layers - full * (stages - 2)
    return LayerSplit(left - left // 2, full, left // 2) if left > 1 else None


class Layout(BaseModel):
    """How many ranks share each axis; the product of all but the experts is the world size."""

    model_config = FROZEN

    data_parallel_size: int = Field(
        default=1, ge=1, description="Data parallel size: replicas of the sharded model."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, description="Tensor parallel size: ranks that share each layer's matrices."
    )
    pipeline_parallel_size: int = Field(
        default=1, ge=1, description="Pipeline parallel size: stages along the layers."
    )
    context_parallel_size: int = Field(
        default=1, ge=1, description="Context parallel size: ranks that share one sequence."
    )
    expert_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Expert parallel size: ranks that share the experts, part of the "
        "data-parallel ranks.",
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
            raise ValueError(f"rank (={rank}) must be in 0..{self.world_size - 1}")
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
