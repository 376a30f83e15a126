"""DsConfig: what a DeepSpeed config says about the strategy, typed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from dsforge.zero_stages import FULLY_SHARDED, Offload, ZeroStage

Precision = Literal["bf16", "fp16", "fp32"]
Partition = str | tuple[int, ...]

BALANCED = "parameters"  # stages of equally many parameters; DeepSpeed's own word for it
PARTITIONS = (BALANCED, "best", "uniform")


class BucketKeys(NamedTuple):
    """Elements of ZeRO's buffers as written; none where the trainer fills `auto` in.

    Defaults are those of the engine (`runtime/zero/config.py`, `DeepSpeedZeroConfig`).
    """

    reduce_bucket_size: int | None = 500_000_000
    allgather_bucket_size: int | None = 500_000_000
    prefetch_bucket_size: int | None = 50_000_000
    persistence_threshold: int | None = 100_000
    max_live_parameters: int | None = 1_000_000_000
    max_reuse_distance: int | None = 1_000_000_000
    sub_group_size: int | None = 1_000_000_000


class DsConfig(NamedTuple):
    """One DeepSpeed config. None means that the file leaves a value open, or `auto`."""

    train_batch_size: int | None = None
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    precision: Precision | None = "fp32"
    bf16_masters: bool = False  # bf16.bf16_master_weights_and_grads
    bf16_moments: bool = False  # bf16.bf16_optimizer_states
    gradient_type: Precision | None = None  # data_types.grad_accum_dtype; none: as precision
    communication_type: Precision | None = None  # communication_data_type; none: as precision
    optimizer: str = ""  # optimizer.type as written
    optimizer_parameters: Mapping[str, Any] = MappingProxyType({})
    any_cpu_optimizer: bool = False  # optimizers without a CPU version may be offloaded
    zero_stage: ZeroStage | None = 0
    offload_optimizer: Offload | None = "none"
    offload_parameters: Offload | None = "none"
    offload_ratio: float = 1.0  # share of the optimizer that is offloaded
    swap_folder: str | None = None  # nvme_path of what is on NVMe
    bucket_keys: BucketKeys = BucketKeys()
    overlap_comm: bool | None = None  # none: the engine's default, which follows the stage
    reduce_scatter: bool = True
    hpz_partition_size: int = 1
    quantized_weights: bool = False
    quantized_gradients: bool = False
    tensor_parallel_size: int = 1
    splits_vocabulary: bool = False  # tensor_parallel.vocab_parallel_lm_head
    pipeline_stages: int = 1
    partition: Partition = BALANCED
    checkpointed_layers: int = 0  # pipeline.activation_checkpoint_interval
    sequence_parallel_size: int = 1

    @property
    def optimizer_name(self) -> str:
        """The optimizer in small letters, as the engine compares it."""
        return self.optimizer.lower()

    @property
    def shards_parameters(self) -> bool:
        """Whether each rank holds a part of every parameter (ZeRO stage 3)."""
        return self.zero_stage == FULLY_SHARDED

    @property
    def swaps(self) -> bool:
        """Whether anything lies on NVMe."""
        return "nvme" in (self.offload_optimizer, self.offload_parameters)

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica together: tensor x pipeline x sequence."""
        return self.tensor_parallel_size * self.pipeline_stages * self.sequence_parallel_size

    def replicas(self, world_size: int) -> int:
        """Data-parallel ranks among so many, at least one.

        DeepSpeed `DeepSpeedConfig.__init__`: `world_size` of the batch product is that of the
        mpu's data-parallel group, under Ulysses that of all ranks over those of a sequence.
        """
        return max(1, world_size // self.model_ranks)

    @property
    def bf16_states(self) -> bool:
        """Whether master weights, their gradients and moments are in bf16."""
        return self.bf16_masters and self.bf16_moments and self.precision == "bf16"

    @property
    def sums_in_fp32(self) -> bool:
        """Whether gradients of a half precision are summed in float32 (`get_data_types`)."""
        return self.gradient_type == "fp32" and self.precision != "fp32"

    @property
    def sends_fp32(self) -> bool:
        """Whether gradients of a half precision are sent in float32."""
        return self.communication_type == "fp32" and self.precision != "fp32"

    @property
    def overlaps(self) -> bool:
        """Whether gradients are reduced beside backward.

        By default under ZeRO-3 only (`DeepSpeedZeroConfig.overlap_comm_valid`), and never under
        pipelines (`_configure_zero_optimizer`).
        """
        wanted = self.shards_parameters if self.overlap_comm is None else self.overlap_comm
        return wanted and self.pipeline_stages == 1
