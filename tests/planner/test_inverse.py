"""The inverse questions: an answer fits, the next value does not, and flags stay as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from planning import GIB, ask, cluster, lora_workload, workload

from dsforge import catalog
from dsforge.cli.main import app
from dsforge.document import InverseDocument
from dsforge.errors import DoesNotFitError, LayoutError
from dsforge.plan import Reason, Request
from dsforge.planner import appraise
from dsforge.planner.axes import gpus_axis, model_axis, sequence_axis
from dsforge.planner.fitting import nearest, preferred
from dsforge.planner.inverse import (
    Found,
    fewest_gpus,
    largest_micro_batch,
    largest_model,
    longest_sequence,
)
from dsforge.reading.sizes import llama_like

A100 = ("--gpu", "a100-80gb", "--gpus-per-node", "8")
CARD = cluster(1, 1, "rtx-4090", intra="pcie-4")
KNOWN = tuple(catalog.model(name) for name in catalog.model_names())


def free_batch(request: Request) -> Request:
    """The request as reading leaves it where nobody fixed the global batch."""
    why = Reason(rule="default-global-batch", message="`global_batch_size` is 64")
    return request.model_copy(update={"reasons": (why,)})


def model_question(request: Request) -> Found:
    """The largest model of the catalog."""
    return largest_model(request, KNOWN, llama_like)


def typed(*arguments: str) -> Result:
    """What a command line answers."""
    return CliRunner().invoke(app, list(arguments))


SEVEN = free_batch(ask("llama-3.1-8b", cluster(), workload(4096)))
ADAPTERS = ask("llama-3.1-8b", CARD, lora_workload())
LARGE = free_batch(ask("llama-3.1-70b", cluster(16), workload(4096, batch=128)))
REQUESTS = {"8b on 8": SEVEN, "70b on 128": LARGE}
Question = Callable[[Request], Found]
QUESTIONS: dict[str, Question] = {
    "micro-batch": largest_micro_batch,
    "seq-len": longest_sequence,
    "gpus": fewest_gpus,
    "model": model_question,
}


@cache
def answered(name: str, asked: str) -> Found:
    """The answer to a question, asked once for all tests."""
    return QUESTIONS[name](REQUESTS[asked])


@pytest.mark.parametrize("asked", ["8b on 8", "70b on 128"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_fits_and_its_neighbours_do_not(name: str, asked: str) -> None:
    """By the planner's own search: the plan fits, and no neighbour has a strategy that does."""
    found = answered(name, asked)

    assert found.plan.choice.fits
    assert all(n.missing_bytes > 0 or not n.label for n in found.answer.neighbours)
    assert found.answer.neighbours or found.answer.limit


def test_the_next_micro_batches_fit_in_no_strategy() -> None:
    """What bisection found is found by trying one by one, too."""
    value = answered("micro-batch", "8b on 8").answer.value
    tried = range(1, value + 3)

    assert [micro for micro in tried if fits_with(micro)] == list(range(1, value + 1))


def fits_with(micro: int) -> bool:
    """Whether the planner's own search finds a DeepSpeed plan without offload."""
    fixed = SEVEN.constraints.model_copy(
        update={
            "micro_batch_size": micro,
            "back_end": "deepspeed",
            "offload_optimizer": "none",
            "offload_parameters": "none",
        }
    )
    work = SEVEN.workload.model_copy(update={"global_batch_size": 8 * micro})
    return appraise(SEVEN.model_copy(update={"constraints": fixed, "workload": work})).choice.fits


def test_the_interval_is_ordered() -> None:
    """The upper estimate allows least, the lower one most; offload reaches at least as far."""
    answer = longest_sequence(ADAPTERS).answer

    assert answer.certain is not None
    assert answer.certain < answer.value < answer.possible
    assert answer.offloaded is not None
    assert answer.offloaded > answer.value


