"""Random models on random clusters, and random ways to train them: the same seed, the same draw."""

from __future__ import annotations

from random import Random
from typing import Any

from dsforge import catalog
from dsforge.constraints import check, divisors
from dsforge.layout import Layout
from dsforge.plan import Request
from dsforge.specs import ClusterSpec, LoraSpec, Workload
from dsforge.strategy import Strategy
from dsforge.units import GIB

MODELS = (
    "pythia-1b",
    "gpt2-xl",
    "llama-2-7b",
    "llama-3.1-8b",
    "qwen2.5-14b",
    "llama-3.1-70b",
    "mistral-large-123b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "glm-4.5",
)
CARDS = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200")
SLOTS = ("pcie-4", "nvlink-3", "nvlink-4")
NETWORKS = ("1gbe", "10gbe", "25gbe", "40gbe", "100gbe", "infiniband-200", "infiniband-400")
NODES, CARDS_OF_A_NODE = (1, 1, 2, 2, 3, 4, 4, 6, 8, 16), (1, 2, 4, 4, 6, 8, 8, 8)


def draw_cluster(draw: Random) -> ClusterSpec:
    """Some nodes of equal cards."""
    gpus = draw.choice(CARDS_OF_A_NODE)
    return ClusterSpec(
        nodes=draw.choice(NODES),
        gpus_per_node=gpus,
        gpu=catalog.gpu(draw.choice(CARDS)),
        intra_node=catalog.link(draw.choice(SLOTS)),
        inter_node=catalog.link(draw.choice(NETWORKS)),
        nics_per_node=draw.choice((1, 1, 2, gpus)),
        host_memory_bytes=draw.choice((128, 512, 1024, 2048)) * GIB,
        cpu_cores=draw.choice((16, 64, 128)),
    )


def draw_workload(draw: Random) -> Workload:
    """A step of pretraining or of fine-tuning."""
    lora = draw.random() < 0.15
    return Workload(
        sequence_length=draw.choice((512, 2048, 4096, 8192)),
        global_batch_size=draw.choice((12, 16, 32, 64, 96, 256, 768)),
        learning_rate=1e-5,
        method="lora" if lora else "full",
        lora=LoraSpec() if lora else None,
    )


def draw_request(draw: Random) -> Request:
    """A job that somebody could ask for, whether it fits or not."""
    return Request(
        model=catalog.model(draw.choice(MODELS)),
        cluster=draw_cluster(draw),
        workload=draw_workload(draw),
    )


def draw_strategy(draw: Random, request: Request, tries: int = 200) -> Strategy | None:
    """A legal way to do the job, whether it fits or not; none where no draw was legal."""
    for _ in range(tries):
        found = _draw(draw, request)
        if not check(request.model, request.cluster, request.workload, found):
            return found
    return None


def _draw(draw: Random, request: Request) -> Strategy:
    model, work = request.model, request.workload
    tp = draw.choice(divisors(request.cluster.gpus_per_node))
    rest = request.cluster.gpus // tp
    pp = draw.choice(divisors(rest))
    cp = draw.choice((1, 1, 1, *divisors(rest // pp)))
    dp = rest // pp // cp
    ep = draw.choice(divisors(dp * cp)) if model.moe else 1
    share = max(1, work.global_batch_size // dp)
    micro = draw.choice(divisors(share))
    megatron = draw.random() < 0.7
    how: dict[str, Any] = {"zero_stage": 1 if dp * cp > 1 else 0, "back_end": "megatron"}
    if megatron and pp > 1:
        how["virtual_stages"] = draw.choice((1, 1, 2, 4))
    if not megatron:
        stage = draw.choice((0, 1, 2, 3))
        how = {"zero_stage": stage, "back_end": "deepspeed"}
        if stage and draw.random() < 0.3:
            how["offload_optimizer"] = "cpu"
        tp, cp, ep = (1, 1, 1) if draw.random() < 0.7 else (tp, 1, 1)
        pp = pp if stage < 2 else 1
        dp = request.cluster.gpus // (tp * pp)
        share = max(1, work.global_batch_size // dp)
        micro = draw.choice(divisors(share))
    return Strategy(
        layout=Layout(
            data_parallel_size=dp,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            context_parallel_size=cp,
            expert_parallel_size=ep,
        ),
        micro_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        recompute=draw.choice(("none", "full")),
        sequence_parallel=megatron and tp > 1 and work.sequence_length % (tp * cp) == 0,
        **how,
    )
