"""The search against brute force: every combination priced in full, none left out as worse.

Nothing of the planner is used here but its public answer: combinations are enumerated from the
inputs alone, the rules refuse, the estimates price, and the preferences are applied as the guide
states them. So a plan that the search leaves out although it is better fails a case.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import log
from typing import Any, NamedTuple

import pytest
from sampled import each

from dsforge import catalog
from dsforge.constraints import check
from dsforge.layout import Layout
from dsforge.plan import PREFERRED, Priced, Request
from dsforge.planner import choose, price, search
from dsforge.specs import ClusterSpec, LoraSpec, NvmeSpec, Workload
from dsforge.strategy import EXECUTIONS, Constraints, Strategy

GIB = 1024**3
DISK = NvmeSpec(path="/nvme", size_bytes=4000 * GIB, read_bytes_per_s=6e9, write_bytes_per_s=3e9)
OFFLOADS = tuple(product(("none", "cpu", "nvme"), repeat=2))


class Worked(NamedTuple):
    """One case: model, nodes x cards, links, samples x tokens, and what is fixed."""

    model: str
    nodes: int
    gpus: int
    gpu: str = "a100-80gb"
    batch: int = 16
    tokens: int = 2048
    inter: str = "infiniband-200"
    intra: str = "nvlink-3"
    fixed: tuple[tuple[str, Any], ...] = ()
    method: str = "full"
    disk: bool = False

    def request(self) -> Request:
        """What the planner is asked."""
        return Request(
            model=catalog.model(self.model),
            cluster=ClusterSpec(
                nodes=self.nodes,
                gpus_per_node=self.gpus,
                gpu=catalog.gpu(self.gpu),
                intra_node=catalog.link(self.intra),
                inter_node=catalog.link(self.inter),
                host_memory_bytes=512 * GIB,
                cpu_cores=64,
                nvme=DISK if self.disk else None,
            ),
            workload=Workload(
                sequence_length=self.tokens,
                global_batch_size=self.batch,
                learning_rate=1e-5,
                method=self.method,  # type: ignore[arg-type]
                lora=LoraSpec() if self.method == "lora" else None,
                precision="fp16" if self.gpu.startswith("v100") else "bf16",
            ),
            constraints=Constraints(**dict(self.fixed)),
        )


PCIE = {"gpu": "rtx-4090", "intra": "pcie-4", "inter": "10gbe"}
ZERO3 = (("zero_stage", 3),)
MEGATRON = (("back_end", "megatron"),)
CASES = (
    Worked("gpt2", 1, 1, tokens=1024),
    Worked("gpt2-xl", 1, 1, batch=8, tokens=1024),
    Worked("pythia-1b", 1, 2),
    Worked("pythia-1b", 1, 4, batch=12),
    Worked("pythia-1b", 2, 2, inter="10gbe"),
    Worked("pythia-2.8b", 1, 2, batch=4),
    Worked("pythia-2.8b", 1, 4, **PCIE),
    Worked("pythia-6.9b", 1, 4),
    Worked("pythia-6.9b", 2, 2, inter="25gbe"),
    Worked("pythia-12b", 1, 4, batch=8),
    Worked("llama-2-7b", 1, 1, batch=4),
    Worked("llama-2-7b", 1, 1, "rtx-4090", 4, disk=True, intra="pcie-4"),
    Worked("llama-2-7b", 1, 2, batch=8),
    Worked("llama-2-7b", 1, 4, batch=16, tokens=4096),
    Worked("llama-2-7b", 1, 4, batch=16, tokens=4096, fixed=ZERO3),
    Worked("llama-2-7b", 1, 4, fixed=MEGATRON),
    Worked("llama-2-7b", 2, 2, fixed=MEGATRON, inter="10gbe"),
    Worked("llama-2-7b", 1, 4, batch=6, fixed=MEGATRON),
    Worked("llama-2-7b", 2, 4, batch=16, **PCIE),
    Worked("llama-2-7b", 1, 4, "v100-32gb", 8, intra="nvlink-2"),
    Worked("llama-2-7b", 1, 4, batch=16, method="lora"),
    Worked("llama-2-7b", 1, 2, batch=8, method="lora", **PCIE),
    Worked("llama-2-7b", 1, 4, batch=4, tokens=4096, fixed=(("micro_batch_size", 1),)),
    Worked("llama-2-7b", 1, 4, fixed=(("recompute", "full"),)),
    Worked("llama-2-7b", 1, 4, fixed=(("offload_optimizer", "cpu"),)),
    Worked("llama-2-7b", 1, 4, fixed=(*MEGATRON, ("tensor_parallel_size", 2))),
    Worked("llama-2-13b", 1, 4, batch=8),
    Worked("llama-2-13b", 1, 4, batch=8, fixed=MEGATRON),
    Worked("llama-2-13b", 1, 2, batch=4, disk=True),
    Worked("llama-2-13b", 2, 4, batch=16, inter="100gbe"),
    Worked("llama-2-13b", 2, 4, "a100-40gb", 16, inter="10gbe"),
    Worked("llama-3-8b", 1, 4, "h100-80gb", 8, 8192, intra="nvlink-4"),
    Worked("llama-3-8b", 1, 4, "h100-80gb", 4, 8192, intra="nvlink-4", fixed=MEGATRON),
    Worked("llama-3-8b", 2, 2, "h100-80gb", 8, 4096, intra="nvlink-4"),
    Worked("qwen2.5-7b", 1, 4, batch=8, tokens=4096),
    Worked("qwen2.5-7b", 1, 4, "l40s", 8, intra="pcie-4"),
    Worked("codellama-34b", 2, 4, batch=8),
    Worked("codellama-34b", 2, 4, batch=8, fixed=MEGATRON),
    Worked("mixtral-8x7b", 1, 8, "h200", 8, intra="nvlink-4", fixed=MEGATRON),
    Worked("mixtral-8x7b", 2, 4, "h200", 8, intra="nvlink-4"),
)


def divisors(number: int) -> list[int]:
    """By trial."""
    return [n for n in range(1, number + 1) if number % n == 0]


def layouts(request: Request) -> Iterator[Layout]:
    """Every way to lay the ranks out."""
    gpus, moe = request.cluster.gpus, request.model.moe
    for dp, tp, pp in product(divisors(gpus), repeat=3):
        if gpus % (dp * tp * pp) == 0:
            for ep in divisors(moe.experts) if moe else [1]:
                yield Layout(
                    data_parallel_size=dp,
                    tensor_parallel_size=tp,
                    pipeline_parallel_size=pp,
                    context_parallel_size=gpus // (dp * tp * pp),
                    expert_parallel_size=ep,
                )


def strategies(request: Request) -> Iterator[Strategy]:
    """Every combination; DeepSpeed has neither context nor expert parallelism nor interleaving."""
    fixed, tokens = request.constraints, request.workload.sequence_length
    run = EXECUTIONS["deepspeed"].model_copy(update={"dropout": True})  # as its config says
    dropping = run if any(dict(request.model.dropout).values()) else None
    for layout in layouts(request):
        share, rest = divmod(request.workload.global_batch_size, layout.data_parallel_size)
        tp, cp, pp = (
            layout.tensor_parallel_size,
            layout.context_parallel_size,
            layout.pipeline_parallel_size,
        )
        if rest:
            continue
        staged = range(1, request.model.layers) if pp > 1 else [1]
        back_ends = ("megatron",) if _considers_megatron(request) else ()
        megatron = product(back_ends, (0, 1), (("none", "none"),), staged)
        plain = [
            *product(("deepspeed",), (0, 1, 2, 3), OFFLOADS, [1]),
            *product(("deepspeed",), (3,), OFFLOADS, divisors(layout.data_parallel_size)[1:-1]),
        ]
        kinds = [*megatron, *(plain if cp * layout.expert_parallel_size == 1 else ())]
        for kind, micro, recompute in product(
            kinds, divisors(share), ("none", "selective", "full")
        ):
            back_end, stage, (optimizer, params), size = kind
            staged_by = size if back_end == "megatron" else 1
            candidate = Strategy(
                back_end=back_end,
                layout=layout,
                zero_stage=stage,
                offload_optimizer=optimizer,
                offload_parameters=params,
                micro_batch_size=micro,
                gradient_accumulation_steps=share // micro,
                virtual_stages=staged_by,
                hpz_partition_size=size // staged_by,
                recompute=recompute,
                sequence_parallel=back_end == "megatron" and tp > 1 and tokens % (tp * cp) == 0,
                execution=dropping if back_end == "deepspeed" else None,
            )
            if _obeys(candidate, fixed):
                yield candidate


def _considers_megatron(request: Request) -> bool:
    """Adapters are priced on Megatron-LM and not written for it: only where it is asked for."""
    return request.workload.method != "lora" or request.constraints.back_end == "megatron"


def _obeys(strategy: Strategy, fixed: Constraints) -> bool:
    """Whether a strategy is what was asked for; stage and offload are DeepSpeed's words."""
    asked = {name: value for name, value in fixed if value is not None and name != "buckets"}
    theirs = {"zero_stage", "offload_optimizer", "offload_parameters"} & asked.keys()
    if theirs and strategy.back_end != "deepspeed":
        return False
    cut = {"tensor_parallel_size", "pipeline_parallel_size"} - asked.keys()
    values = {**dict(strategy), **dict(strategy.layout)}
    if theirs and any(values[size] > 1 for size in cut):  # ZeRO alone is meant
        return False
    return all(values[name] == value for name, value in asked.items())


