"""Plans proposed for random requests, put before the engines that would have to run them.

`python tests/conformance/proposed.py deepspeed 500` rehearses 500 plans, each in a process of its
own (a pretended GPU stays for as long as its process lives, and so do the classes that PEFT and
ZeRO-3 rewrite), `megatron` builds megatron-core's config classes. Prints JSON: how many were tried,
and what was refused with the request that led to it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

from dsforge import catalog
from dsforge.errors import DsforgeError
from dsforge.huggingface import config_from_model
from dsforge.plan import Plan, Request
from dsforge.planner import search
from dsforge.render import render
from dsforge.specs import ClusterSpec, LoraSpec, Workload
from dsforge.strategy import BackEnd, Constraints

GIB = 1024**3
MODELS = (
    *("gpt2", "gpt2-xl", "pythia-1b", "pythia-6.9b", "opt-1.3b", "llama-2-7b", "llama-2-13b"),
    *("llama-3.1-8b", "llama-3.1-70b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "qwen2.5-0.5b"),
    *("gemma-2-9b", "falcon-7b", "phi-3-mini", "mixtral-8x7b", "gpt3-175b", "llama-3.1-405b"),
)
CARDS = (
    *(("rtx-4090", "pcie-4"), ("a100-40gb", "nvlink-3"), ("a100-80gb", "nvlink-3")),
    *(("h100-80gb", "nvlink-4"), ("l40s", "pcie-4"), ("h200", "nvlink-4")),
)
ENGINES = {
    "deepspeed": ("dsforge.rehearse.run", "transformers.models.auto.modeling_auto", "peft"),
    "megatron": ("megatron.core.transformer.transformer_config",),
}  # what takes seconds to import
PLANS_OF_ONE = 4  # proposals taken from one search


def requests(seed: int, back_end: BackEnd) -> Iterator[Request]:
    """Models, clusters and batches at random, for ever; a disk cannot be pretended."""
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    known = [name for name in MODELS if name in catalog.model_names()]
    while True:
        model = catalog.model(draw.choice(known))
        gpu, intra = draw.choice(CARDS)
        cluster = ClusterSpec(
            nodes=draw.choice((1, 1, 2, 3, 4, 8, 16, 64)),
            gpus_per_node=draw.choice((1, 2, 4, 8)),
            gpu=catalog.gpu(gpu),
            intra_node=catalog.link(intra),
            inter_node=catalog.link(draw.choice(("10gbe", "100gbe", "infiniband-400"))),
            host_memory_bytes=draw.choice((128, 512, 2048)) * GIB,
            cpu_cores=64,
        )
        adapters = draw.random() < 0.25
        longest = min(65536, model.max_position_embeddings)
        workload = Workload(
            sequence_length=draw.choice(
                [n for n in (512, 1024, 2048, 8192, 65536) if n <= longest]
            ),
            global_batch_size=draw.choice((8, 48, 64, 256, 1024, 1536)),
            learning_rate=1e-5,
            method="lora" if adapters else "full",
            lora=LoraSpec() if adapters else None,
        )
        fixed = Constraints(back_end=back_end)
        yield Request(model=model, cluster=cluster, workload=workload, constraints=fixed)


def proposals(count: int, back_end: BackEnd) -> Iterator[Plan]:
    """So many plans out of the rankings of random requests, from the top and from below."""
    draw = random.Random(count)  # noqa: S311 - as above
    found = 0
    for request in requests(count, back_end):
        try:
            ranked = search(request).plans
        except DsforgeError:
            continue
        for plan in draw.sample(ranked, min(PLANS_OF_ONE, len(ranked))):
            found += 1
            yield plan
            if found == count:
                return


def rehearsed(plan: Plan) -> str | None:
    """What the engine says against a plan; the model has as few layers as its stages allow."""
    from dsforge.rehearse.run import rehearse
    from dsforge.rehearse.subject import Subject

    text = next(a.text for a in render(plan) if a.path == "deepspeed/ds_config.json")
    layers = max(2, plan.strategy.layout.pipeline_parallel_size)
    model = plan.model.model_copy(update={"layers": layers})
    work = plan.workload
    subject = Subject(
        config_from_model(model),
        min(work.sequence_length, 128),
        plan.strategy.recompute == "full",
        work.lora if work.method == "lora" else None,
    )
    settings = json.loads(text)
    if "pipeline" in settings:  # of the whole model; the small one has a layer a stage
        assert sum(settings["pipeline"]["partition"]) == plan.model.layers
        settings["pipeline"]["partition"] = [1] * layers
    found = rehearse(subject, settings, world_size=plan.cluster.gpus)
    return found.refused[0].message if found.refused else None


def built(plan: Plan) -> str | None:
    """What megatron-core's config classes say against a plan."""
    from megatron_settings import config_of

    try:
        config_of(plan, plan.strategy)
    except (ValueError, AssertionError) as error:
        return str(error)
    return None


def judged(plan: Plan) -> dict[str, str] | None:
    """A plan and what is said against it; none where nothing is."""
    judge = rehearsed if plan.strategy.back_end == "deepspeed" else built
    try:
        said = judge(plan)
    except DsforgeError as error:
        said = str(error)
    label = f"{plan.model.name} on {plan.cluster.gpus}: {plan.strategy.label()}"
    return None if said is None else {"plan": label, "said": said}


def main(back_end: BackEnd, count: int) -> dict[str, Any]:
    """The count, and every refusal."""
    refused, plans = [], tuple(proposals(count, back_end))
    forked = get_context("forkserver")  # from a process without threads, whose locks are free
    forked.set_forkserver_preload(["dsforge.planner", "dsforge.render", *ENGINES[back_end]])
    with forked.Pool(maxtasksperchild=1) as processes:
        found = processes.imap(judged, plans)
        for number, refusal in enumerate(found, 1):
            if refusal is not None:
                refused.append(refusal)
                print(refusal, file=sys.stderr)
            if number % 25 == 0:
                say = f"{number} of {count} plans, {len(refused)} refused"
                print(say, file=sys.stderr, flush=True)
    return {"back_end": back_end, "plans": count, "refused": refused}


if __name__ == "__main__":
    document = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print, here and in processes
    result = main(sys.argv[1], int(sys.argv[2]))  # type: ignore[arg-type]
    print(json.dumps(result, indent=2), file=document, flush=True)
