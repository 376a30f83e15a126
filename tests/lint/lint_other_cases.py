"""Texts that break the rules of files other than a ds_config, and texts that do not."""

from __future__ import annotations

from typing import Any

from lint_texts import ETHERNET, INFINIBAND, TP2, Pair, ds, scheduled

TWO = "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"


def hosts(bad: str, good: str = TWO, **against: Any) -> Pair:
    """A pair of hostfiles."""
    return Pair(bad, good, "hostfile", **against)


def env(bad: str, good: str = "A=1\n", **against: Any) -> Pair:
    """A pair of environment files."""
    return Pair(bad, good, ".deepspeed_env", **against)


HOSTS = {
    "hostfile-line": hosts("10.0.0.1 slots=8 work\n", "10.0.0.1 slots=8 # first\n"),
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
    "megatron-layers": args("--num-layers 32", "--num-layers 30"),
    "expert-parallel": args("", "--num-experts 8\n--expert-model-parallel-size 3\n"),
    "context-sequence": args("", "--context-parallel-size 3\n", "--context-parallel-size 2\n"),
    "virtual-stages": args(
        "--pipeline-model-parallel-size 4\n",
        "--pipeline-model-parallel-size 1\n--num-virtual-stages-per-pipeline-rank 4\n",
    ),
    "sequence-length": args("--seq-length 4096", "--seq-length 8192"),
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
}

PLUGIN = "  zero_stage: 3\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n"
ACCELERATED = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\n"
    "num_processes: 8\nmixed_precision: 'no'\ndeepspeed_config:\n" + PLUGIN
)


def accelerated(old: str, new: str, good: str = ACCELERATED) -> Pair:
    """A pair of accelerate files: the base with a part replaced."""
    return Pair(ACCELERATED.replace(old, new), good, "accelerate.yaml")


SHARDED = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 1\n"
    "num_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    "  fsdp_offload_params: false\n  fsdp_sync_module_states: true\n"
)


def sharded(old: str, new: str) -> Pair:
    """A pair of accelerate files with FSDP: the base with a part replaced."""
    return Pair(SHARDED.replace(old, new), SHARDED, "accelerate.yaml")


ACCELERATE = {
    "accelerate-file-and-keys": accelerated(PLUGIN, PLUGIN + "  deepspeed_config_file: ds.json\n"),
    "accelerate-key-unknown": accelerated("num_machines", "number_machines"),
    "accelerate-plugin-key": accelerated("zero3_init_flag: true", "zero_optimization: {stage: 3}"),
    "accelerate-type": accelerated("type: DEEPSPEED", "type: MULTI_GPU"),
    "accelerate-processes": accelerated(
        "num_machines: 1", "main_process_ip: 10.0.0.1\nnum_machines: 3"
    ),
    "accelerate-address": accelerated("num_machines: 1", "num_machines: 2"),
    "accelerate-choice": accelerated("zero_stage: 3", "zero_stage: 5"),
    "accelerate-init-flag": accelerated("init_flag: true", "init_flag: false"),
    "accelerate-word": accelerated("type: DEEPSPEED", "type: deepspeed"),
    "accelerate-number": accelerated("num_processes: 8", "num_processes: eight"),
    "accelerate-fsdp-key": sharded("fsdp_offload_params", "fsdp_ofload_params"),
    "accelerate-fsdp-value": sharded("FULL_SHARD", "FULL_SHRD"),
    "accelerate-fsdp-together": sharded("states: true", "states: false"),
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
    "train-mode": Pair(
        TRAINED.replace("ds_config", "pipeline2"),
        TRAINED.replace("ds_config", "pipeline1"),
        "train.yaml",
    ),
    "train-unsaved": trained("model: llama", "save: false\nmodel: llama"),
}
BESIDE = {  # what train.yaml may name
    "ds_config.json": ds({}),
    "scheduled.json": ds(scheduled("WarmupLR")),
    "tensor.json": ds(TP2),
    "tensor3.json": ds({**TP2, "zero.stage": 3}),
    "split_twice.json": ds({**TP2, "sequence_parallel_size": 2, "zero.stage": 1}),
    "pipeline1.json": ds({"pipeline.stages": 2, "zero.stage": 1}),
    "pipeline2.json": ds({"pipeline.stages": 2, "zero.stage": 2}),
}

# Constraints that are looked for in several kinds of files: the pairs beside those of ds_configs.
ELSEWHERE = (
    (
        "train-mode",
        Pair(
            TRAINED.replace("ds_config", "split_twice"),
            TRAINED.replace("ds_config", "tensor"),
            "train.yaml",
        ),
    ),
    (
        "virtual-stages",
        args(
            "--pipeline-model-parallel-size 4\n",
            "--num-layers-per-virtual-pipeline-stage 4\n",
            "--num-layers-per-virtual-pipeline-stage 4\n",
        ),
    ),
    ("tensor-heads", args("--num-attention-heads 32", "--num-attention-heads 33")),
    ("tensor-kv-heads", args("--num-query-groups 8", "--num-query-groups 3")),
    ("batch-product", args("--global-batch-size 128", "--global-batch-size 5", cluster=ETHERNET)),
    (
        "world-size",
        args("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 3", cluster=ETHERNET),
    ),
    (
        "tensor-in-node",
        args("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 16", cluster=ETHERNET),
    ),
    (
        "train-mode",
        Pair(
            TRAINED.replace("ds_config", "tensor3"),
            TRAINED.replace("ds_config", "tensor"),
            "train.yaml",
        ),
    ),
    ("sequence-length", trained("4096", "8192", model="llama-2-7b")),
    ("offload-parameters", accelerated(PLUGIN, "  zero_stage: 2\n  offload_param_device: cpu\n")),
    (
        "offload-optimizer",
        accelerated(PLUGIN, "  zero_stage: 0\n  offload_optimizer_device: cpu\n"),
    ),
)
