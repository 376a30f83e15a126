"""`estimate --exact`: what it knows, what it refuses, and what it shows beside the estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from planning import ask, cluster, lora_workload, strategy, workload

from dsforge import catalog
from dsforge.cli.main import app
from dsforge.errors import SpecError
from dsforge.estimate.memory import estimate_memory
from dsforge.exact.fullest import MOST_RANKS, ExactMemory, engine_rank, exact_memory
from dsforge.exact.peaks import MicroBatch, phase_peaks
from dsforge.exact.residency import resident
from dsforge.exact.scope import KINDS, problems
from dsforge.huggingface import tiny
from dsforge.planner import appraise
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import EXECUTIONS, Strategy

PLAIN = EXECUTIONS["deepspeed"].model_copy(update={"loss": "plain"})
MODEL = tiny(catalog.model("llama-2-7b"))
SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "estimate.schema.json"
FLAGS = "--model llama-3.2-1b --gpu a100-80gb --gpus-per-node 4 --seq-len 512 --zero-stage 2"


def plain(ranks: int = 8, tp: int = 1, pp: int = 1, **values: Any) -> Strategy:
    """A strategy whose loss is simulated."""
    execution = PLAIN.model_copy(update=values.pop("run", {}))
    return strategy(ranks, tp, pp, execution=execution, **values)


def exact(how: Strategy, model: ModelSpec = MODEL, work: Workload | None = None) -> ExactMemory:
    """Exact memory with the buffers that the plan would have."""
    work = work or workload(128, 64)
    request = ask("llama-2-7b", cluster(), work).model_copy(update={"model": model})
    buckets = appraise(request).choice.buckets
    return exact_memory(model, cluster(), work, how, buckets=buckets)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.sampled_from((1, 2, 4, 8, 16)),
    stage=st.sampled_from((0, 1, 2, 3)),
    micro=st.sampled_from((1, 2, 4)),
    offload=st.booleans(),
    recompute=st.sampled_from(("none", "full")),
)
def test_the_fullest_of_all_ranks_is_shown(
    ranks: int, stage: int, micro: int, offload: bool, recompute: str
) -> None:
    """No rank has a higher peak, and states at the end of each phase are those of its engine."""
    how = plain(
        ranks,
        zero_stage=stage,
        micro_batch_size=micro,
        offload_optimizer="cpu" if offload and stage else "none",
        recompute=recompute,
    )
    found, work = exact(how), workload(128, 64)
    buckets = appraise(
        ask("llama-2-7b", cluster(), work).model_copy(update={"model": MODEL})
    ).choice.buckets
    engine = engine_rank(MODEL, work, how, buckets)
    batch = MicroBatch(MODEL, micro, 128, recompute=recompute == "full")
    every = [
        max(phase.peak for phase in phase_peaks(engine._replace(rank=rank), batch).values())
        for rank in range(ranks)
    ]

    assert found.peak_bytes == max(every)
    assert found.peak_bytes == found.phases[found.peak_phase].peak_bytes
    for phase, memory in found.phases.items():
        held = resident(engine._replace(rank=found.rank), phase)
        assert memory.weights == held.device.parameter
        assert memory.host_bytes == held.host.total
        assert memory.peak_bytes >= memory.weights + memory.optimizer_state


def test_of_many_ranks_the_ends_and_some_between_are_simulated() -> None:
    """64 ranks of ZeRO-2 are not all simulated, and it says so; ranks of ZeRO-3 are all equal."""
    many = exact(plain(64, zero_stage=2))

    assert (many.ranks_simulated, many.world_size) == (MOST_RANKS, 64)
    assert exact(plain(64, zero_stage=3)).ranks_simulated == 1


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "mistral-7b-v0.1", "qwen2.5-7b"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_estimate_holds_what_is_simulated(name: str, stage: int) -> None:
    """Closed form and simulation, two accounts of one engine, are within 15 % of each other."""
    how = plain(8, zero_stage=stage, recompute="full" if stage < 2 else "none")
    request = ask(name, cluster(), workload(2048, 64))
    found = exact(how, catalog.model(name), request.workload)
    told = estimate_memory(request.model, cluster(), request.workload, how).allocated_bytes

    assert told.likely == pytest.approx(found.peak_bytes, rel=0.15)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("exact-layout", {"tp": 2}),
    "pipeline": ("exact-layout", {"pp": 2, "zero_stage": 1}),
    "context": ("exact-layout", {"context_parallel_size": 2}),
    "parameters off": ("exact-offload", {"zero_stage": 3, "offload_parameters": "cpu"}),
    "disk": ("exact-offload", {"zero_stage": 3, "offload_optimizer": "nvme"}),
    "hpz": ("exact-engine-setting", {"zero_stage": 3, "hpz_partition_size": 2}),
    "fp32 sums": ("exact-engine-setting", {"zero_stage": 2, "run": {"gradients": "fp32"}}),
    "fp32 sent": ("exact-engine-setting", {"zero_stage": 2, "run": {"reduced": "fp32"}}),
    "int8 gathers": ("exact-engine-setting", {"zero_stage": 3, "run": {"quantized_weights": True}}),
    "ratio": ("exact-engine-setting", {"zero_stage": 3, "run": {"offload_ratio": 0.5}}),
    "chunked": ("exact-loss", {"zero_stage": 2, "run": {"loss": "chunked"}}),
    "default loss": ("exact-loss", {"zero_stage": 2, "run": {"loss": None}}),
    "selective": ("exact-recompute", {"zero_stage": 2, "recompute": "selective"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_is_not_known_is_refused(name: str) -> None:
    """One reason with its rule, a value and the way out; the message says what is known."""
    rule, values = REFUSED[name]

    with pytest.raises(SpecError, match="knows only dense decoders") as caught:
        exact(plain(8, **values))

    assert [problem.rule for problem in caught.value.problems] == [rule]
    assert all(problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("exact-optimizer", {"optimizer": "lion"}),
        ("exact-precision", {"precision": "fp8"}),
    ],
)
def test_a_job_that_is_not_known_is_refused(rule: str, change: dict[str, Any]) -> None:
    """Adam's two moments in one of three precisions."""
    found = problems(MODEL, cluster(), workload(128, 64, **change), plain(8, zero_stage=2))

    assert [problem.rule for problem in found] == [rule]


