"""Plans proposed for random requests, put before the engines that would have to run them.

`python tests/conformance/proposed.py deepspeed 500` rehearses 500 plans, each in a process of its
own (a fake GPU stays for as long as its process lives, and so do the classes that PEFT and
ZeRO-3 rewrite), `megatron` builds megatron-core's config classes. Prints JSON: how many were tried,
how many of them cut a pipeline unevenly or have experts, and what was refused with the request that
led to it. `DSFORGE_SEED` draws others.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drawing import draw_request

from dsforge.errors import DsforgeError
from dsforge.estimate.cut import stages_of
from dsforge.huggingface import config_from_model
from dsforge.plan import Plan, Request
from dsforge.planner import search
from dsforge.render import render
from dsforge.strategy import BackEnd, Constraints

ENGINES = {
    "deepspeed": ("dsforge.rehearse.run", "transformers.models.auto.modeling_auto", "peft"),
    "megatron": ("megatron.core.transformer.transformer_config",),
}  # what takes seconds to import
SEED = int(os.environ.get("DSFORGE_SEED", "11"))
PLANS_OF_ONE = 4  # proposals taken from one search


def requests(seed: int, back_end: BackEnd) -> Iterator[Request]:
    """Jobs that somebody could ask of a back end, for ever."""
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    while True:
        request = draw_request(draw)
        if back_end == "megatron" and request.workload.method == "lora":
            continue  # priced, and no files are written (constraints/megatron.py, NO_ADAPTERS)
        yield request.model_copy(update={"constraints": Constraints(back_end=back_end)})


def proposals(count: int, back_end: BackEnd) -> Iterator[Plan]:
    """So many plans out of the rankings of random requests, from the top and from below."""
    draw = random.Random(SEED)  # noqa: S311 - as above
    found = 0
    for request in requests(SEED, back_end):
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
    """What the engine says against a plan; the model has as few layers as its stages allow.

    A pipeline that is cut unevenly stays so: the fullest stages have two layers, the others one.
    """
    from dsforge.rehearse.rehearsed_job import RehearsedJob
    from dsforge.rehearse.run import rehearse

    text = next(a.text for a in render(plan) if a.path == "deepspeed/ds_config.json")
    settings = json.loads(text)
    cut = settings.get("pipeline", {}).get("partition")
    if cut:
        assert sum(cut) == plan.model.layers
        cut = settings["pipeline"]["partition"] = [1 + (stage > min(cut)) for stage in cut]
    model = plan.model.model_copy(update={"layers": sum(cut) if cut else 2})
    work = plan.workload
    job = RehearsedJob(
        config_from_model(model),
        min(work.sequence_length, 128),
        plan.strategy.recompute == "full",
        work.lora if work.method == "lora" else None,
    )
    found = rehearse(job, settings, world_size=plan.cluster.gpus)
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


def is_uneven(plan: Plan) -> bool:
    """Whether some stages of its pipeline have more layers than others."""
    how = plan.strategy
    return len({stage.layers for stage in stages_of(plan.model, how)}) > 1


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
    return {
        "back_end": back_end,
        "plans": count,
        "uneven_pipelines": sum(map(is_uneven, plans)),
        "with_experts": sum(plan.model.moe is not None for plan in plans),
        "refused": refused,
    }


if __name__ == "__main__":
    document = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print, here and in processes
    result = main(sys.argv[1], int(sys.argv[2]))  # type: ignore[arg-type]
    print(json.dumps(result, indent=2), file=document, flush=True)
