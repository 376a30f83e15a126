"""Speed, days, energy and money: the arithmetic of a whole run, redone here by hand."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import ask, cluster, strategy, workload

from dsforge import load_request
from dsforge.estimate.flops import forward_flops, head_flops, step_flops
from dsforge.estimate.run import executed_flops, run_of, run_steps, speed_of
from dsforge.planner import appraise
from dsforge.reading.samples import SAMPLED_BYTES, training_rows
from dsforge.render.report import run_rows
from dsforge.specs import DataSpec
from dsforge.units import Interval

MODEL = ask("llama-2-7b", cluster(), workload()).model
STEP = Interval(8.0, 10.0, 20.0)


def test_a_token_budget_becomes_days_hours_energy_and_money() -> None:
    """1 B tokens in steps of 131,072 on 16 cards of 400 W at 2.50 an hour."""
    work = workload(tokens=1_000_000_000)
    found = run_of(cluster(2, gpu_hour_price=2.5), work, step=STEP)
    steps = round(1e9 / (2048 * 64))
    hours = steps * 10 / 3600

    assert found is not None
    assert found.steps == steps
    assert found.days.likely == pytest.approx(hours / 24)
    assert found.gpu_hours.likely == pytest.approx(16 * hours)
    assert found.energy_kwh is not None
    assert found.energy_kwh.likely == pytest.approx(16 * hours * 0.4)
    assert found.money is not None
    assert found.money.likely == pytest.approx(16 * hours * 2.5)
    assert found.money.high == pytest.approx(2 * found.money.likely)


def test_without_a_price_there_is_no_money() -> None:
    """No price is built in, so none is made up."""
    found = run_of(cluster(), workload(tokens=10**9), step=STEP)

    assert found is not None
    assert found.money is None


def test_without_a_budget_there_is_no_run() -> None:
    """Neither tokens nor counted samples: no days are said."""
    assert run_of(cluster(), workload(), step=STEP) is None
    assert run_of(cluster(), workload(epochs=3), step=STEP) is None


def test_epochs_over_counted_rows_are_steps() -> None:
    """Three passes over 1,000 rows in batches of 64: 47 steps, the last one begun."""
    assert run_steps(workload(epochs=3, samples=1000)) == 47


def test_the_longest_step_has_the_lowest_rate() -> None:
    """Intervals of rates turn round: low rate from the high step."""
    found = speed_of(MODEL, cluster(), workload(), strategy(), step=STEP)

    assert found.tokens_per_s == Interval(2048 * 64 / 20, 2048 * 64 / 10, 2048 * 64 / 8)
    assert found.mfu.likely == pytest.approx(step_flops(MODEL, workload()) / 8 / 10 / 312e12)
    assert found.hfu == found.mfu


def test_full_recomputation_executes_every_layer_once_more() -> None:
    """Hardware FLOPs exceed useful ones by one forward of the layers, not of the head."""
    work = workload()
    executed = executed_flops(MODEL, cluster(), work, strategy(recompute="full"))
    again = (forward_flops(MODEL, 2048) - head_flops(MODEL)) * work.tokens_per_step

    assert executed - step_flops(MODEL, work) == pytest.approx(again)


def test_rows_of_a_small_file_are_counted_and_held_out_ones_left_out(tmp_path: Path) -> None:
    """Blank lines are no rows; a tenth is held out."""
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a"}\n\n' * 50, encoding="utf-8")
    rows, reason = training_rows(DataSpec(train=str(path), validation_fraction=0.1))

    assert rows == 45
    assert "has 45 rows" in reason.message


def test_rows_of_a_large_file_follow_from_its_beginning(tmp_path: Path) -> None:
    """Three times as large as what is read: the count is right to a per mille, and says about."""
    path = tmp_path / "train.jsonl"
    line = json.dumps({"text": "x" * 50}) + "\n"
    wanted = 3 * SAMPLED_BYTES // len(line)
    path.write_text(line * wanted, encoding="utf-8")
    rows, reason = training_rows(DataSpec(train=str(path)))

    assert rows == pytest.approx(wanted, rel=1e-3)
    assert "about" in reason.message


def test_data_that_is_not_here_leaves_the_run_without_a_length() -> None:
    """The reason says what to name instead."""
    rows, reason = training_rows(DataSpec(train="/nowhere/train.jsonl"))

    assert rows is None
    assert "set `tokens`" in reason.message


def test_plan_md_shows_the_run_only_with_a_budget() -> None:
    """Rows of days and energy with tokens, none without."""
    fixed = {"zero_stage": 2, "micro_batch_size": 1, "recompute": "none"}
    with_budget = appraise(ask("llama-2-7b", cluster(), workload(tokens=10**9), **fixed))
    without = appraise(ask("llama-2-7b", cluster(), workload(), **fixed))

    assert [row.name for row in run_rows(with_budget)] == [
        "tokens",
        "days",
        "GPU-hours",
        "energy, kWh",
    ]
    assert run_rows(without) == ()


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"),
    [(1, 1, 3.0), (200, 4, 3.0), (1_000, 32, 3.0), (10_000, 64, 3.0), (150_000, 64, 1.0)],
)
def test_batch_and_epochs_follow_the_number_of_rows(
    tmp_path: Path, rows: int, batch: int, epochs: float
) -> None:
    """Small data gets small batches and several passes, so that a run has steps to learn in."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' * rows)
    request = load_request("gpt2", {"gpu": "h100-80gb"}, {"data": {"train": str(path)}})

    work = request.workload
    assert (work.global_batch_size, work.epochs, work.samples) == (batch, epochs, rows)


@given(rows=st.integers(1, 3_000), gpus=st.sampled_from([1, 2, 3, 8]))
def test_every_gpu_has_a_sample_of_a_small_batch(rows: int, gpus: int) -> None:
    """The batch is a multiple of the ranks, and more rows never make it smaller."""
    batches = []
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        for count in (rows, rows + 500):
            path.write_text('{"text": "a"}\n' * count)
            cluster = {"gpu": "h100-80gb", "gpus_per_node": gpus}
            batches.append(load_request("gpt2", cluster, {"data": {"train": str(path)}}).workload)

    assert all(work.global_batch_size % gpus == 0 for work in batches)
    assert batches[0].global_batch_size <= batches[1].global_batch_size


def test_what_is_named_is_kept(tmp_path: Path) -> None:
    """Rows decide nothing that was given."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' * 200)
    said = {"data": {"train": str(path)}, "global_batch_size": 16, "epochs": 1.5}
    work = load_request("gpt2", {"gpu": "h100-80gb"}, said).workload

    assert (work.global_batch_size, work.epochs) == (16, 1.5)