def test_recomputed_adapters_under_zero_3_are_refused() -> None:
    """The engine keeps more there than is simulated; ZeRO-2 is known."""
    work, how = lora_workload(128), plain(8, zero_stage=3, recompute="full")
    found = problems(MODEL, cluster(), work, how)

    assert [problem.rule for problem in found] == ["exact-recompute"]
    assert problems(MODEL, cluster(), work, plain(8, zero_stage=2, recompute="full")) == ()


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_of_the_catalog_is_known_or_refused(name: str) -> None:
    """Kinds that the engine has confirmed, and no others; nothing fails in the simulator."""
    model = catalog.model(name)
    found = problems(model, cluster(), workload(), plain(8, zero_stage=2))

    assert not found or model.model_type not in KINDS or model.tower is not None
    if not found:
        assert model.model_type in (None, *KINDS)
        small = tiny(model)
        assert exact(plain(2, zero_stage=2), small).peak_bytes > 0


def estimated(*words: str) -> Any:
    """The command's result."""
    return CliRunner().invoke(app, ["estimate", *FLAGS.split(), *words])


def test_the_command_shows_each_phase_beside_the_estimate() -> None:
    """Peak, owners, the fullest rank; the loss that is simulated is named."""
    done = estimated("--exact")

    assert done.exit_code == 0
    for word in ("forward", "backward", "step", "the estimate is", "the fullest of 4 ranks"):
        assert word in done.output


def test_the_document_is_valid_with_and_without() -> None:
    """`exact` is null unless asked for."""
    schema = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    with_it, without = (json.loads(estimated(*w, "--json").output) for w in (["--exact"], []))
    for document in (with_it, without):
        schema.validate(document)

    assert without["exact"] is None
    assert with_it["loss"] == "plain"
    assert with_it["exact"]["peak_bytes"] == max(
        phase["peak_bytes"] for phase in with_it["exact"]["phases"].values()
    )


def test_a_refusal_of_the_command_names_rule_and_way_out() -> None:
    """Exit code 1, nothing on stdout."""
    done = estimated("--exact", "--loss", "chunked")

    assert isinstance(done.exception, SpecError)
    assert done.stdout == ""
    assert "use --loss plain" in str(done.exception.problems[0])
