"""One text that breaks each rule and one, as near to it as possible, that does not."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

NVME = {"device": "nvme", "nvme_path": "/disk"}
AIO = {"block_size": 1048576, "queue_depth": 32}
STAGE3 = {"zero.stage": 3, "zero.stage3_gather_16bit_weights_on_model_save": True}
BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
ETHERNET = "nodes: 2\ngpus_per_node: 8\ngpu: a100-80gb\ninter_node: 100gbe\ninterface: ens5\n"
INFINIBAND = ETHERNET.replace("100gbe", "infiniband-200")
SMALL = ETHERNET + "host_memory_gib: 32\n"
BIG = ETHERNET + "host_memory_gib: 2000\n"
VOLTA = ETHERNET.replace("a100-80gb", "v100-32gb")
DISK = ETHERNET + "nvme: {path: /disk, size_gib: SIZE, read_gb_s: 6, write_gb_s: 3}\n"


class Pair(NamedTuple):
    """A text with the fault and one without, and what they are checked against."""

    bad: str
    good: str
    name: str = "ds_config.json"
    model: str = ""
    cluster: str = ""
    release: str | None = None


def ds(changes: dict[str, Any]) -> str:
    """The base config with changes at dotted keys (`zero.` for its block); none removes a key."""
    config = copy.deepcopy(BASE)
    for path, value in changes.items():
        *blocks, key = path.replace("zero.", "zero_optimization.", 1).split(".")
        inner = config
        for block in blocks:
            inner = inner.setdefault(block, {})
        if value is REMOVED:
            inner.pop(key, None)
        else:
            inner[key] = value
    return json.dumps(config, indent=2)


REMOVED = object()


def config(bad: dict[str, Any], good: dict[str, Any], **against: Any) -> Pair:
    """A pair of configs, as changes of the base."""
    return Pair(ds(bad), ds(good), **against)


def lines(bad: str, good: str, name: str, **against: Any) -> Pair:
    """A pair of texts."""
    return Pair(bad, good, name, **against)


def offloaded(device: str = "cpu", stage: int = 3, **values: Any) -> dict[str, Any]:
    """Changes that offload the optimizer."""
    more = STAGE3 if stage == 3 else {"zero.stage": stage}
    return {**more, "zero.offload_optimizer": {"device": device, **values}}


def adam(**params: Any) -> dict[str, Any]:
    """Changes that add AdamW with these parameters."""
    return {"optimizer": {"type": "AdamW", "params": params}}


def scheduled(name: str, **params: Any) -> dict[str, Any]:
    """Changes that add a schedule, with an optimizer."""
    return {**adam(lr=1e-4), "scheduler": {"type": name, "params": params}}


FP16 = {"bf16": REMOVED, "fp16.enabled": True}
TP2 = {"tensor_parallel": {"autotp_size": 2}}
DIRTY = '{"fp16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1%s}'

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
    "fp16-static-scale": config({**FP16, "fp16.loss_scale": 128}, {**FP16, "fp16.loss_scale": 0}),
    "bf16-old-name": config({"bf16": REMOVED, "bfloat16.enabled": True}, {}),
    "half-states-stage": config(
        {"zero.stage": 0, "bf16.bf16_master_weights_and_grads": True},
        {"bf16.bf16_master_weights_and_grads": True},
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
    "accumulation-type-stage0": config(
        {"zero.stage": 0, "data_types": {"grad_accum_dtype": "fp32"}},
        {"zero.stage": 1, "data_types": {"grad_accum_dtype": "fp32"}},
    ),
}

ZERO = {
    "zero-stage-missing": config({"zero_optimization": {"overlap_comm": True}}, {}),
    "zero-boolean": config({"zero_optimization": True}, {}),
    "stage3-keys-below": config(
        {"zero.stage3_max_live_parameters": 1e9}, {**STAGE3, "zero.stage3_max_live_parameters": 1e9}
    ),
    "zeropp-below-stage3": config(
        {"zero.zero_hpz_partition_size": 8}, {**STAGE3, "zero.zero_hpz_partition_size": 8}
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
    "unsaved-weights": config({"zero.stage": 3}, STAGE3),
    "legacy-stage1": config({"zero.legacy_stage1": True}, {"zero.legacy_stage1": False}),
}

OFFLOAD = {
    "offload-param-stage": config(
        {"zero.offload_param": {"device": "cpu"}},
        {**STAGE3, "zero.offload_param": {"device": "cpu"}},
    ),
    "offload-optimizer-stage": config(offloaded(stage=0), offloaded(stage=1)),
    "offload-ratio-stage": config(offloaded(stage=2, ratio=0.5), offloaded(ratio=0.5)),
    "offload-nvme-stage": config(
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
    "pipeline-zero": config(
        {"pipeline": {"stages": 2}}, {"pipeline": {"stages": 2}, "zero.stage": 1}
    ),
    "tensor-zero3": config({**STAGE3, **TP2}, TP2),
    "tensor-pipeline": config({**TP2, "pipeline": {"stages": 2}, "zero.stage": 1}, TP2),
    "tensor-sizes-differ": config(
        {"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}}},
        {"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2}}},
    ),
    "tensor-vocabulary": config({"vocabulary_size": 50257}, {"vocabulary_size": 50264}),
    "checkpointing-unread": config({"activation_checkpointing": {"profile": False}}, {}),
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
    "steps-per-print": config({"steps_per_print": 1}, {"steps_per_print": 100}),
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
    "model-heads": config({"tensor_parallel": {"autotp_size": 3}}, TP2, model="llama-2-7b"),
    "model-kv-heads": config({"tensor_parallel": {"autotp_size": 16}}, TP2, model="llama-3.1-8b"),
    "model-stages": config(
        {"pipeline": {"stages": 5}, "zero.stage": 1},
        {"pipeline": {"stages": 4}, "zero.stage": 1},
        model="llama-2-7b",
    ),
    "model-fp16": config(FP16, {}, model="gemma-2-9b"),
}

CLUSTERS = {
    "cluster-batch": config({"train_batch_size": 64}, {"train_batch_size": 128}, cluster=ETHERNET),
    "cluster-layout": config({"tensor_parallel": {"autotp_size": 3}}, TP2, cluster=ETHERNET),
    "cluster-tensor-node": config({"tensor_parallel": {"autotp_size": 16}}, TP2, cluster=ETHERNET),
    "cluster-bf16": config({}, FP16, cluster=VOLTA),
    "cluster-fp16": config(FP16, {}, cluster=ETHERNET),
    "cluster-host-memory": Pair(ds(offloaded(stage=2)), ds({}), model="llama-2-7b", cluster=SMALL),
    "cluster-nvme-space": Pair(
        ds({**offloaded(**NVME), "aio": AIO}),
        ds(STAGE3),
        model="llama-2-7b",
        cluster=DISK.replace("SIZE", "10"),
    ),
    "cluster-nvme-missing": config(
        {**offloaded(**NVME), "aio": AIO}, offloaded(), cluster=ETHERNET
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

TWO = "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"


def hosts(bad: str, good: str = TWO, **against: Any) -> Pair:
    """A pair of hostfiles."""
    return Pair(bad, good, "hostfile", **against)


def env(bad: str, good: str = "A=1\n", **against: Any) -> Pair:
    """A pair of environment files."""
    return Pair(bad, good, ".deepspeed_env", **against)


HOSTS = {
    "hostfile-line": hosts("10.0.0.1 slots=8 # first\n"),
    "hostfile-empty": hosts("# none\n"),
    "host-twice": hosts("10.0.0.1 slots=8\n10.0.0.1 slots=8\n"),
    "host-name": hosts("-oProxyCommand=sh slots=8\n"),
    "host-address": hosts("10.0.0.300 slots=8\n"),
    "host-loopback": hosts("127.0.0.1 slots=8\n10.0.0.2 slots=8\n"),
    "host-user": hosts("me@10.0.0.1 slots=8\n"),
    "host-slots": hosts("10.0.0.1 slots=0\n"),
    "host-by-name": hosts("a.example slots=8\nb.example slots=8\n"),
    "host-uneven": hosts("10.0.0.1 slots=8\n10.0.0.2 slots=4\n"),
    "host-example": hosts("192.0.2.1 slots=8\n"),
    "host-cluster": hosts("10.0.0.1 slots=8\n", cluster=ETHERNET),
}

ENVIRONMENT = {
    "env-line": env("# comment\nA=1\n"),
    "env-export": env("export A=1\n"),
    "env-name": env("A B=1\n"),
    "env-value": env('A="x y"\n', "A=x,y\n"),
    "env-line-end": env("A=1\r\n"),
    "env-twice": env("A=1\nA=2\n"),
    "env-secret": env("HF_TOKEN=abc\n"),
    "env-rank": env("MASTER_ADDR=10.0.0.1\n"),
    "env-cards": env("CUDA_VISIBLE_DEVICES=0,1\n"),
    "env-slow": env("NCCL_P2P_DISABLE=1\n", "NCCL_P2P_DISABLE=0\n"),
    "env-interface": env(
        "NCCL_SOCKET_IFNAME=eth9\n", "NCCL_SOCKET_IFNAME=ens5\n", cluster=ETHERNET
    ),
    "env-infiniband-off": env("NCCL_IB_DISABLE=1\n", "NCCL_IB_DISABLE=0\n", cluster=INFINIBAND),
    "env-infiniband-absent": env("NCCL_IB_HCA=mlx5\n", cluster=ETHERNET),
    "env-travels": env("NCCL_DEBUG=INFO\n", "NCCL_ALGO=Ring\n"),
}

ARGS = (
    "--num-layers 32\n--hidden-size 4096\n--num-attention-heads 32\n--num-query-groups 8\n"
    "--group-query-attention\n--seq-length 4096\n--max-position-embeddings 4096\n--bf16\n"
    "--tensor-model-parallel-size 2\n--pipeline-model-parallel-size 4\n"
    "--micro-batch-size 1\n--global-batch-size 128\n"
)


def args(old: str, new: str, good: str = "", **against: Any) -> Pair:
    """A pair of argument files: the base with one line replaced, or added where it is not there."""
    bad = ARGS.replace(old, new) if old else ARGS + new
    return Pair(bad, ARGS + good, "args.txt", **against)


MEGATRON = {
    "megatron-line": args("", "8\n"),
    "megatron-flag-misspelt": args("--seq-length", "--seq-lenght"),
    "megatron-flag-twice": args("", "--bf16\n"),
    "megatron-value": args("--micro-batch-size 1", "--micro-batch-size 0"),
    "megatron-heads": args("--num-attention-heads 32", "--num-attention-heads 33"),
    "megatron-groups": args("--num-query-groups 8", "--num-query-groups 3"),
    "megatron-layers": args("--num-layers 32", "--num-layers 30"),
    "megatron-experts": args("", "--num-experts 8\n--expert-model-parallel-size 3\n"),
    "megatron-sequence": args("", "--context-parallel-size 3\n", "--context-parallel-size 2\n"),
    "megatron-positions": args("--seq-length 4096", "--seq-length 8192"),
    "megatron-precision": args("", "--fp16\n"),
    "megatron-sequence-parallel": args("", "--num-experts 8\n", "--sequence-parallel\n"),
    "megatron-overlap": args(
        "",
        "--overlap-param-gather\n",
        "--overlap-param-gather\n--overlap-grad-reduce\n--use-distributed-optimizer\n",
    ),
    "megatron-recompute": args(
        "",
        "--recompute-granularity full\n",
        "--recompute-granularity full\n--recompute-method uniform\n",
    ),
    "megatron-batch": args("--global-batch-size 128", "--global-batch-size 5", cluster=ETHERNET),
    "megatron-tensor-node": args(
        "--tensor-model-parallel-size 2", "--tensor-model-parallel-size 16", cluster=ETHERNET
    ),
}

PLUGIN = "  zero_stage: 3\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n"
ACCELERATED = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\n"
    "num_processes: 8\nmixed_precision: 'no'\ndeepspeed_config:\n" + PLUGIN
)


def accelerated(old: str, new: str, good: str = ACCELERATED) -> Pair:
    """A pair of accelerate files: the base with a part replaced."""
    return Pair(ACCELERATED.replace(old, new), good, "accelerate.yaml")


ACCELERATE = {
    "accelerate-file-and-keys": accelerated(PLUGIN, PLUGIN + "  deepspeed_config_file: ds.json\n"),
    "accelerate-key-unknown": accelerated("num_machines", "number_machines"),
    "accelerate-type": accelerated("type: DEEPSPEED", "type: MULTI_GPU"),
    "accelerate-processes": accelerated(
        "num_machines: 1", "main_process_ip: 10.0.0.1\nnum_machines: 3"
    ),
    "accelerate-address": accelerated("num_machines: 1", "num_machines: 2"),
    "accelerate-offload-stage": accelerated(
        PLUGIN, "  zero_stage: 2\n  offload_param_device: cpu\n"
    ),
    "accelerate-choice": accelerated("zero_stage: 3", "zero_stage: 5"),
    "accelerate-init-flag": accelerated("init_flag: true", "init_flag: false"),
    "accelerate-save": accelerated("16bit_model: true", "16bit_model: false"),
}

TRAINED = (
    "model: llama-2-7b\ndeepspeed_config: ds_config.json\ndata: {train: a.jsonl}\n"
    "sequence_length: 4096\n"
)


def trained(old: str, new: str, **against: Any) -> Pair:
    """A pair of train.yaml files: the base with a part replaced."""
    return Pair(TRAINED.replace(old, new), TRAINED, "train.yaml", **against)


TRAINING = {
    "train-value": trained("sequence_length: 4096", "sequence_length: x"),
    "train-config-missing": trained("ds_config.json", "other.json"),
    "train-scheduler-twice": trained("ds_config.json", "scheduled.json"),
    "train-tensor": trained("ds_config.json", "tensor.json"),
    "train-sequence": trained("4096", "8192", model="llama-2-7b"),
    "train-unsaved": trained("model: llama", "save: false\nmodel: llama"),
}
BESIDE = {  # what train.yaml may name
    "ds_config.json": ds({}),
    "scheduled.json": ds(scheduled("WarmupLR")),
    "tensor.json": ds(TP2),
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
