"""Figures of a report are those of the documents of a real run: none is computed anew."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from report_pages import Seen, faults

import dsforge
from dsforge.bench.report import Report as BenchReport
from dsforge.errors import DsforgeError, EditedError
from dsforge.measurement import Measurement
from dsforge.report import html_page, markdown_page
from dsforge.report.run_folder import read_run
from dsforge.report.run_sections import compared
from dsforge.train.run.written_report import write_report
from dsforge.units import digits, gib, seconds

DATA = Path(__file__).parent / "data"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run folder of a real run: two CPU ranks, ZeRO stage 1, 40 steps."""
    return shutil.copytree(DATA / "run", tmp_path / "run")


def stored(path: Path) -> Any:
    """A JSON document."""
    return json.loads(path.read_text())


def tables(folder: Path) -> dict[str, list[list[str]]]:
    """The tables of the page of a folder, by caption."""
    return Seen(dsforge.report(folder).html).captions


def test_measured_figures_are_those_of_measurement_json(run: Path) -> None:
    """Medians and peaks of the file, beside the price of the strategy that was run."""
    measured, plan = stored(run / "output/measurement.json"), stored(run / "plan.json")
    price = next(v["priced"] for v in plan["variants"] if v["name"] == "zero1")
    rows = {row[0]: row for row in tables(run)["Measured relative to predicted values"][1:]}
    step_s, likely_s = median(measured["step_s"]), price["time"]["step_s"]["likely"]

    assert rows["step time"][1] == seconds(likely_s)
    assert rows["step time"][3] == seconds(step_s)
    assert rows["step time"][4] == f"{step_s / likely_s:.2f}x"
    assert rows["resident memory"][1] == gib(price["memory"]["device_bytes"]["likely"])
    assert rows["resident memory"][3] == gib(measured["memory"]["host_bytes"])
    assert rows["sent"][3] == gib(measured["sent_bytes"])


def test_predicted_and_measured_tokens_are_the_same_tokens(run: Path) -> None:
    """So tokens/s are off by exactly what the step time is off."""
    found = read_run(run)
    assert found.plan
    assert found.ran
    assert found.ran.priced
    assert found.ran.measurement
    both = {
        each.name: each for each in compared(found.plan, found.ran.priced, found.ran.measurement)
    }
    ratios = {name: each.measured / each.predicted.likely for name, each in both.items()}

    assert ratios["tokens/s"] * ratios["step time"] == pytest.approx(1)


def test_comparisons_count_the_same_tokens_too() -> None:
    """Of every strategy that `bench` has measured."""
    made = BenchReport.model_validate_json((DATA / "bench/report/report.json").read_text())

    assert len(made.rows) == 3
    for row in made.rows:
        assert row.tokens_per_s.ratio
        assert row.step_s.ratio
        assert row.tokens_per_s.ratio * row.step_s.ratio == pytest.approx(1)


def test_curves_are_those_of_metrics_jsonl(run: Path) -> None:
    """Every step, every validation."""
    lines = [json.loads(line) for line in (run / "output/metrics.jsonl").read_text().splitlines()]
    found = tables(run)
    losses = {line["step"]: digits(line["loss"], 4) for line in lines if "loss" in line}
    held_out = {r["step"]: digits(r["validation_loss"], 4) for r in lines if "loss" not in r}
    times = {line["step"]: digits(line["step_s"], 4) for line in lines if "loss" in line}

    assert len(losses) == 40
    assert held_out
    assert {int(row[0]): row[1] for row in found["Loss"][1:]} == losses
    assert {int(row[0]): row[2] for row in found["Loss"][1:] if row[2]} == held_out
    assert {int(row[0]): row[1] for row in found["Step time"][1:]} == times


def test_terms_are_those_of_plan_json(run: Path) -> None:
    """Memory and time by term of the choice, and a row with the measured total."""
    choice, found = stored(run / "plan.json")["choice"], tables(run)
    memory = found["Predicted memory of the fullest rank by term"]
    time = found["Predicted time of an optimizer step by term"]

    for name, size in choice["memory"]["terms"].items():
        assert memory[1][memory[0].index(name.replace("_", " "))] == gib(size)
    for name, span in choice["time"]["terms"].items():
        assert time[1][time[0].index(name.removesuffix("_s"))] == seconds(span)
    assert [rows[-1][0].startswith("measured: ZeRO-1") for rows in (memory, time)] == [True, True]


