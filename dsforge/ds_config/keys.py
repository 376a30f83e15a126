"""Every key of a DeepSpeed config: priced, irrelevant to memory and time, or refused.

A test compares the table with the keys of all releases. Each entry gives a kind and a reason, and
below them the keys by dotted path, where `zero` stands for `zero_optimization` and a name that ends
in `.*` for all keys below it. A refused key is let through while it is off: `off` names the value
of the engine that is priced where that is not false, `in` the settings under which the engine reads
the key at all, and a block is on by a switch inside it unless it is on `by presence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, cast

Kind = Literal["priced", "irrelevant", "refused"]


class Treatment(NamedTuple):
    """What pricing does with a key, and why."""

    kind: Kind
    reason: str
    off: object = False  # the value that is priced
    when: str = ""  # the settings under which the engine reads the key; empty: all
    by_presence: bool = False  # a block is on without a switch inside it


ENTRIES = """
priced: changes memory or time
  train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps bf16.enabled
  bfloat16.enabled fp16.enabled data_types.grad_accum_dtype communication_data_type optimizer.type
  bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states
  bfloat16.bf16_master_weights_and_grads bfloat16.bf16_optimizer_states
  tensor_parallel.autotp_size pipeline.stages pipeline.activation_checkpoint_interval zero.stage
  zero.overlap_comm zero.reduce_bucket_size zero.sub_group_size zero.prefetch_bucket_size
  zero.stage3_prefetch_bucket_size zero.max_live_parameters zero.stage3_max_live_parameters
  zero.zero_hpz_partition_size zero.zero_quantized_weights zero.zero_quantized_gradients
  zero.cpu_offload zero.cpu_offload_param zero.offload_optimizer.device zero.offload_param.device
  zero.offload_optimizer.ratio
priced: splits sequences over ranks that are not data parallel; refused if no plan has them
  sequence_parallel_size
priced: refused if it assigns other layers to the stages than the estimate
  pipeline.partition
irrelevant: logging only
  comet.* tensorboard.* wandb.* csv_monitor.* steps_per_print log_level dump_state timers.*
irrelevant: slows only the steps that it measures; the estimate is for the others
  wall_clock_breakdown memory_breakdown comms_logger.* flops_profiler.*
irrelevant: saving and loading, between steps
  checkpoint.* datastates_ckpt nebula.* zero.elastic_checkpoint zero.load_from_fp32_weights
  zero.pipeline_loading_checkpoint zero.gather_16bit_weights_on_model_save
  zero.stage3_gather_16bit_weights_on_model_save zero.stage3_gather_fp16_weights_on_model_save
irrelevant: scale factors, whose values do not change the work
  scheduler.* optimizer.params gradient_clipping gradient_predivide_factor prescale_gradients
  gradient_allreduce_op
irrelevant: only for Lamb, which is not supported by the estimate
  optimizer.legacy_fusion
irrelevant: loss scaling, overflow check and norm are part of the fixed overhead of a step
  fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis
  fp16.consecutive_hysteresis fp16.min_loss_scale fp16.auto_cast bf16.check_grad_overflow
  bfloat16.check_grad_overflow zero.compute_grad_norm
irrelevant: must be the type of fp16 or bf16 (_assert_valid_mixed_precision_config)
  data_types.param_dtype
irrelevant: buffers of a transformer, such as rotary frequencies: kilobytes
  data_types.buffer_dtype data_types.keep_in_fp32_modules
irrelevant: read by deepspeed.checkpointing; transformers uses torch's, see --recompute
  activation_checkpointing.*
irrelevant: seeds, the recomputation method, and what tensor parallel ranks of a stage share
  pipeline.seed_layers pipeline.use_reentrant pipeline.pipe_partitioned pipeline.grad_partitioned
irrelevant: how the disk is accessed; its rates are those of `nvme` in the cluster file
  aio.* zero.offload_optimizer.nvme_path zero.offload_param.nvme_path
irrelevant: staging buffers of NVMe in RAM, small compared with the offloaded data
  zero.offload_optimizer.buffer_count zero.offload_param.buffer_count
  zero.offload_param.buffer_size zero.offload_param.max_in_cpu zero.offload_optimizer.fast_init
  zero.save_muon_momentum_buffer_in_memory
irrelevant: host memory is counted as pinned, the larger case
  zero.offload_optimizer.pin_memory zero.offload_param.pin_memory zero.cpu_offload_use_pin_memory
irrelevant: only for SuperOffload, which is refused
  zero.offload_optimizer.cpuadam_cores_perc
irrelevant: updated weights are gathered in place, in messages of the reduce bucket
  zero.allgather_bucket_size allgather_size
irrelevant: norms and biases, which are not sharded under any usual value
  zero.param_persistence_threshold zero.model_persistence_threshold
  zero.stage3_param_persistence_threshold zero.stage3_model_persistence_threshold
irrelevant: a second limit on the memory that max_live_parameters bounds
  zero.max_reuse_distance zero.stage3_max_reuse_distance
irrelevant: the number of hooks: work of the host
  zero.module_granularity_threshold zero.stage3_module_granularity_threshold
irrelevant: not passed to any optimizer (_configure_zero_optimizer)
  zero.allgather_partitions disable_allgather
irrelevant: pads each parameter to 16 bytes
  zero.parameter_alignment