def fitting(request: Request) -> list[Priced]:
    """Everything legal that fits."""
    inputs = request.model, request.cluster, request.workload
    legal = (one for one in strategies(request) if not check(*inputs, one))
    return [priced for one in legal if (priced := price(*inputs, one)).fits]


def seconds(priced: Priced) -> float:
    """The likely step."""
    return priced.time.step_s.likely


def as_sure(request: Request, found: list[Priced]) -> list[Priced]:
    """What fits for sure; where nothing does, what is least beyond the card by its upper end."""
    room = request.cluster.gpu.memory_bytes
    beyond = [max(0.0, p.memory.device_bytes.high - room) for p in found]
    return [p for p, more in zip(found, beyond, strict=True) if more <= min(beyond)]


def demands(one: Strategy) -> tuple[Any, ...]:
    """What a strategy asks of its user, as the guide's card orders it; less is easier."""
    tensor, stages = one.layout.tensor_parallel_size, one.layout.pipeline_parallel_size
    megatron = one.back_end == "megatron"
    return (
        one.offload_parameters == "nvme",
        one.offload_parameters == "cpu",
        one.offload_optimizer == "nvme",
        one.offload_optimizer == "cpu",
        stages > 1 or (tensor > 1 and not megatron),
        megatron,
        not megatron and one.zero_stage == 3,
        one.hpz_partition_size > 1,
    )


