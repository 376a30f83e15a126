"""DsConfig: what a DeepSpeed config says about the strategy, typed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from dsforge.estimate.buckets import ENGINE, PERSISTENT_PER_HIDDEN
from dsforge.strategy import FULLY_SHARDED, Buckets, Offload, ZeroStage

Precision = Literal["bf16", "fp16", "fp32"]
Partition = str | tuple[int, ...]

BALANCED = "parameters"  # stages of equally many parameters; DeepSpeed's own word for it
PARTITIONS = (BALANCED, "best", "uniform")
PREFETCHED = 0.9  # of hidden x hidden: transformers' rule for `auto`


class BucketKeys(NamedTuple):
    """Elements of ZeRO's buffers as written; none where the trainer fills `auto` in."""

    reduce_bucket_size: int | None = ENGINE.reduce_bucket_size
    allgather_bucket_size: int | None = ENGINE.allgather_bucket_size
    prefetch_bucket_size: int | None = ENGINE.prefetch_bucket_size
    persistence_threshold: int | None = ENGINE.persistence_threshold
    max_live_parameters: int | None = ENGINE.max_live_parameters
    max_reuse_distance: int | None = ENGINE.max_reuse_distance
    sub_group_size: int | None = ENGINE.sub_group_size


class DsConfig(NamedTuple):
    """One DeepSpeed config. None means that the file leaves a value open, or `auto`."""

    train_batch_size: int | None = None
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    precision: Precision | None = "fp32"
    gradient_type: Precision | None = None  # data_types.grad_accum_dtype; none: as precision
    communication_type: Precision | None = None  # communication_data_type; none: as precision
    optimizer: str = ""  # optimizer.type as written
    optimizer_parameters: Mapping[str, Any] = MappingProxyType({})
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
    def sums_in_fp32(self) -> bool:
        """Whether gradients of a half precision are summed in float32 (`get_data_types`)."""
        return self.gradient_type == "fp32" and self.precision != "fp32"

    def buckets(self, hidden_size: int) -> Buckets:
        """ZeRO's buffers as the engine gets them.

        `auto` as transformers fills it in (`trainer_config_finalize`): hidden^2, 0.9 of it for the
        prefetch, 10 x hidden for what stays whole. The engine overlaps by default under ZeRO-3
        only (`DeepSpeedZeroConfig.overlap_comm_valid`), and never under pipelines
        (`_configure_zero_optimizer`).
        """
        overlaps = self.shards_parameters if self.overlap_comm is None else self.overlap_comm
        square = hidden_size**2
        automatic = {
            "reduce_bucket_size": square,
            "prefetch_bucket_size": int(PREFETCHED * square),
            "persistence_threshold": PERSISTENT_PER_HIDDEN * hidden_size,
        }
        written = self.bucket_keys._asdict()
        sizes = {
            name: automatic.get(name, getattr(ENGINE, name)) if size is None else size
            for name, size in written.items()
        }
        return Buckets(**sizes, overlap_comm=overlaps and self.pipeline_stages == 1)
