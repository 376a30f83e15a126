"""What `gen` writes, `estimate --ds-config` prices: the same strategy and the same figures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from drawing import draw_request, draw_strategy
from golden_plans import CASES, plan_of

from dsforge.errors import DsforgeError
from dsforge.plan import Plan, Request
from dsforge.planner import appraise, price
from dsforge.planner.candidates import base, layouts
from dsforge.reading.ds_config import read_ds_config, settings_of, settings_within
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting
from dsforge.render import render
from dsforge.strategy import Constraints, Strategy

PLANS = 200
CONFIG = "deepspeed/ds_config.json"


def written(plan: Plan, folder: Path) -> Path | None:
    """The ds_config of a plan as a file; none where Megatron runs it."""
    text = next((a.text for a in render(plan) if a.path == CONFIG), None)
    if text is None:
        return None
    path = folder / "ds_config.json"
    path.write_text(text)
    return path


def asked_by(path: Path, plan: Plan) -> Request:
    """The request of the file alone on a plan's model, cluster and sequence.

    Recomputation is the model's and the loss the trainer's: they are no keys.
    """
    file = read_ds_config(path)
    layout = plan.strategy.layout
    sizes = Constraints(
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
    )
    request = Request(
        model=plan.model, cluster=plan.cluster, workload=plan.workload, constraints=sizes
    )
    parts: dict[str, dict[str, Any]] = {
        "strategy": {"recompute": plan.strategy.recompute},
        "workload": {},
    }
    for (part, key), value, _ in (*settings_of(file), *settings_within(file, request)):
        parts[str(part)][str(key)] = value
    return request.model_copy(
        update={
            "workload": plan.workload.model_copy(update=parts["workload"]),
            "constraints": Constraints(**parts["strategy"] | {"loss": plan.strategy.runs_as.loss}),
        }
    )


def without_buckets(strategy: Strategy) -> dict[str, Any]:
    """A strategy but for who chose its buckets: the planner, or the file."""
    run = strategy.runs_as.model_dump(exclude={"buckets"})
    return {**strategy.model_dump(exclude={"execution"}), "runs_as": run}


def constraints(draw: random.Random, strategy: Strategy) -> Constraints:
    """A drawn strategy as constraints, some with ZeRO++, float32 sums or bf16 states."""
    layout, stage = strategy.layout, strategy.zero_stage
    more: dict[str, Any] = {}
    if stage == 3 and draw.random() < 0.5:
        more = {"quantized_weights": draw.random() < 0.5, "quantized_gradients": True}
        more["hpz_partition_size"] = draw.choice((1, 2, 4))
        if strategy.offload_optimizer == "cpu":
            more["offload_ratio"] = draw.choice((0.0, 0.3, 0.9))
    elif stage and draw.random() < 0.3:
        more = {"gradient_type": "fp32", "communication_type": draw.choice((None, "fp32"))}
    elif stage and draw.random() < 0.3:
        more = {"bf16_states": True}
    return Constraints(
        back_end="deepspeed",
        micro_batch_size=strategy.micro_batch_size,
        zero_stage=stage,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        offload_optimizer=strategy.offload_optimizer,
        offload_parameters=draw.choice(("none", "cpu")) if stage == 3 else "none",
        recompute=strategy.recompute,
        **more,
    )


def drawn_plans() -> Iterator[Plan]:
    """DeepSpeed plans of random strategies, whether they fit or not."""
    draw = random.Random(15)  # noqa: S311 - a sample, no secret
    while True:
        request = draw_request(draw)
        strategy = draw_strategy(draw, request)
        if strategy is None or strategy.back_end != "deepspeed":
            continue
        fixed = constraints(draw, strategy)
        optimizer = draw.choice(("adamw", "adamw", "lion", "sgd", "muon", "adafactor"))
        precision = draw.choice(("bf16", "bf16", "fp16", "fp32"))
        work = request.workload.model_copy(update={"optimizer": optimizer, "precision": precision})
        try:
            yield appraise(request.model_copy(update={"workload": work, "constraints": fixed}))
        except DsforgeError:
            continue


def test_random_plans_are_priced_alike_from_their_files(tmp_path: Path) -> None:
    """200 plans of all ZeRO stages, with tensor and pipeline parallelism and offload."""
    kinds = set()
    for plan in islice(drawn_plans(), PLANS):
        path = written(plan, tmp_path)
        assert path is not None
        again = appraise(asked_by(path, plan))

        assert without_buckets(again.strategy) == without_buckets(plan.strategy)
        assert again.choice.memory == plan.choice.memory
        assert again.choice.time == plan.choice.time
        layout = plan.strategy.layout
        kinds.add(("stage", plan.strategy.zero_stage))
        kinds |= {("tensor", layout.tensor_parallel_size > 1)}
        kinds |= {("pipeline", layout.pipeline_parallel_size > 1)}
        kinds |= {("offload", plan.strategy.offloads)}
    assert len(kinds) == 10


RUNS = [
    case
    for case in CASES
    if (case / "expected" / CONFIG).exists() and plan_of(case).strategy.back_end == "deepspeed"
]


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.name)
def test_golden_folders_are_priced_as_planned(case: Path) -> None:
    """Each ds_config of a golden run folder gives its strategy, with the buckets of the file.

    Some of them are no legal plans, so they are not searched for but priced.
    """
    plan = plan_of(case)
    chosen, request = plan.strategy, asked_by(case / "expected" / CONFIG, plan)
    offloads = chosen.offload_optimizer, chosen.offload_parameters
    (layout,) = layouts(request, "deepspeed")
    again = base(
        request, "deepspeed", layout, stage=request.constraints.zero_stage or 0, offloads=offloads
    )
    run = chosen.runs_as.model_copy(
        update={"buckets": plan.choice.buckets if chosen.zero_stage else "sized"}
    )
    wanted = chosen.model_copy(update={"execution": run})
    inputs = request.model, request.cluster, request.workload
    first, second = price(*inputs, wanted), price(*inputs, again)

    assert without_buckets(again) == without_buckets(chosen)
    assert request.workload.precision == plan.workload.precision
    assert request.workload.optimizer == plan.workload.optimizer
    assert (second.memory, second.time) == (first.memory, first.time)


def test_the_command_line_prices_its_own_pipeline_config(tmp_path: Path) -> None:
    """`gen --pp 2`, then `estimate --ds-config`: the batch counts data-parallel ranks alone."""
    flags = {
        ("model",): "gpt2-xl",
        ("cluster", "gpu"): "a100-80gb",
        ("cluster", "nodes"): 2,
        ("cluster", "gpus_per_node"): 8,
        ("strategy", "recompute"): "full",
    }
    settings = tuple(Setting(loc, value, "--flag") for loc, value in flags.items())
    pipeline = {("strategy", "back_end"): "deepspeed", ("strategy", "pipeline_parallel_size"): 2}
    asked = Asked(settings=(*settings, *(Setting(k, v, "--pp") for k, v in pipeline.items())))
    plan = appraise(read_request(asked))
    path = written(plan, tmp_path)
    again = appraise(read_request(Asked(ds_config=path, settings=settings)))

    assert plan.strategy.layout.pipeline_parallel_size == 2
    assert again.strategy.layout == plan.strategy.layout
    assert (again.choice.memory, again.choice.time) == (plan.choice.memory, plan.choice.time)
