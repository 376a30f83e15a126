"""One text that breaks each rule and one, as near to it as possible, that does not."""

from __future__ import annotations

from pathlib import Path

from lint_other_cases import ACCELERATE, ENVIRONMENT, HOSTS, MEGATRON, TRAINING
from lint_texts import (
    AIO,
    BF16_STATES,
    DIRTY,
    DISK,
    ETHERNET,
    FILLED,
    FP16,
    NVME,
    REMOVED,
    SMALL,
    STAGE3,
    TP2,
    VOLTA,
    Pair,
    adam,
    config,
    ds,
    lines,
    offloaded,
    scheduled,
)

SYNTAX = {
    "file-unreadable": lines("\x00\x01", ds({}), "ds_config.json"),
    "json-syntax": lines(DIRTY % ' "x": 1', DIRTY % "", "a.json"),
    "json-comment": lines(DIRTY % " /* x */", DIRTY % "", "a.json"),
    "json-trailing-comma": lines(DIRTY % ",", DIRTY % "", "a.json"),
    "json-literal": lines(DIRTY.replace("true", "True") % "", DIRTY % "", "a.json"),
    "json-number": lines(DIRTY % ', "gradient_clipping": NaN', DIRTY % "", "a.json"),
    "json-bom": lines("\ufeff" + DIRTY % "", DIRTY % "", "a.json"),
    "duplicate-key": lines(DIRTY % ', "fp16": {"enabled": false}', DIRTY % "", "a.json"),
    "too-deep": lines("[" * 60, DIRTY % "", "ds_config.json"),
    "not-a-mapping": lines("[1]", DIRTY % "", "ds_config.json"),
    "yaml-syntax": lines(
        "fp16: [", "fp16: {enabled: true}\ntrain_batch_size: 4\n", "ds_config.yaml"
    ),
    "kind-unknown": lines('{"a": 1}', ds({}), "a.json"),
}

SCHEMA = {
    "key-unknown": config({"zero.overlap_com": True}, {"zero.overlap_comm": True}),
    "key-misspelt": config({"zero_optimisation": {"stage": 3}}, {"zero.stage": 1}),
    "key-misplaced": config({"overlap_comm": True}, {"zero.overlap_comm": True}),
    "key-unread": config({"my_experiment": "x"}, {}),
    "key-removed": config({"nebula": {"enabled": True}}, {}),
    "key-too-new": config(
        {"zero.leaf_module": {"classes": ["X"]}}, {"zero.reduce_scatter": True}, release="0.16.0"
    ),
    "key-deprecated": config({"zero.cpu_offload": True}, offloaded(stage=2)),
    "block-type": config({"fp16": False}, {"fp16": {"enabled": False}}),
    "value-fraction": config(
        {**STAGE3, "zero.stage3_prefetch_bucket_size": 15099494.4},
        {**STAGE3, "zero.stage3_prefetch_bucket_size": 15099494.0},
    ),
    "value-type": config({"zero.reduce_bucket_size": "5e8"}, {"zero.reduce_bucket_size": 5e8}),
    "value-quoted": config(
        {"zero.reduce_bucket_size": "500000000"}, {"zero.reduce_bucket_size": 500000000}
    ),
    "value-truthy": config({"wall_clock_breakdown": "false"}, {"wall_clock_breakdown": False}),
    "value-range": config({"zero.reduce_bucket_size": 0}, {"zero.reduce_bucket_size": 5e8}),
    "value-choice": config({"zero.stage": 4}, {"zero.stage": 1}),
    "value-shape": config({"optimizer": {"type": True}}, {"optimizer": {"type": "AdamW"}}),
    "value-auto": config({"zero.overlap_comm": "auto"}, {"zero.reduce_bucket_size": "auto"}),
}