irrelevant: the order in which the same bytes are copied
  zero.round_robin_gradients
irrelevant: checks and permissions
  zero.ignore_unused_parameters zero.override_module_apply zero.log_trace_cache_warnings
  zero.enable_sanity_checks zero.legacy_stage1 zero_allow_untested_optimizer
  zero_force_ds_cpu_optimizer
irrelevant: affects the program outside of the steps
  dataloader_drop_last disable_python_gc managed_gradient_accumulation vocabulary_size
  use_data_before_expert_parallelism
irrelevant: must agree with autotp_size, or concerns loading
  tensor_parallel.dtype tensor_parallel.tp.* tensor_parallel.tensor_parallel.*
  tensor_parallel.keep_module_on_host tensor_parallel.preset_model
  tensor_parallel.vocab_parallel_ce_backend
refused (off: fp32, in sequence parallelism): gradients sent in another type than float32
  seq_parallel_comm_data_type seq_parallel_communication_data_type
refused: states in fp16
  fp16.fp16_master_weights_and_grads
refused: gradients freed during backward
  bf16.immediate_grad_update bfloat16.immediate_grad_update
refused: mixed precision other than bf16 and fp16
  torch_autocast.* amp.*
refused: DeepCompile changes what is gathered and kept
  compile.*
refused: generation between steps
  hybrid_engine.*
refused: expert parallelism of DeepSpeed
  expert_parallel.*
refused: compression and quantisation during training
  compression_training.* quantize_training.* eigenvalue.*
refused: skipped layers or tokens
  progressive_layer_drop.* curriculum_learning.* data_efficiency.*
refused: sparse or captured kernels
  sparse_gradients graph_harvesting
refused (by presence): attention over blocks
  sparse_attention.*
refused (by presence): quantised weights
  weight_quantization.*
refused: batch sizes that the engine chooses itself
  elasticity.* autotuning.*
refused (off: true, in stage 1 or 2): gradients without a bucket
  zero.contiguous_gradients
refused (off: true, in stage 1 or 2): a reduction to each owner
  zero.use_multi_rank_bucket_allreduce
refused (off: true, in stage 3 without Muon): gradients that are all-reduced
  zero.reduce_scatter
refused (in stage 3): weights gathered one by one
  zero.allgather_sequential zero.stage3_allgather_sequential
refused (in stage 3): weights gathered by all-reduce
  zero.use_all_reduce_for_fetch_params zero.stage3_use_all_reduce_for_fetch_params
refused (off: true, in stage 3): linear layers that hold gathered weights
  zero.memory_efficient_linear
refused (in stage 3): frozen weights stored in 8 bits
  zero.zero_quantized_nontrainable_weights
refused (off: -1, in stage 3): MiCS shards in groups of ranks
  zero.mics_shard_size zero.mics_hierarchical_params_gather
refused (in stage 3): error feedback of LoCo
  zero.zeropp_loco_param
refused (in stage 3, by presence): modules gathered as one
  zero.leaf_module.*
refused (by presence): ZenFlow splits the step
  zero.zenflow.*
refused (in an offloaded optimizer): SuperOffload splits the step
  zero.offload_optimizer.super_offload
refused (in NVMe): a step that overlaps with the disk
  zero.offload_optimizer.pipeline_read zero.offload_optimizer.pipeline_write
refused (in tensor parallelism): all-reduces beside products
  tensor_parallel.tp_overlap_comm
refused (in tensor parallelism): logits split over ranks
  tensor_parallel.vocab_parallel_lm_head
refused (in tensor parallelism): layers sharded in another way
  tensor_parallel.partition_config tensor_parallel.injection_policy_tuple
  tensor_parallel.replace_with_kernel_inject tensor_parallel.kernel_inject
"""
OFF: dict[str, object] = {"true": True, "-1": -1, "fp32": "fp32"}


def _rows() -> Iterator[tuple[str, Treatment]]:
    treated = Treatment("refused", "")
    for line in ENTRIES.strip().splitlines():
        if line.startswith(" "):
            for key in line.split():
                yield key.replace("zero.", "zero_optimization.", 1), treated
            continue
        head, _, reason = line.partition(": " if "(" not in line.partition(":")[0] else "): ")
        kind, _, how = head.partition(" (")
        words = dict.fromkeys(how.rstrip(")").split(", "))
        treated = Treatment(
            cast("Kind", kind),
            reason,
            next((OFF[w.removeprefix("off: ")] for w in words if w.startswith("off: ")), False),
            next((w.removeprefix("in ") for w in words if w.startswith("in ")), ""),
            "by presence" in words,
        )


TABLE: dict[str, Treatment] = dict(_rows())
# Blocks whose keys differ in their treatment.
BLOCKS = {path.rpartition(".")[0] for path in TABLE if not path.endswith(".*")} - {""}
# Of these, those that refuse keys that they do not know; of others the engine asks for its own.
CLOSED = (
    *("bf16", "bfloat16", "fp16", "tensor_parallel", "zero_optimization"),
    *("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
)


def treatment(path: str) -> Treatment | None:
    """What pricing does with the key at a dotted path; none where no release has such a key.

    A block has no treatment of its own where its keys differ in theirs.
    """
    if path in TABLE:
        return TABLE[path]
    while path:
        if f"{path}.*" in TABLE:
            return TABLE[f"{path}.*"]
        path = path.rpartition(".")[0]
    return None