def test_the_twins_hold_the_same(run: Path, tmp_path: Path) -> None:
    """report.json has the documents themselves, report.md each table, figures/ each picture."""
    made = dsforge.report(run)
    out = tmp_path / "report"
    written = made.write(out)
    document = stored(out / "report.json")
    (source,) = document["sources"]

    stated = Measurement.model_validate(stored(run / "output/measurement.json"))
    assert source["measurement"] == stated.model_dump(mode="json")
    assert source["plan"]["choice"] == stored(run / "plan.json")["choice"]
    assert len(source["metrics"]) == len((run / "output/metrics.jsonl").read_text().splitlines())
    text = (out / "report.md").read_text()
    for caption in Seen(made.html).captions:
        assert f"\n{caption}\n" in text.replace("\\", "")
    for name in written:
        assert (out / name).is_file()
        assert not name.endswith(".svg") or f"]({name})" in text
    (out / "report.md").write_text("mine")
    with pytest.raises(EditedError):
        dsforge.report(run / "plan.json").write(out)


def test_a_run_that_the_plan_does_not_price_is_not_compared(run: Path) -> None:
    """A prediction of another run would mislead."""
    path = run / "output/measurement.json"
    path.write_text(json.dumps({**stored(path), "micro_batch_size": 64}))
    found = tables(run)

    assert "Measured relative to predicted values" not in found
    assert "The plan has no prediction of this run" in dsforge.report(run).html


def test_an_output_folder_and_a_comparison_are_reports_too(run: Path) -> None:
    """The output finds its plan; one page holds several sources."""
    alone = tables(run / "output")
    page = dsforge.report([run, DATA / "bench"]).html

    assert "Measured relative to predicted values" in alone
    assert faults(page) == []
    assert "Measured and predicted values" in Seen(page).captions


def test_broken_metrics_lines_are_left_out(run: Path) -> None:
    """NaN, a cut line, garbage and a huge number do not end the report."""
    path = run / "output/metrics.jsonl"
    before = tables(run)["Loss"]
    more = '{"step": 41, "loss": NaN}\n{"step": 42,\nnull\n[]\n{"step": 1e999}\n'
    path.write_text(path.read_text() + more)

    assert tables(run)["Loss"] == before


def test_nothing_outside_of_the_folder_gets_into_the_report(run: Path, tmp_path: Path) -> None:
    """Links that lead out, pipes and private variables; secrets in configs are masked."""
    (tmp_path / "secret").write_text("the private key of somebody")
    (run / "hostfile").unlink()
    (run / "hostfile").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "deepspeed/zero9.json")
    (run / ".deepspeed_env").write_text("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n")
    job = run / "train.yaml"
    job.write_text(job.read_text() + "# HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345\n")
    html, text = dsforge.report(run).html, dsforge.report(run).markdown

    for shown in (html, text):
        assert "private key of somebody" not in shown
        assert "0123456789abcdef" not in shown
        assert "hf_abcdefgh" not in shown
        assert "HF_TOKEN=(set)" in shown


def test_the_report_of_a_finished_run_replaces_only_reports(run: Path) -> None:
    """`train` writes output/report.html anew, but not over a file of somebody."""
    output = run / "output"
    first = list(write_report(output))
    page = (output / "report.html").read_text()
    again = list(write_report(output))

    assert first == again == [f"report: {output / 'report.html'}"]
    assert faults(page) == []
    (output / "report.html").write_text("mine")
    assert "is kept" in next(iter(write_report(output)))
    assert (output / "report.html").read_text() == "mine"


def test_what_is_no_source_is_refused_in_words(tmp_path: Path) -> None:
    """A folder without results, a file that is no plan, no source at all."""
    (tmp_path / "plan.json").mkdir()
    for wrong in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(DsforgeError):
            dsforge.report(wrong)
    with pytest.raises(DsforgeError, match="1 to 12"):
        dsforge.report([])


def test_a_comparison_from_its_folder_is_the_page_that_bench_wrote() -> None:
    """The same report.json, the same page."""
    made = dsforge.report(DATA / "bench")

    assert html_page(made.page) == made.html
    assert "Use " in markdown_page(made.page)
