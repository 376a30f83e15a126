"""Requests for tests of prices and plans, written in the words of a question."""

from __future__ import annotations

from typing import Any

from dsforge import catalog
from dsforge.layout import Layout
from dsforge.plan import Request
from dsforge.specs import ClusterSpec, LoraSpec, NvmeSpec, Workload
from dsforge.strategy import Constraints, Strategy

GIB = 1024**3
DISK = NvmeSpec(path="/nvme", size_bytes=4000 * GIB, read_bytes_per_s=6e9, write_bytes_per_s=3e9)


def cluster(
    nodes: int = 1,
    gpus: int = 8,
    gpu: str = "a100-80gb",
    *,
    intra: str = "nvlink-3",
    inter: str = "infiniband-200",
    **more: Any,
) -> ClusterSpec:
    """Nodes of equal cards; 1 TiB of RAM and eight adapters each unless told otherwise."""
    values: dict[str, Any] = {
        "host_memory_bytes": 1024 * GIB,
        "cpu_cores": 96,
        "nics_per_node": 8 if inter.startswith("infiniband") else 1,
    }
    return ClusterSpec(
        nodes=nodes,
        gpus_per_node=gpus,
        gpu=catalog.gpu(gpu),
        intra_node=catalog.link(intra),
        inter_node=catalog.link(inter),
        **{**values, **more},
    )


def workload(sequence: int = 2048, batch: int = 64, **more: Any) -> Workload:
    """A full fine-tuning step in bf16 unless told otherwise."""
    return Workload(sequence_length=sequence, global_batch_size=batch, learning_rate=1e-5, **more)


def lora_workload(sequence: int = 2048, batch: int = 64) -> Workload:
    """The same with adapters."""
    return workload(sequence, batch, method="lora", lora=LoraSpec())


def qlora_workload(sequence: int = 2048, batch: int = 64) -> Workload:
    """The same with adapters on matrices in 4 bits."""
    return workload(sequence, batch, method="lora", lora=LoraSpec(bits=4))


def ask(model: str, on: ClusterSpec, work: Workload, **constraints: Any) -> Request:
    """A request by catalog name."""
    return Request(
        model=catalog.model(model),
        cluster=on,
        workload=work,
        constraints=Constraints(**constraints),
    )


def strategy(dp: int = 8, tp: int = 1, pp: int = 1, *, batch: int = 64, **more: Any) -> Strategy:
    """A strategy whose accumulation follows from the batch."""
    micro = more.pop("micro_batch_size", 1)
    axes = {key: more.pop(key) for key in tuple(more) if key.endswith("_parallel_size")}
    return Strategy(
        layout=Layout(
            data_parallel_size=dp, tensor_parallel_size=tp, pipeline_parallel_size=pp, **axes
        ),
        micro_batch_size=micro,
        gradient_accumulation_steps=more.pop(
            "gradient_accumulation_steps", max(1, batch // (micro * dp))
        ),
        **more,
    )
