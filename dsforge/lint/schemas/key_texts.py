"""What the keys of a ds_config do, one sentence each, for editors: hovers and JSON schemas.

Read from the source of DeepSpeed 0.19.8; `zero` is `zero_optimization`. Keys without a sentence are
shown with their type alone.
"""

from __future__ import annotations

from functools import cache

TEXT = """
train_batch_size: Samples per optimizer step: micro batch x accumulation x ranks.
train_micro_batch_size_per_gpu: Samples that each data-parallel rank processes in one forward pass.
gradient_accumulation_steps: Micro batches whose gradients are summed before an optimizer step.
gradient_clipping: Largest norm of the gradients; larger ones are scaled down. 0 switches it off.
gradient_predivide_factor: Gradients are divided by this before they are reduced.
prescale_gradients: Divides gradients by the number of ranks before they are reduced.
sparse_gradients: Sends gradients of embeddings as sparse tensors.
steps_per_print: Steps between two lines of progress in the log; null switches them off.
wall_clock_breakdown: Times forward, backward and step; synchronises the GPU around each of them.
memory_breakdown: Prints memory at many places of a step.
dump_state: Prints the whole configuration of the engine when it starts.
communication_data_type: Type in which gradients are sent; default: the type of the weights.
sequence_parallel_size: Ranks that share each sequence (Ulysses).
zero_allow_untested_optimizer: Accepts optimizers with which ZeRO was not tested.
zero_force_ds_cpu_optimizer: Requires DeepSpeed's own optimizer where it is offloaded.
dataloader_drop_last: Drops the last, incomplete batch of DeepSpeed's own data loader.
disable_allgather: Read by no optimizer.
optimizer: The optimizer that DeepSpeed creates; none: the program brings one.
optimizer.type: Name of DeepSpeed's or torch's optimizer.
optimizer.params: Arguments of the optimizer's constructor, passed on unchanged.
scheduler: The learning-rate schedule that DeepSpeed creates.
scheduler.type: LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR, or one of torch's.
scheduler.params: Arguments of the schedule's constructor, passed on unchanged.
fp16: Training in fp16, with loss scaling.
fp16.enabled: Switches fp16 on.
fp16.auto_cast: Casts inputs of the model to fp16.
fp16.loss_scale: Fixed loss scale; 0: dynamic.
fp16.initial_scale_power: The dynamic scale begins at 2 to this power; each overflow halves it.
fp16.loss_scale_window: Steps without an overflow before the scale is doubled.
fp16.hysteresis: Overflows before the scale is halved.
fp16.consecutive_hysteresis: Restores the hysteresis after each step without an overflow.
fp16.min_loss_scale: Least value of the dynamic scale.
bf16: Training in bf16; needs no loss scaling.
bf16.enabled: Switches bf16 on.
bf16.immediate_grad_update: Adds each gradient to the fp32 copy as soon as it is computed.
bf16.check_grad_overflow: Looks for NaN and inf in the gradients of each step.
bf16.bf16_master_weights_and_grads: Keeps master weights and gradients in bf16, not fp32.
bf16.bf16_optimizer_states: Keeps optimizer moments in bf16; needs bf16 master weights.
data_types.grad_accum_dtype: Type in which gradients are accumulated.
torch_autocast: Mixed precision by torch.autocast, with fp32 weights.
zero_optimization: Shards optimizer states, gradients and parameters over the ranks.
zero.stage: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too are sharded.
zero.contiguous_gradients: Copies gradients into one buffer as they are computed.
zero.reduce_scatter: Reduces each gradient to its owner only, instead of to all ranks.
zero.reduce_bucket_size: Elements of gradients that are reduced in one message.
zero.allgather_bucket_size: Elements of weights that are gathered in one message.
zero.allgather_partitions: Read by no optimizer.
zero.overlap_comm: Communicates during computation; takes a second bucket.
zero.offload_optimizer: Keeps optimizer states in RAM or on NVMe, and steps on the CPU.
zero.offload_optimizer.device: none, cpu, or nvme (ZeRO stage 3 only).
zero.offload_optimizer.nvme_path: Folder on the NVMe disk of each node.
zero.offload_optimizer.pin_memory: Page-locked RAM: faster copies.
zero.offload_optimizer.ratio: Share of the states that is offloaded (stage 3).
zero.offload_optimizer.buffer_count: Staging buffers for NVMe; at least 4 with Adam.
zero.offload_optimizer.fast_init: Initialises the states on the disk faster.
zero.offload_param: Keeps the sharded parameters in RAM or on NVMe (stage 3).
zero.offload_param.device: none, cpu or nvme.
zero.offload_param.nvme_path: Folder on the NVMe disk of each node.
zero.offload_param.pin_memory: Page-locked RAM: faster copies.
zero.offload_param.buffer_count: Staging buffers for NVMe.
zero.offload_param.buffer_size: Elements of one staging buffer for NVMe.
zero.offload_param.max_in_cpu: Elements that stay in RAM with NVMe.
zero.sub_group_size: Elements that the optimizer updates at once at stage 3.
zero.stage3_max_live_parameters: Elements that may be gathered at once.
zero.stage3_max_reuse_distance: Keeps what is used again within this many elements.
zero.stage3_prefetch_bucket_size: Elements that are gathered ahead of their use.
zero.stage3_param_persistence_threshold: Parameters below this size are not sharded.
zero.stage3_model_persistence_threshold: Most elements that stay unsharded in all.
zero.stage3_gather_16bit_weights_on_model_save: Gathers whole weights when saving.
zero.zero_hpz_partition_size: Ranks that share a second copy of the weights (ZeRO++).
zero.zero_quantized_weights: Sends weights in 8 bits (ZeRO++).
zero.zero_quantized_gradients: Sends gradients in 4 bits (ZeRO++).
zero.mics_shard_size: Ranks over which parameters are sharded (MiCS); other groups copy.
zero.round_robin_gradients: Copies gradients to RAM in turns over the ranks.
zero.ignore_unused_parameters: Skips parameters without a gradient; false stops there.
zero.elastic_checkpoint: Checkpoints for another number of ranks; not at stage 3.
activation_checkpointing: Read by models that call deepspeed.checkpointing.
activation_checkpointing.partition_activations: Shards checkpoints over the model-parallel ranks.
activation_checkpointing.cpu_checkpointing: Keeps the checkpoints in RAM.
activation_checkpointing.contiguous_memory_optimization: Keeps the checkpoints in one buffer.
activation_checkpointing.number_checkpoints: Checkpoints that the buffer must hold: the layers.
aio: How the disk is accessed for NVMe offload.
aio.block_size: Bytes of one read or write.
aio.queue_depth: Reads and writes that are under way at once.
tensor_parallel.autotp_size: Ranks that share each layer's matrices (AutoTP).
pipeline: Pipeline parallelism: stages, partition and what they exchange.
flops_profiler.enabled: Counts FLOPs of a step; also times every step.
comms_logger.enabled: Times and logs every collective.
autotuning.enabled: Lets the launcher try configurations instead of training.
elasticity: Batch sizes that fit several numbers of GPUs.
checkpoint.load_universal: Loads universal checkpoints, which are converted first.
checkpoint.use_node_local_storage: Each node writes its shards to its own disk.
data_efficiency: Curriculum learning and random layer-token drop.
compile: Settings of DeepCompile.
compile.deepcompile: Lets DeepSpeed's compiler passes schedule the communication.
"""


@cache
def key_texts() -> dict[str, str]:
    """The sentence of each key by its dotted path."""
    pairs = (line.partition(": ") for line in TEXT.strip().splitlines())
    return {path.replace("zero.", "zero_optimization.", 1): text for path, _, text in pairs}


def text_of(path: str) -> str:
    """What a key does; empty where nothing is written about it."""
    texts = key_texts()
    return texts.get(path) or texts.get(
        path.replace("optimization.", "optimization.stage3_", 1), ""
    )
