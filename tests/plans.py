"""Plans built by hand, so that what is rendered can be tested without the estimates."""

from __future__ import annotations

from typing import Any

from dsforge import catalog
from dsforge.constraints import case_of
from dsforge.constraints.inputs import OPTIMIZERS
from dsforge.constraints.megatron import NO_ADAPTERS, pretrain_gpt
from dsforge.errors import Problem
from dsforge.estimate.memory import HostMemory, MemoryEstimate, MemoryTerms
from dsforge.estimate.params import parameters
from dsforge.estimate.time import TimeEstimate, TimeTerms
from dsforge.layout import Layout
from dsforge.plan import Plan, Priced, Reason, Variant, VariantName
from dsforge.specs import ClusterSpec, GpuSpec, Host, ModelSpec, NvmeSpec, Workload
from dsforge.strategy import AioSettings, Buckets, Strategy
from dsforge.units import GIB, Interval

BUCKETS = Buckets(
    reduce_bucket_size=16_777_216,
    allgather_bucket_size=16_777_214,
    prefetch_bucket_size=15_099_494,
    persistence_threshold=40_960,
    max_live_parameters=200_000_000,
    max_reuse_distance=200_000_002,
    sub_group_size=1_000_000_000,
    overlap_comm=True,
)
AIO = AioSettings(
    block_size=1_048_576,
    queue_depth=32,
    intra_op_parallelism=2,
    optimizer_buffer_count=5,
    parameter_buffer_count=6,
    parameter_buffer_size=131_072_000,
    max_in_cpu=1_000_000_000,
)
NVME = NvmeSpec(
    path="/local_nvme", size_bytes=2000 * GIB, read_bytes_per_s=6e9, write_bytes_per_s=4e9
)
ZERO: dict[VariantName, dict[str, Any]] = {
    "zero1": {"zero_stage": 1},
    "zero2": {"zero_stage": 2},
    "zero3": {"zero_stage": 3},
    "zero2_offload": {"zero_stage": 2, "offload_optimizer": "cpu"},
    "zero3_offload": {
        "zero_stage": 3,
        "offload_optimizer": "cpu",
        "offload_parameters": "cpu",
    },
    "zero3_nvme": {"zero_stage": 3, "offload_optimizer": "nvme", "offload_parameters": "nvme"},
}


def cluster(nodes: int = 2, gpus_per_node: int = 8, **changed: Any) -> ClusterSpec:
    """A100 nodes on 100 Gbit/s Ethernet, with a local disk."""
    values: dict[str, Any] = {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "gpu": catalog.gpu("a100-80gb"),
        "intra_node": catalog.link("nvlink-3"),
        "inter_node": catalog.link("100gbe"),
        "host_memory_bytes": 1000 * GIB,
        "cpu_cores": 64,
        "nvme": NVME,
    }
    return ClusterSpec(**(values | changed))


def cpu_cluster(nodes: int = 1, ranks: int = 2, **changed: Any) -> ClusterSpec:
    """Machines without an accelerator."""
    card = GpuSpec(
        name="cpu",
        memory_bytes=8 * GIB,
        memory_bytes_per_s=2e10,
        peak_flops={"bf16": 1e11, "fp32": 1e11},
        matmul_efficiency=0.5,
        host_link_bytes_per_s=1e10,
    )
    return cluster(nodes, ranks, **({"gpu": card, "cpu_cores": 2, "nvme": None} | changed))


def workload(**changed: Any) -> Workload:
    """A short fine-tuning run in bf16."""
    values: dict[str, Any] = {
        "sequence_length": 4096,
        "global_batch_size": 128,
        "learning_rate": 2e-5,
        "weight_decay": 0.1,
        "tokens": 524_288_000,
    }
    return Workload(**(values | changed))