def preferred(request: Request, found: list[Priced]) -> Priced:
    """The card: of what fits as surely and is nearly as fast as the best, the easiest."""
    pool = as_sure(request, found)
    best_s = min(map(seconds, pool))
    near = [p for p in pool if seconds(p) <= request.prefer * best_s]
    return min(
        near,
        key=lambda p: (
            demands(p.strategy),
            round(100 * log(seconds(p))),
            p.memory.device_bytes.likely,
            seconds(p),
        ),
    )


@pytest.mark.parametrize("case", each(4, CASES, lambda case: case.model))
def test_the_choice_is_the_one_of_brute_force(case: Worked) -> None:
    """The same step time and demands as the best of every combination, and nothing is faster."""
    every = fitting(case.request())
    for prefer in (1.0, PREFERRED):
        request = case.request().model_copy(update={"prefer": prefer})
        wanted, chosen = preferred(request, every), choose(request).choice
        fastest_s = min(map(seconds, as_sure(request, every)))

        assert seconds(chosen) == pytest.approx(seconds(wanted), rel=1e-9)
        assert demands(chosen.strategy) == demands(wanted.strategy)
        assert seconds(chosen) <= prefer * fastest_s * (1 + 1e-9)

    found = search(case.request(), most=10_000).plans

    assert min(seconds(plan.choice) for plan in found) == pytest.approx(fastest_s, rel=1e-9)