BATCH = {
    "batch-missing": config({"train_micro_batch_size_per_gpu": REMOVED}, {}),
    "batch-positive": config({"gradient_accumulation_steps": 0}, {}),
    "batch-product": config({"train_batch_size": 20}, {"train_batch_size": 32}),
    "batch-half-auto": config(
        {"train_batch_size": 32, "gradient_accumulation_steps": "auto"},
        {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"},
    ),
    "clipping-off": config(
        {**adam(lr=1e-4), "gradient_clipping": 0.0}, {**adam(lr=1e-4), "gradient_clipping": 1.0}
    ),
    "clipping-negative": config({"gradient_clipping": -1.0}, {}),
    "drop-last-off": config({"dataloader_drop_last": False}, {"dataloader_drop_last": True}),
}

PRECISION = {
    "fp16-with-bf16": config({"fp16.enabled": True}, {"fp16.enabled": False}),
    "precision-full": config({"bf16.enabled": False}, {}),
    "loss-scale-in-bf16": config({"bf16.loss_scale": 0}, {"bf16.check_grad_overflow": False}),
    "fp16-initial-scale": config(
        {**FP16, "fp16.initial_scale_power": 32}, {**FP16, "fp16.initial_scale_power": 16}
    ),
    "fp16-scale-floor": config(
        {**FP16, "fp16.min_loss_scale": 0}, {**FP16, "fp16.min_loss_scale": 1}
    ),
    "fp16-scale-value": config({**FP16, "fp16.loss_scale": -1}, {**FP16, "fp16.loss_scale": 0}),
    "fp16-static-scale": config({**FP16, "fp16.loss_scale": 128}, {**FP16, "fp16.loss_scale": 0}),
    "bf16-old-name": config({"bf16": REMOVED, "bfloat16.enabled": True}, {}),
    "half-states-stage": config(
        {"zero.stage": 0, "bf16.bf16_master_weights_and_grads": True},
        BF16_STATES,
    ),
    "half-masters-on-device": config(
        {"bf16.bf16_master_weights_and_grads": True},
        BF16_STATES,
    ),
    "bf16-states-alone": config(
        {"bf16.bf16_optimizer_states": True},
        {"bf16.bf16_optimizer_states": True, "bf16.bf16_master_weights_and_grads": True},
    ),
    "communication-type": config(
        {"communication_data_type": "float16"}, {"communication_data_type": "bf16"}
    ),
    "communication-fp16": config(
        {"communication_data_type": "fp16"}, {"communication_data_type": "fp32"}
    ),
    "amp-with-half": config(
        {"amp": {"enabled": True}}, {"amp": {"enabled": False}}, release="0.16.0"
    ),
    "grad-accum-dtype": config(
        {"zero.stage": 0, "data_types": {"grad_accum_dtype": "fp32"}},
        {"zero.stage": 1, "data_types": {"grad_accum_dtype": "fp32"}},
    ),
    "bf16-states-sums": config(
        {"zero.stage": 1, **BF16_STATES, "data_types": {"grad_accum_dtype": "fp32"}},
        {"zero.stage": 1, **BF16_STATES},
    ),
    "bf16-states-offload": config(
        {**BF16_STATES, "zero.offload_optimizer": {"device": "cpu"}, "optimizer.type": "Lion"},
        {**BF16_STATES, "zero.offload_optimizer": {"device": "cpu"}},
    ),
}

ZERO = {
    "zero-stage-missing": config({"zero_optimization": {"overlap_comm": True}}, {}),
    "zero-boolean": config({"zero_optimization": True}, {}),
    "stage3-keys-below": config(
        {"zero.stage3_max_live_parameters": 1e9}, {**STAGE3, "zero.stage3_max_live_parameters": 1e9}
    ),
    "zeropp-below-stage3": config(
        {"zero.zero_quantized_weights": True}, {**STAGE3, "zero.zero_quantized_weights": True}
    ),
    "hpz-stage": config(
        {"zero.zero_hpz_partition_size": 8}, {**STAGE3, "zero.zero_hpz_partition_size": 8}
    ),
    "hpz-partition": config(
        {**STAGE3, "zero.zero_hpz_partition_size": 5},
        {**STAGE3, "zero.zero_hpz_partition_size": 8},
        cluster=ETHERNET,
    ),
    "sequence-hpz": config(
        {**STAGE3, "zero.zero_hpz_partition_size": 8, "sequence_parallel_size": 2},
        {**STAGE3, "zero.zero_hpz_partition_size": 8},
    ),
    "hpz-with-offload": config(
        {**STAGE3, "zero.zero_hpz_partition_size": 8, "zero.offload_param": {"device": "cpu"}},
        {**STAGE3, "zero.zero_hpz_partition_size": 8},
    ),
    "quantized-gradients-fp16": config(
        {**FP16, **STAGE3, "zero.zero_quantized_gradients": True},
        {**STAGE3, "zero.zero_quantized_gradients": True},
    ),
    "elastic-checkpoint-stage3": config(
        {**STAGE3, "zero.elastic_checkpoint": True}, {"zero.elastic_checkpoint": True}
    ),
    "grad-norm-off": config(
        {"zero.compute_grad_norm": False}, {"zero.compute_grad_norm": False, "gradient_clipping": 0}
    ),
    "predivide-stage3": config(
        {**STAGE3, "prescale_gradients": True}, {"prescale_gradients": True}
    ),
    "allreduce-sum": config(
        {**STAGE3, "gradient_allreduce_op": "sum"}, {"gradient_allreduce_op": "sum"}
    ),
    "unsaved-weights": config({"zero.stage": 3, **FILLED}, {**STAGE3, **FILLED}),
    "legacy-stage1": config({"zero.legacy_stage1": True}, {"zero.legacy_stage1": False}),
}

OFFLOAD = {
    "offload-parameters": config(
        {"zero.offload_param": {"device": "cpu"}},
        {**STAGE3, "zero.offload_param": {"device": "cpu"}},
    ),
    "offload-optimizer": config(offloaded(stage=0), offloaded(stage=1)),
    "offload-ratio": config(offloaded(stage=2, ratio=0.5), offloaded(ratio=0.5)),
    "nvme-stage": config(
        {**offloaded(**NVME, stage=2), "aio": AIO}, {**offloaded(**NVME), "aio": AIO}
    ),
    "offload-nvme-path": config(
        {**offloaded("nvme"), "aio": AIO}, {**offloaded(**NVME), "aio": AIO}
    ),
    "offload-path-unused": config(offloaded(nvme_path="/disk"), offloaded()),
    "offload-nvme-aio": config(offloaded(**NVME), {**offloaded(**NVME), "aio": AIO}),
    "aio-block-small": config({"aio": {"block_size": 4096}}, {"aio": AIO}),
    "offload-buffer-count": config(
        {**offloaded(**NVME, buffer_count=2), "aio": AIO},
        {**offloaded(**NVME, buffer_count=4), "aio": AIO},
    ),
    "offload-unpinned": config(offloaded(pin_memory=False), offloaded(pin_memory=True)),
    "offload-pipeline": config(
        {**offloaded(stage=1), "pipeline": {"stages": 2}}, offloaded(stage=1)
    ),
    "offload-kind": config(
        {**offloaded(), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
        {**offloaded(), **adam(lr=1e-4)},
    ),
    "superoffload-stage": config(
        offloaded(stage=2, super_offload=True), offloaded(super_offload=True)
    ),
    "offload-max-in-cpu": config(
        {**STAGE3, "aio": AIO, "zero.offload_param": {**NVME, "max_in_cpu": 0}},
        {**STAGE3, "aio": AIO, "zero.offload_param": {**NVME, "max_in_cpu": 1e9}},
    ),
}

OPTIMIZER = {
    "optimizer-unknown": config({"optimizer": {"type": "AdmW"}}, {"optimizer": {"type": "adamW"}}),
    "optimizer-type-missing": config({"optimizer": {"params": {"lr": 1e-4}}}, adam(lr=1e-4)),
    "optimizer-untested": config(
        {"optimizer": {"type": "SGD"}},
        {"optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": True},
    ),
    "optimizer-grad-norm": config(adam(lr=1e-4, max_grad_norm=1.0), adam(lr=1e-4)),
    "optimizer-param-name": config(adam(learning_rate=1e-4), adam(lr=1e-4)),
    "optimizer-betas": config(adam(betas=[0.9, 1.0]), adam(betas=[0.9, 0.95])),
    "learning-rate": config(adam(lr=2), adam(lr=2e-5)),
    "weight-decay": config(adam(weight_decay=10), adam(weight_decay=0.1)),
    "scheduler-unknown": config(scheduled("CosineDecay"), scheduled("WarmupLR")),
    "scheduler-param-name": config(
        scheduled("WarmupLR", warmup_steps=10), scheduled("WarmupLR", warmup_num_steps=10)
    ),
    "number-as-text": config(adam(lr="1e-4"), adam(lr=1e-4)),
    "steps-per-print-zero": config({"steps_per_print": 0}, {"steps_per_print": 100}),
    "scheduler-total": config(
        scheduled("WarmupDecayLR"), scheduled("WarmupDecayLR", total_num_steps=9)
    ),
    "scheduler-warmup": config(
        scheduled("WarmupDecayLR", total_num_steps=9, warmup_num_steps=10),
        scheduled("WarmupDecayLR", total_num_steps=9, warmup_num_steps=1),
    ),
    "scheduler-rate": config(
        scheduled("WarmupLR", warmup_max_lr=3e-4), scheduled("WarmupLR", warmup_max_lr=1e-4)
    ),
    "scheduler-alone": config(
        {"scheduler": {"type": "WarmupLR"}}, scheduled("WarmupLR", warmup_num_steps=5)
    ),
    "lamb-static-scale": config(
        {**FP16, "fp16.loss_scale": 128, "zero.stage": 0, "optimizer": {"type": "Lamb"}},
        {**FP16, "fp16.loss_scale": 0, "zero.stage": 0, "optimizer": {"type": "Lamb"}},
    ),
    "muon-reduce-scatter": config(
        {"optimizer": {"type": "Muon"}},
        {"optimizer": {"type": "Muon"}, "zero.reduce_scatter": False},
    ),
}

ENGINES = {
    "zero-pipeline": config(
        {"pipeline": {"stages": 2}}, {"pipeline": {"stages": 2}, "zero.stage": 1}
    ),
    "zero-tensor": config({**STAGE3, **TP2}, TP2, release="0.19.0"),
    "deepspeed-3d": config(
        {**TP2, "sequence_parallel_size": 2},
        {**TP2, "pipeline": {"stages": 2}, "zero.stage": 1},
    ),
    "tensor-sizes-differ": config(
        {"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}}},
        {"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2}}},
    ),
    "tensor-vocabulary": config({"vocabulary_size": 50257}, {"vocabulary_size": 50264}),
    "setting-choice": config(
        {"gradient_allreduce_op": "max"}, {"torch_autocast": {"dtype": "bfloat16"}}
    ),
    "checkpointing-unread": config(
        {"activation_checkpointing": {"profile": False}, **FILLED},
        {"activation_checkpointing": {"profile": False}},
    ),
    "checkpointing-partition": config(
        {"activation_checkpointing": {"cpu_checkpointing": True}},
        {"activation_checkpointing": {"cpu_checkpointing": True, "partition_activations": True}},
    ),
    "checkpointing-number": config(
        {"activation_checkpointing.contiguous_memory_optimization": True},
        {
            "activation_checkpointing.contiguous_memory_optimization": True,
            "activation_checkpointing.number_checkpoints": 32,
        },
    ),
    "tag-validation": config(
        {"checkpoint": {"tag_validation": "Error"}}, {"checkpoint": {"tag_validation": "Fail"}}
    ),
    "node-local-checkpoint": config(
        {"checkpoint": {"use_node_local_storage": True}},
        {"checkpoint": {"use_node_local_storage": False}},
    ),
    "universal-load-on": config({"checkpoint": {"load_universal": True}}, {}),
    "secret-in-config": config({"comet": {"api_key": "abc"}}, {"comet": {"enabled": True}}),
}

HARMFUL = {
    "sub-group-zero": config(
        {**STAGE3, "zero.sub_group_size": 0}, {**STAGE3, "zero.sub_group_size": 1e9}
    ),
    "sub-group-endless": config(
        {**offloaded(), "zero.sub_group_size": 1e12}, {**offloaded(), "zero.sub_group_size": 1e9}
    ),
    "max-live-zero": config(
        {**STAGE3, "zero.stage3_max_live_parameters": 0},
        {**STAGE3, "zero.stage3_max_live_parameters": 1e9},
    ),
    "overlap-off": config({**STAGE3, "zero.overlap_comm": False}, {"zero.overlap_comm": False}),
    "contiguous-off": config(
        {"zero.contiguous_gradients": False}, {"zero.contiguous_gradients": True}
    ),
    "bucket-small": config({"zero.reduce_bucket_size": 1000}, {"zero.reduce_bucket_size": 5e8}),
    "bucket-large": config({"zero.reduce_bucket_size": 5e9}, {"zero.reduce_bucket_size": 5e8}),
    "persistence-large": config(
        {**STAGE3, "zero.stage3_param_persistence_threshold": 1e9},
        {**STAGE3, "zero.stage3_param_persistence_threshold": 1e5},
    ),
    "breakdown-on": config({"wall_clock_breakdown": True}, {"wall_clock_breakdown": False}),
    "profiler-on": config(
        {"flops_profiler": {"enabled": True}}, {"flops_profiler": {"enabled": False}}
    ),
    "autotuning-on": config({"autotuning": {"enabled": True}}, {"autotuning": {"enabled": False}}),
    "unused-fatal": config(
        {"zero.ignore_unused_parameters": False}, {"zero.ignore_unused_parameters": True}
    ),
}

MODELS = {
    "model-bucket": config(
        {"zero.reduce_bucket_size": 5e8}, {"zero.reduce_bucket_size": 5e7}, model="smollm2-135m"
    ),
    "model-bucket-default": config({}, {"zero.reduce_bucket_size": 5e7}, model="smollm2-135m"),
    "model-moe-leaf": config(
        STAGE3, {**STAGE3, "zero.leaf_module": {"classes": ["DeepseekV2MoE"]}}, model="deepseek-v2"
    ),
    "model-tied-tensor": config(TP2, {}, model="qwen2.5-0.5b", release="0.18.0"),
    "recurrent-parallel": config(
        TP2, {"zero.stage": 1}, model=str(Path(__file__).with_name("hybrid_config.json"))
    ),
    "tensor-heads": config({"tensor_parallel": {"autotp_size": 3}}, TP2, model="llama-2-7b"),
    "tensor-kv-heads": config({"tensor_parallel": {"autotp_size": 16}}, TP2, model="llama-3.1-8b"),
    "model-stages": config(
        {"pipeline": {"stages": 5}, "zero.stage": 1},
        {"pipeline": {"stages": 4}, "zero.stage": 1},
        model="llama-2-7b",
    ),
    "pipeline-size": config(
        {"pipeline": {"stages": 33}, "zero.stage": 1},
        {"pipeline": {"stages": 32}, "zero.stage": 1},
        model="llama-2-7b",
    ),
    "pipeline-partition": config(
        {"pipeline": {"stages": 2, "partition": [16, 15]}, "zero.stage": 1},
        {"pipeline": {"stages": 2, "partition": [17, 15]}, "zero.stage": 1},
        model="llama-2-7b",
    ),
    "model-fp16": config(FP16, {}, model="gemma-2-9b"),
}

CLUSTERS = {
    "world-size": config({"tensor_parallel": {"autotp_size": 3}}, TP2, cluster=ETHERNET),
    "tensor-in-node": config({"tensor_parallel": {"autotp_size": 16}}, TP2, cluster=ETHERNET),
    "precision": config({}, FP16, cluster=VOLTA),
    "cluster-fp16": config(FP16, {}, cluster=ETHERNET),
    "cluster-host-memory": Pair(ds(offloaded(stage=2)), ds({}), model="llama-2-7b", cluster=SMALL),
    "cluster-nvme-space": Pair(
        ds({**offloaded(**NVME), "aio": AIO}),
        ds(STAGE3),
        model="llama-2-7b",
        cluster=DISK.replace("SIZE", "10"),
    ),
    "nvme-disk": config({**offloaded(**NVME), "aio": AIO}, offloaded(), cluster=ETHERNET),
    "cluster-nvme-path": config(
        {**offloaded(**(NVME | {"nvme_path": "/other"})), "aio": AIO},
        {**offloaded(**NVME), "aio": AIO},
        cluster=DISK.replace("SIZE", "2000"),
    ),
    "cluster-bucket": config(
        {"zero.reduce_bucket_size": 100_000}, {"zero.reduce_bucket_size": 5e8}, cluster=ETHERNET
    ),
    "cluster-zero3-network": config(STAGE3, {}, model="llama-2-7b", cluster=ETHERNET),
    "cluster-hpz": config(
        {**STAGE3, "zero.zero_hpz_partition_size": 4},
        {**STAGE3, "zero.zero_hpz_partition_size": 8},
        cluster=ETHERNET,
    ),
}


CASES: dict[str, Pair] = {
    **SYNTAX,
    **SCHEMA,
    **BATCH,
    **PRECISION,
    **ZERO,
    **OFFLOAD,
    **OPTIMIZER,
    **ENGINES,
    **HARMFUL,
    **MODELS,
    **CLUSTERS,
    **HOSTS,
    **ENVIRONMENT,
    **MEGATRON,
    **ACCELERATE,
    **TRAINING,
}