def priced(strategy: Strategy, *, step_s: float = 6.4, fits: bool = True) -> Priced:
    """A strategy with a price that is made up but has the right shape."""
    memory = MemoryEstimate(
        terms=MemoryTerms(
            weights=13 * GIB,
            gradients=GIB,
            optimizer_state=5 * GIB,
            activations=20 * GIB,
            logits=2 * GIB,
            buffers=GIB,
            framework=GIB,
        ),
        allocated_bytes=Interval(40.0 * GIB, 42.0 * GIB, 45.0 * GIB),
        reserved_bytes=Interval(41.0 * GIB, 44.0 * GIB, 48.0 * GIB),
        device_bytes=Interval(42.0 * GIB, 45.0 * GIB, 50.0 * GIB),
        host_bytes=HostMemory(load=30 * GIB, init=40 * GIB, step=20 * GIB, save=25 * GIB),
        nvme_bytes=0,
        checkpoint_bytes=94 * GIB,
    )
    time = TimeEstimate(
        terms=TimeTerms(
            compute_s=0.8 * step_s,
            communication_s=0.15 * step_s,
            bubble_s=0,
            offload_s=0,
            optimizer_s=0.05 * step_s,
        ),
        step_s=Interval(0.9 * step_s, step_s, 1.2 * step_s),
        tokens_per_s_per_gpu=3000,
        model_tflops_per_gpu=130,
        sent_bytes=26 * GIB,
    )
    on_disk = "nvme" in (strategy.offload_optimizer, strategy.offload_parameters)
    return Priced(
        strategy=strategy,
        fits=fits,
        memory=memory,
        time=time,
        buckets=BUCKETS,
        aio=AIO if on_disk else None,
        reasons=(Reason(rule="zero-2-before-3", message="ZeRO-2 fits, so ZeRO-3 is not needed"),),
    )


def deepspeed_strategy(on: ClusterSpec, **changed: Any) -> Strategy:
    """Data parallelism over the whole cluster."""
    tensor = changed.pop("tensor_parallel_size", 1)
    values: dict[str, Any] = {
        "layout": Layout(data_parallel_size=on.gpus // tensor, tensor_parallel_size=tensor),
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "zero_stage": 2,
        "recompute": "full",
    }
    return Strategy(**(values | changed))


def megatron_strategy(on: ClusterSpec, **changed: Any) -> Strategy:
    """Tensor parallelism in pairs, two pipeline stages where the cluster has four cards."""
    tensor, stages = min(2, on.gpus), 2 if on.gpus >= 4 else 1
    layout = Layout(
        data_parallel_size=on.gpus // (tensor * stages),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
    )
    values: dict[str, Any] = {
        "back_end": "megatron",
        "layout": layout,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "zero_stage": 1,
        "recompute": "selective",
        "sequence_parallel": tensor > 1,
    }
    return Strategy(**(values | changed))


def plan(
    model: str = "llama-2-7b",
    *,
    on: ClusterSpec | None = None,
    work: Workload | None = None,
    choice: Strategy | None = None,
    **strategy: Any,
) -> Plan:
    """A plan with every variant that the cluster's disk allows."""
    on = on or cluster()
    work = work or workload()
    spec = catalog.model(model)
    chosen = choice or deepspeed_strategy(on, **strategy)
    return Plan(
        model=spec,
        parameters=parameters(spec),
        cluster=on,
        workload=work,
        choice=priced(chosen),
        variants=(*(_zero(name, on) for name in ZERO), _megatron(spec, on, work)),
    )


def _zero(name: VariantName, on: ClusterSpec) -> Variant:
    """A ZeRO variant; without a disk the one on NVMe is illegal."""
    if name == "zero3_nvme" and on.nvme is None:
        problem = Problem("nvme-present", "NVMe offload needs a disk, the cluster has none")
        return Variant(name=name, priced=None, problems=(problem,))
    return Variant(name=name, priced=priced(deepspeed_strategy(on, **ZERO[name])))


def _megatron(model: ModelSpec, on: ClusterSpec, work: Workload) -> Variant:
    """The Megatron variant, where pretrain_gpt.py can build the model."""
    if work.method == "lora":
        return Variant(name="megatron", priced=None, problems=(NO_ADAPTERS,))
    if work.optimizer not in OPTIMIZERS["megatron"]:
        problem = Problem("optimizer", f"optimizer={work.optimizer} is not available")
        return Variant(name="megatron", priced=None, problems=(problem,))
    strategy = megatron_strategy(on)
    problem = pretrain_gpt(case_of(model, on, work, strategy))
    if problem is not None:
        return Variant(name="megatron", priced=None, problems=(problem,))
    return Variant(name="megatron", priced=priced(strategy, step_s=5.1))


HOSTS = (Host(address="10.0.0.1", slots=8), Host(address="10.0.0.2", slots=8))
CLUSTERS: dict[str, ClusterSpec] = {
    "two-nodes": cluster(hosts=HOSTS, interface="eth0"),
    "no-hosts": cluster(),
    "ssh": cluster(hosts=HOSTS, ssh_user="me", ssh_port=2222),
    "one-node": cluster(1),
    "cpu": cpu_cluster(),
    "two-cpu-nodes": cpu_cluster(2, 1, interface="eth0"),
}
