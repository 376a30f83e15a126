"""The comparison: which runs, what the report says of their figures, which strategy it advises."""

from __future__ import annotations

import plans
import pytest

from dsforge.bench.matrix import (
    ON_TORCH,
    BenchName,
    Cell,
    matrix,
    parse_strategies,
    priced,
)
from dsforge.bench.pages import pages
from dsforge.bench.report import Outcome, Report, report, step_times_s
from dsforge.errors import LayoutError, SpecError
from dsforge.measurement import MeasuredMemory, Measurement
from dsforge.plan import VariantName
from dsforge.units import GIB

LOSSES = (3.0, 2.5, 2.25, 2.0)


def measurement(
    step_s: float = 2.0, losses: tuple[float, ...] = LOSSES, memory: int = GIB
) -> Measurement:
    """A run of four steps of which the trainer dropped one."""
    return Measurement(
        zero_stage=2,
        world_size=16,
        micro_batch_size=2,
        gradient_accumulation_steps=4,
        tokens_per_step=1000,
        warmup_steps=1,
        step_s=(10 * step_s, step_s, step_s),
        losses=losses,
        memory=MeasuredMemory(
            allocated_bytes=1, reserved_bytes=memory, device_bytes=3, host_bytes=4
        ),
        sent_bytes=100,
        versions={"torch": "2"},
        hardware={"cpu": "x"},
    )


def outcome(variant: VariantName, run: Measurement | None, error: str = "") -> Outcome:
    """What came of the first run of a strategy."""
    return Outcome(cell=Cell(variant=variant, repeat=1), wall_s=9, measurement=run, error=error)


def compared(zero2: Measurement | None, zero3: Measurement | None) -> Report:
    """The report on two strategies; none stands for a failed run."""
    runs = (outcome("zero2", zero2, "" if zero2 else "boom"), outcome("zero3", zero3))
    return report(plans.plan(), runs, warmup_steps=2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("2,3", ("zero2", "zero3")),
        (" 3, 2 ,3", ("zero2", "zero3")),
        ("zero3_offload,1", ("zero1", "zero3_offload")),
        ("fsdp2,3,ddp,torch_zero1", ("ddp", "torch_zero1", "zero3", "fsdp2")),
        ("3d,fsdp2,1", ("zero1", "fsdp2", "3d")),
    ],
    ids=["stages", "order and doubles", "names", "torch", "3d"],
)
def test_strategies_are_read_from_the_command_line(text: str, names: tuple[str, ...]) -> None:
    """Stages and names, each once, in order of sharding."""
    assert parse_strategies(text) == names


@pytest.mark.parametrize("text", ["", "4", "2,zero9", "megatron", "-1"])
def test_words_that_are_no_strategy_are_refused(text: str) -> None:
    """The message says what is legal."""
    with pytest.raises(SpecError) as caught:
        parse_strategies(text)

    assert "zero3_offload" in caught.value.problems[0].hint


def test_3d_splits_the_model_three_ways_with_the_batch_of_the_plan() -> None:
    """Two stages and two tensor ranks; a plan that is 3D itself is taken as it is."""
    plan = plans.plan()
    found = priced(plan, "3d").strategy
    layout = found.layout
    split = layout.tensor_parallel_size, layout.pipeline_parallel_size

    assert split == (2, 2)
    assert layout.data_parallel_size == plan.cluster.gpus // 4
    assert found.global_batch_size == plan.workload.global_batch_size
    assert found.zero_stage < 2
    own = plan.model_copy(update={"choice": priced(plan, "3d"), "variants": ()})
    assert priced(own, "3d") is own.choice


def test_3d_needs_a_multiple_of_eight_ranks() -> None:
    """Four ranks would leave one replica."""
    with pytest.raises(LayoutError) as caught:
        priced(plans.plan(on=plans.cpu_cluster(1, 4)), "3d")

    assert "multiple of 8" in caught.value.problems[0].hint


@pytest.mark.parametrize("name", ON_TORCH)
def test_strategies_of_torch_take_the_batches_of_the_plan(name: BenchName) -> None:
    """The same layout and batches as the variant beside it, priced as torch runs it."""
    plan = plans.plan()
    found, like = priced(plan, name).strategy, priced(plan, ON_TORCH[name].like).strategy

    assert found.layout == like.layout
    assert found.micro_batch_size == like.micro_batch_size
    assert found.runs_as.trainer == ON_TORCH[name].trainer
    assert found.zero_stage == ON_TORCH[name].zero_stage