def test_an_answer_that_host_ram_decides_has_an_interval() -> None:
    """With everything offloaded the RAM of the node decides, which is not certain either."""
    offloaded = {"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    asked = ask("llama-3.1-8b", cluster(), workload(1024), recompute="full", **offloaded)
    answer = model_question(free_batch(asked)).answer

    assert "host RAM" in answer.neighbours[0].why
    assert answer.well_shaped_certain is not None
    assert answer.well_shaped is not None
    assert answer.well_shaped_possible is not None
    assert answer.well_shaped_certain < answer.well_shaped < answer.well_shaped_possible


def test_megatron_is_taken_where_nothing_else_fits() -> None:
    """Whole logits of 65536 tokens fit no single device; tensor parallelism splits them."""
    request = free_batch(ask("llama-3.1-8b", cluster(), workload(65536), loss="plain"))

    assert largest_micro_batch(request).plan.strategy.back_end == "megatron"


def test_what_megatron_would_reach_stands_beside() -> None:
    """For a small model the answer is DeepSpeed's; the other one is further."""
    answer = answered("micro-batch", "8b on 8").answer

    assert answer.on_megatron is not None
    assert answer.on_megatron > answer.value


def test_flags_stay_fixed() -> None:
    """A fixed stage and recomputation are those of the answer."""
    fixed = {"zero_stage": 2, "recompute": "none", "offload_optimizer": "cpu"}
    request = free_batch(ask("llama-2-7b", cluster(), workload(), **fixed))
    strategy = largest_micro_batch(request).plan.strategy

    assert {name: getattr(strategy, name) for name in fixed} == fixed


def test_a_fixed_batch_limits_the_micro_batch_and_says_so() -> None:
    """64 samples on 8 ranks are 8 each, whatever memory there is."""
    answer = largest_micro_batch(ask("llama-2-7b", cluster(), workload(512, batch=64))).answer

    assert answer.value == 8
    assert "global batch size" in answer.limit


def test_positions_limit_the_sequence_and_that_is_said() -> None:
    """Memory for more is no use to a model of 4096 positions."""
    answer = longest_sequence(ask("llama-2-7b", cluster(), workload())).answer

    assert (answer.value, answer.neighbours) == (4096, ())
    assert "4096 positions" in answer.limit


def test_lengths_are_within_three_per_cent_and_divisible() -> None:
    """Context and tensor parallelism divide every length; steps are at most a 32nd."""
    lengths = sequence_axis(ask("llama-3.1-8b", cluster(), workload())).values
    steps = [second / first - 1 for first, second in pairwise(lengths[32:])]

    assert all(length % 128 == 0 for length in lengths)
    assert max(steps) <= 1 / 32


def test_fewest_accelerators_is_the_first_that_suffices() -> None:
    """Every smaller count of the axis was tried by hand and lacks memory."""
    request = free_batch(ask("llama-3.1-70b", cluster(), workload(), offload_optimizer="none"))
    answer = fewest_gpus(request).answer
    axis = gpus_axis(request)
    smaller = [count for count in axis.values if count < answer.value]
    left = [nearest(preferred(axis.at(count))) for count in smaller]

    assert smaller
    assert all(found is None or found.missing_bytes > 0 for found in left)


def test_the_largest_model_is_larger_with_more_memory() -> None:
    """Of the catalog and by size; encoders are none."""
    small, large = (answered("model", asked).answer for asked in REQUESTS)

    assert small.value < large.value
    assert (small.well_shaped or 0) < (large.well_shaped or 0)
    assert catalog.model(large.name).kind == "decoder"


def test_a_well_shaped_size_is_next_to_the_models_of_the_catalog() -> None:
    """The two answers to one question agree within a third."""
    answer = answered("model", "8b on 8").answer

    assert answer.well_shaped == pytest.approx(answer.value, rel=0.33)


def test_nothing_fits_at_the_smallest_value() -> None:
    """The error is the planner's own, with what would help."""
    tiny = cluster(1, 1, "rtx-3060", intra="pcie-4", host_memory_bytes=32 * GIB)
    with pytest.raises(DoesNotFitError):
        longest_sequence(ask("llama-2-70b", tiny, workload()))


def test_a_list_without_a_model_of_enough_positions_is_refused() -> None:
    """There is nothing to try then; the message says what is missing."""
    request = free_batch(ask("llama-3.1-8b", cluster(), workload(4096)))
    with pytest.raises(LayoutError) as caught:
        largest_model(request, (catalog.model("gpt2"),), llama_like)

    assert "4096 positions" in str(caught.value.problems[0])


def test_an_illegal_request_is_refused_by_its_rule() -> None:
    """Three tensor ranks divide no model of 32 heads, at any length."""
    with pytest.raises(LayoutError):
        longest_sequence(ask("llama-2-7b", cluster(), workload(), tensor_parallel_size=3))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "llama-3.1-8b", *A100, "--find", "micro-batch"), "largest micro batch: "),
        (("--model", "llama-3.1-8b", *A100, "--find", "seq-len"), "longest sequence: "),
        (("--model", "llama-3.1-70b", "--gpu", "a100-80gb", "--find", "gpus"), "accelerators: "),
        ((*A100, "--find", "model"), "Llama-like shape"),
    ],
    ids=QUESTIONS,
)
def test_the_table_shows_answer_neighbours_and_terms(arguments: tuple[str, ...], said: str) -> None:
    """Value, interval, memory by term with what is left, and the defaults."""
    shown = typed("estimate", *arguments).stdout

    for part in (said, "certain", "possible", "optimizer state", "memory left", "defaults: "):
        assert part in shown


def test_json_is_the_documented_one() -> None:
    """The answer and the estimate at its value, by the schema."""
    arguments = ("--model", "llama-3.1-8b", *A100, "--find", "micro-batch", "--json")
    document: Any = json.loads(typed("estimate", *arguments).stdout)

    Draft202012Validator(InverseDocument.model_json_schema(mode="serialization")).validate(document)
    answer, priced = document["answer"], document["estimate"]

    assert answer["question"] == "micro-batch"
    assert priced["fits"]
    assert priced["strategy"]["micro_batch_size"] == answer["value"]
    assert answer["neighbours"][0]["missing_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--find", "everything"), "'micro-batch', 'seq-len', 'gpus', 'model'"),
        (("--find", "micro-batch", "--micro-batch", "2"), "cannot be combined with --find"),
        (("--find", "seq-len", "--seq-len", "128"), "cannot be combined with --find"),
        (("--find", "gpus", "--nodes", "2"), "cannot be combined with --find"),
        (("--find", "model", "--model", "7b"), "cannot be combined with --find"),
        (("--find",), "requires an argument"),
    ],
    ids=["unknown", "micro-batch", "seq-len", "gpus", "model", "no value"],
)
def test_a_contradiction_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    """What is looked for cannot be given; exit code 2."""
    answer = typed("estimate", "--gpu", "a100-80gb", *arguments)

    assert answer.exit_code == 2
    assert said in answer.stderr


def test_the_largest_model_that_is_looked_for_reads_text() -> None:
    """Vision-language models of the catalog are no rungs of the ladder."""
    models = tuple(catalog.model(name) for name in catalog.model_names())
    request = ask("llama-3.1-8b", cluster(1), workload(2048))
    axis = model_axis(request, models)

    assert {model.name for model in models if model.tower} >= {"qwen2.5-vl-7b", "llava-1.5-7b"}
    assert not {model.name for model in models if model.tower} & set(axis.names)
