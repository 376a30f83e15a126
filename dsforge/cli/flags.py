"""The flags that `gen`, `plan` and `estimate` share, declared once.

Each field of `Flags` is one flag: its type, the section of the help it stands in, what the help
says, and where its value belongs in a spec file. `options.py` makes click's options of them. This
module has no `from __future__ import annotations`: the declarations are its data.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

INPUT, CLUSTER, LAUNCH = "Input files", "Cluster", "Launch"
WORKLOAD, STRATEGY = "Workload", "Strategy"


class Flag(NamedTuple):
    """How the command line shows a field, and where in a spec file its value belongs."""

    section: str
    help: str
    setting: tuple[str, ...] = ()
    name: str = ""  # without it, the field's name with dashes


class Flags(NamedTuple):
    """What the command line says; `None` where it says nothing."""

    spec: Annotated[
        Path | None, Flag(INPUT, "YAML file with model, cluster, workload and strategy.")
    ] = None
    model: Annotated[
        str | None,
        Flag(INPUT, "Catalog name, hub id, folder, config.json, or size such as 7b.", ("model",)),
    ] = None
    cluster: Annotated[
        Path | None, Flag(INPUT, "Cluster YAML file, as `dsforge detect` writes it.")
    ] = None
    workload: Annotated[Path | None, Flag(INPUT, "Workload YAML file.")] = None
    hostfile: Annotated[Path | None, Flag(INPUT, "DeepSpeed hostfile: hosts and slots.")] = None
    imported: Annotated[
        Path | None,
        Flag(INPUT, "Config or script of another program; flags override it.", (), "--from"),
    ] = None
    resolve: Annotated[bool, Flag(INPUT, "Resolve host names to IP addresses.")] = False
    nodes: Annotated[
        int | None, Flag(CLUSTER, "Number of nodes (default: 1).", ("cluster", "nodes"))
    ] = None
    gpus_per_node: Annotated[
        int | None, Flag(CLUSTER, "Accelerators per node.", ("cluster", "gpus_per_node"))
    ] = None
    gpu: Annotated[
        str | None, Flag(CLUSTER, "Accelerator, such as a100-80gb.", ("cluster", "gpu"))
    ] = None
    intra_node: Annotated[
        str | None,
        Flag(CLUSTER, "Link inside a node, such as nvlink-3.", ("cluster", "intra_node")),
    ] = None
    nvlink_domain: Annotated[
        int | None,
        Flag(
            CLUSTER,
            "GPUs per NVLink domain, across nodes; 72 in an NVL72 rack.",
            ("cluster", "nvlink_domain_size"),
        ),
    ] = None
    inter_node: Annotated[
        str | None,
        Flag(CLUSTER, "Network adapter of a node, such as 100gbe.", ("cluster", "inter_node")),
    ] = None
    nics_per_node: Annotated[
        int | None,
        Flag(CLUSTER, "Network adapters per node (default: 1).", ("cluster", "nics_per_node")),
    ] = None
    host_memory: Annotated[
        float | None, Flag(CLUSTER, "RAM per node, GiB.", ("cluster", "host_memory_gib"))
    ] = None
    nvme_path: Annotated[
        str | None,
        Flag(
            CLUSTER,
            "Folder on the NVMe disk of each node, for offload.",
            ("cluster", "nvme", "path"),
        ),
    ] = None
    gpu_hour_price: Annotated[
        float | None,
        Flag(CLUSTER, "Price per GPU-hour, in any currency.", ("cluster", "gpu_hour_price")),
    ] = None
    ssh_port: Annotated[
        int | None,
        Flag(LAUNCH, "SSH port (default: 22).", ("cluster", "ssh_port")),
    ] = None
    include: Annotated[
        str | None,
        Flag(
            LAUNCH,
            "Hosts and slots to use, in DeepSpeed syntax: h1@h2:0,1.",
            ("cluster", "include"),
        ),
    ] = None
    exclude: Annotated[
        str | None, Flag(LAUNCH, "Hosts and slots to leave out: h3@h4:7.", ("cluster", "exclude"))
    ] = None
    slurm_account: Annotated[
        str | None, Flag(LAUNCH, "Slurm account.", ("cluster", "slurm", "account"))
    ] = None
    slurm_partition: Annotated[
        str | None, Flag(LAUNCH, "Slurm partition.", ("cluster", "slurm", "partition"))
    ] = None
    slurm_time: Annotated[
        str | None,
        Flag(LAUNCH, "Slurm time limit: minutes, H:M:S or D-H:M:S.", ("cluster", "slurm", "time")),
    ] = None
    seq_len: Annotated[
        int | None,
        Flag(WORKLOAD, "Sequence length in tokens; 8k is 8192.", ("workload", "sequence_length")),
    ] = None
    global_batch: Annotated[
        int | None,
        Flag(
            WORKLOAD,
            "Global batch size in samples per optimizer step; 1k is 1024.",
            ("workload", "global_batch_size"),
        ),
    ] = None
    tokens: Annotated[
        str | None,
        Flag(WORKLOAD, "Training tokens of the whole run, such as 2b.", ("workload", "tokens")),
    ] = None
    epochs: Annotated[
        float | None, Flag(WORKLOAD, "Passes over --data.", ("workload", "epochs"))
    ] = None
    image_tokens: Annotated[
        int | None,
        Flag(WORKLOAD, "Tokens of a sample that come from images.", ("workload", "image_tokens")),
    ] = None
    vision_training: Annotated[
        str | None,
        Flag(
            WORKLOAD,
            "What trains of a vision tower: frozen, projector or all.",
            ("workload", "vision_training"),
        ),
    ] = None
    precision: Annotated[
        str | None, Flag(WORKLOAD, "Precision: bf16, fp16, fp32 or fp8.", ("workload", "precision"))
    ] = None
    optimizer: Annotated[
        str | None,
        Flag(
            WORKLOAD,
            "Optimizer: adamw, adamw_8bit, paged_adamw_8bit, lion, sgd, adafactor or muon.",
            ("workload", "optimizer"),
        ),
    ] = None
    method: Annotated[
        str | None, Flag(WORKLOAD, "Training method: full, lora or qlora.", ("workload", "method"))
    ] = None
    preference: Annotated[
        str | None,
        Flag(WORKLOAD, "Training on pairs: dpo, orpo or reward.", ("workload", "preference")),
    ] = None
    reference: Annotated[
        str | None,
        Flag(
            WORKLOAD,
            "Reference of dpo: model, adapters_off or precomputed.",
            ("workload", "reference"),
        ),
    ] = None
    base: Annotated[
        str | None,
        Flag(
            WORKLOAD,
            "Format of frozen matrices: nf4, fp4, int8, gptq or awq.",
            ("workload", "lora", "base"),
        ),
    ] = None
    learning_rate: Annotated[
        float | None, Flag(WORKLOAD, "Peak learning rate.", ("workload", "learning_rate"))
    ] = None
    lora_rank: Annotated[
        int | None,
        Flag(WORKLOAD, "Rank of the LoRA adapters (default: 16).", ("workload", "lora", "rank")),
    ] = None
    lora_alpha: Annotated[
        float | None,
        Flag(
            WORKLOAD,
            "Scale of the LoRA adapters, times 1 / rank (default: 32).",
            ("workload", "lora", "alpha"),
        ),
    ] = None
    data: Annotated[
        str | None,
        Flag(WORKLOAD, "Training data: a JSONL or Parquet file.", ("workload", "data", "train")),
    ] = None
    validation_fraction: Annotated[
        float | None,
        Flag(
            WORKLOAD,
            "Share of --data held out for validation, such as 0.05.",
            ("workload", "data", "validation_fraction"),
        ),
    ] = None
    back_end: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Engine (deepspeed or megatron), and other programs to write for, with commas.",
            ("strategy", "back_end"),
            "--for",
        ),
    ] = None
    zero_stage: Annotated[
        int | None, Flag(STRATEGY, "ZeRO stage: 0, 1, 2 or 3.", ("strategy", "zero_stage"))
    ] = None
    micro_batch: Annotated[
        int | None,
        Flag(
            STRATEGY,
            "Micro batch size in samples per data-parallel rank.",
            ("strategy", "micro_batch_size"),
        ),
    ] = None
    tp: Annotated[
        int | None,
        Flag(
            STRATEGY,
            "Tensor parallel size (ranks that share each layer).",
            ("strategy", "tensor_parallel_size"),
        ),
    ] = None
    pp: Annotated[
        int | None,
        Flag(STRATEGY, "Pipeline parallel size (stages).", ("strategy", "pipeline_parallel_size")),
    ] = None
    cp: Annotated[
        int | None,
        Flag(
            STRATEGY,
            "Context parallel size (ranks that share a sequence).",
            ("strategy", "context_parallel_size"),
        ),
    ] = None
    ep: Annotated[
        int | None,
        Flag(
            STRATEGY,
            "Expert parallel size (ranks that share the experts).",
            ("strategy", "expert_parallel_size"),
        ),
    ] = None
    hpz: Annotated[
        int | None,
        Flag(
            STRATEGY,
            "ZeRO++ hpZ partition size (ranks that share a secondary copy).",
            ("strategy", "hpz_partition_size"),
        ),
    ] = None
    offload_optimizer: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Optimizer offload: none, cpu or nvme.",
            ("strategy", "offload_optimizer"),
        ),
    ] = None
    offload_params: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Parameter offload (ZeRO-3): none, cpu or nvme.",
            ("strategy", "offload_parameters"),
        ),
    ] = None
    recompute: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Activation checkpointing: none, selective or full.",
            ("strategy", "recompute"),
        ),
    ] = None
    loss: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Loss: plain (full logits), chunked, fused or fused_cross_entropy.",
            ("strategy", "loss"),
        ),
    ] = None
    offload_activations: Annotated[
        bool | None,
        Flag(
            STRATEGY,
            "Activation checkpoints wait in host RAM.",
            ("strategy", "offload_activations"),
        ),
    ] = None
    tiled_mlp: Annotated[
        bool | None,
        Flag(
            STRATEGY, "MLPs take a stretch of a long sample at a time.", ("strategy", "tiled_mlp")
        ),
    ] = None
    attention: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Attention: flash, flash1, triton, masked (sdpa, padded) or eager.",
            ("strategy", "attention"),
        ),
    ] = None
    trainer: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Software whose step is predicted, such as fsdp (default: deepspeed).",
            ("strategy", "trainer"),
        ),
    ] = None
    kernels: Annotated[
        str | None,
        Flag(
            STRATEGY,
            "Kernels of norms and activations: eager, fused or compiled.",
            ("strategy", "kernels"),
        ),
    ] = None
    expert_dispatch: Annotated[
        str | None,
        Flag(STRATEGY, "Tokens to experts: alltoall or flex.", ("strategy", "expert_dispatch")),
    ] = None
    virtual_stages: Annotated[
        int | None,
        Flag(STRATEGY, "Virtual stages of each pipeline stage.", ("strategy", "virtual_stages")),
    ] = None
    software: Annotated[
        str | None,
        Flag(STRATEGY, "Whose scripts run it: dsforge or others.", ("strategy", "software")),
    ] = None
    buckets: Annotated[
        str | None,
        Flag(STRATEGY, "ZeRO bucket sizes: sized or engine (5e8).", ("strategy", "buckets")),
    ] = None


FLAGS: dict[str, Flag] = {
    field: annotation.__metadata__[0] for field, annotation in Flags.__annotations__.items()
}


def option_name(field: str) -> str:
    """How a field is written on the command line: `--gpus-per-node`."""
    return FLAGS[field].name or "--" + field.replace("_", "-")