def test_replicas_need_more_memory_than_shards() -> None:
    """DDP holds everything, ZeroRedundancyOptimizer a part of the states, FSDP2 of all."""
    plan = plans.plan()
    bytes_of = [priced(plan, n).memory.device_bytes.likely for n in ON_TORCH]

    assert bytes_of == sorted(bytes_of, reverse=True)
    assert bytes_of[0] > 2 * bytes_of[2]


def test_repeats_are_interleaved() -> None:
    """Every strategy runs once before any runs twice."""
    cells = matrix(plans.plan(), ("zero2", "zero3"), 2)

    assert [cell.name for cell in cells] == ["zero2-1", "zero3-1", "zero2-2", "zero3-2"]


def test_a_variant_that_the_plan_forbids_is_refused_with_its_rule() -> None:
    """Without a disk there is no run with NVMe offload."""
    with pytest.raises(LayoutError) as caught:
        matrix(plans.plan(on=plans.cluster(nvme=None)), ("zero2", "zero3_nvme"), 1)

    assert [problem.rule for problem in caught.value.problems] == ["nvme-present"]


@pytest.mark.parametrize(
    ("warmup", "counted"), [(0, 3), (1, 3), (2, 2)], ids=["none", "the trainer's", "one more"]
)
def test_warm_up_steps_are_dropped_once(warmup: int, counted: int) -> None:
    """Steps that the trainer has dropped already count as dropped."""
    assert len(step_times_s(measurement(), warmup)) == counted


def test_figures_stand_beside_their_prediction() -> None:
    """Median step, rate, memory and traffic come from the run, predictions from the plan."""
    row = compared(measurement(), measurement()).rows[0]

    assert (row.step_s.measured, row.step_s.predicted.likely) == (2.0, 6.4)
    assert row.tokens_per_s.measured == 500
    assert row.memory_bytes.measured == GIB
    assert row.sent_bytes.measured == 100
    assert row.final_loss == 2.0


@pytest.mark.parametrize(
    ("zero3_step_s", "choice"),
    [(3.0, "zero2"), (1.95, "zero2"), (1.0, "zero3")],
    ids=["slower", "a little faster", "clearly faster"],
)
def test_zero_2_wins_unless_zero_3_is_clearly_faster(zero3_step_s: float, choice: str) -> None:
    """When both fit it is ZeRO-2, except against the clock."""
    advice = compared(measurement(), measurement(zero3_step_s)).recommendation

    assert advice.variant == choice
    assert any("usual advice" in reason for reason in advice.reasons)


def test_a_disturbed_run_is_no_reason_for_zero_3() -> None:
    """Where the steps of ZeRO-2 scatter down to those of ZeRO-3, that is said instead."""
    steady = measurement(7.5)
    disturbed = measurement().model_copy(update={"step_s": (70.0, 7.4, 7.5, 12.2, 24.5, 30.0)})
    advice = compared(disturbed, steady).recommendation

    assert advice.variant == "zero2"
    assert "half of the steps of zero2 are between" in advice.reasons[0]


def test_a_failed_run_leaves_the_other_standing() -> None:
    """The strategy that was measured is advised, and the failure is said."""
    made = compared(None, measurement())

    assert made.recommendation.variant == "zero3"
    assert "zero2 failed in every run" in made.recommendation.reasons
    assert "boom" in pages(made)[0].text


def test_loss_curves_that_differ_are_pointed_out() -> None:
    """A gap that rounding cannot explain is a reason not to trust the runs."""
    advice = compared(measurement(), measurement(losses=(3.0, 2.5, 2.3, 2.0))).recommendation

    assert "loss curves differ by up to 0.05" in advice.reasons[-1]


def test_the_page_escapes_what_a_run_printed() -> None:
    """Output of a failed run cannot put markup into the page."""
    runs = (outcome("zero2", None, "<script>alert(1)"), outcome("zero3", measurement()))
    html = pages(report(plans.plan(), runs, warmup_steps=2))[0].text

    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_report_survives_json() -> None:
    """Report -> JSON -> Report is the identity."""
    made = compared(measurement(), measurement())

    assert Report.model_validate_json(made.model_dump_json()) == made
