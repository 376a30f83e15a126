"""Finished runs become a cluster card: what is fitted, what is kept out, that `plan` takes it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

import dsforge
from dsforge.cli.main import app
from dsforge.errors import DsforgeError
from dsforge.estimate.time import TimeTerms
from dsforge.validate.calibration import FinishedRun, calibrated

HERE = Path(__file__).parent
TABLE = HERE / "runs.csv"
RECORDED = sorted(HERE.glob("cpu-*"))
GIB = 2**30


def part_of_table(folder: Path, which: slice) -> Path:
    """Some of the published rows as a table of their own."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    path = folder / "part.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows[which])
    return path


def run(name: str, compute_s: float, waiting_s: float, step_s: float | None) -> FinishedRun:
    """A run of so many predicted seconds."""
    terms = TimeTerms(
        compute_s=compute_s, communication_s=waiting_s, bubble_s=0, offload_s=0, optimizer_s=0
    )
    return FinishedRun(name, "a100-80gb", terms, step_s)


def random_runs(draw: Random, compute: float, waiting: float) -> list[FinishedRun]:
    """Ten runs whose steps are those factors of what was predicted, but for 2 %."""
    found = []
    for number in range(10):
        one, two = draw.uniform(0.5, 20), draw.uniform(0.1, 10)
        step_s = (compute * one + waiting * two) * draw.uniform(0.98, 1.02)
        found.append(run(f"run-{number}", one, two, step_s))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_factors_are_found_again(seed: int) -> None:
    """Both factors of random runs, within a few percent."""
    draw = Random(seed)  # noqa: S311 - which runs, not which key
    compute, waiting = draw.uniform(0.6, 1.6), draw.uniform(0.5, 2.5)
    found = calibrated(random_runs(draw, compute, waiting))

    assert found.calibration.compute == pytest.approx(compute, rel=0.05)
    assert found.calibration.waiting == pytest.approx(waiting, rel=0.1)
    assert found.compute[0] <= found.calibration.compute <= found.compute[1]
    assert found.error_after < 0.03


@pytest.mark.parametrize("seed", range(4))
def test_a_run_far_from_all_others_is_kept_out_by_name(seed: int) -> None:
    """It moves no factor, and is in the document with the reason."""
    runs = random_runs(Random(seed), 1.2, 0.9)  # noqa: S311
    without = calibrated(runs[1:])
    slow = runs[0]._replace(step_s=3 * (runs[0].step_s or 0))
    found = calibrated([slow, *runs[1:]])

    assert found.calibration.compute == without.calibration.compute
    assert [each.name for each in found.runs if each.kept_out] == [slow.name]
    assert "kept out" in found.runs[0].kept_out


def test_one_run_moves_what_it_tells_of() -> None:
    """A run that hardly waits leaves the factor of waiting where it was."""
    found = calibrated([run("one", 10.0, 0.01, 15.0)]).calibration

    assert found.compute == pytest.approx(1.5, rel=0.05)
    assert found.waiting == pytest.approx(1.0, rel=0.02)


def test_a_run_out_of_memory_is_a_bound() -> None:
    """Memory beyond the predicted is the median of the measured, and at least what it takes."""
    runs = [
        run(f"run-{n}", 10, 1, 11)._replace(allocated_bytes=(20 * GIB, (20 + n) * GIB))
        for n in range(3)
    ]
    out = run("out", 10, 1, None)._replace(least_bytes=2.5 * GIB)

    assert calibrated(runs).calibration.memory_overhead_gib == pytest.approx(1)
    assert calibrated([*runs, out]).calibration.memory_overhead_gib == pytest.approx(2.5)
    assert calibrated([*runs, out]).runs[-1].kept_out == "out of memory: a bound"


def test_half_of_published_runs_tell_of_the_other_half(tmp_path: Path) -> None:
    """Error of rows that were not fitted falls by half."""
    fitted = dsforge.calibrate([part_of_table(tmp_path, slice(0, 9))]).document.calibration
    others = dsforge.calibrate([part_of_table(tmp_path, slice(10, 14))]).document
    before = [abs(each.before_s / (each.step_s or 1) - 1) for each in others.runs]
    after = [abs(each.before_s * fitted.compute / (each.step_s or 1) - 1) for each in others.runs]

    assert sum(after) < 0.5 * sum(before)


def test_a_plan_takes_the_card_and_says_so(tmp_path: Path) -> None:
    """The step follows the factors, the reason names them, and explain agrees with the plan."""
    found = dsforge.calibrate([TABLE])
    card, rated = tmp_path / "card.yaml", tmp_path / "rated.yaml"
    card.write_text(found.yaml, encoding="utf-8")
    head, _, _ = found.yaml.partition("measured:")
    rated.write_text(head, encoding="utf-8")
    fixed = {"zero_stage": 1, "micro_batch_size": 1, "recompute": "full"}
    work = {"precision": "fp16", "sequence_length": 1024}
    with_card, without = (
        dsforge.estimate("gpt2-xl", path, work, strategy=fixed).plan for path in (card, rated)
    )
    mine, rates = with_card.choice.time, found.document.calibration
    reasons = [reason.rule for reason in with_card.choice.reasons]

    assert "card-calibrated" in reasons
    assert mine.terms.compute_s == pytest.approx(
        rates.compute * without.choice.time.terms.compute_s
    )
    assert mine.step_s.low < mine.step_s.likely < mine.step_s.high
    assert dsforge.explain(with_card).disagreements == ()


def test_the_command_writes_what_the_function_finds(tmp_path: Path) -> None:
    """On runs that `dsforge train` made; the card is that of `dsforge.calibrate`."""
    card = tmp_path / "card.yaml"
    made = CliRunner().invoke(app, ["calibrate", *map(str, RECORDED), "--out", str(card)])

    assert made.exit_code == 0, made.output
    assert card.read_text(encoding="utf-8") == dsforge.calibrate(RECORDED).yaml
    assert all(path.name in made.output for path in RECORDED)
    assert dsforge.load_cluster(card).calibration is not None


def test_the_state_of_a_hugging_face_trainer_is_read(tmp_path: Path) -> None:
    """Seconds of the run over its steps, as the Trainer logs them at its end."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(RECORDED[0] / "plan.json", folder)
    log = [
        {"loss": 2.1, "step": 10},
        {"train_runtime": 84.2, "train_steps_per_second": 1.2, "step": 100},
    ]
    state = json.dumps({"global_step": 100, "log_history": log})
    (folder / "trainer_state.json").write_text(state, encoding="utf-8")

    assert dsforge.calibrate([folder]).document.runs[0].step_s == pytest.approx(0.842)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "holds no steps"),
        ("", "has no third step"),
        ("{not json", "is not JSON"),
        ("[1]\n[2]\n[3]", "holds no JSON objects"),
        ('{"step_s": 1}\n{"step_s": 1}', "has no third step"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    """With the file and what is wrong with it."""
    shutil.copy(RECORDED[0] / "plan.json", tmp_path)
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(DsforgeError, match=reason):
        dsforge.calibrate([tmp_path])


def test_runs_that_are_no_one_fit_are_refused() -> None:
    """Different accelerators, and one run twice."""
    with pytest.raises(DsforgeError, match="different hardware"):
        dsforge.calibrate([TABLE, RECORDED[0]])
    with pytest.raises(DsforgeError, match="named twice"):
        dsforge.calibrate([RECORDED[0], RECORDED[0]])
