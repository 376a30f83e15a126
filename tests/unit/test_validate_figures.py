"""A table of figures: what each row asks, what is refused, and how answers are scored."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsforge.api.figures import asker
from dsforge.cli.main import app
from dsforge.errors import DsforgeError, SpecError
from dsforge.validate import Figure, compared, parse_figures

SPEC: dict[str, Any] = {
    "model": "llama-2-7b",
    "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "a100-80gb"},
    "workload": {"sequence_length": 2048, "global_batch_size": 16, "method": "full"},
    "strategy": {"zero_stage": 3, "micro_batch_size": 1, "recompute": "full"},
}
CELLS = {
    "id": "own-1",
    "source": "a page",
    "quantity": "step_s",
    "counter": "",
    "published": "3.5",
    "unit": "s",
    "express": "exact",
    "why_or_nearest": "",
    "spec": json.dumps(SPEC),
}
UNITS = {
    "s": ("step_s",),
    "h": ("gpu_hours",),
    "1/s": ("samples/s", "tok/s/gpu"),
    "GiB": ("mem", "host"),
    "GB": ("mem_total", "mem_states", "opt_states"),
    "TFLOP/s": ("hw_tflops", "hw_tflops_total", "model_tflops", "mds_tflops", "full_tflops"),
    "%": ("mfu", "mfu_full"),
    "": ("fits",),
    "B": ("find model",),
}
QUANTITIES = [(quantity, unit) for unit, quantities in UNITS.items() for quantity in quantities]


def table(*changes: dict[str, str]) -> str:
    """CSV text with one row for each set of changes to a good row."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(CELLS))
    writer.writeheader()
    for change in changes or ({},):
        writer.writerow({**CELLS, **change})
    return stream.getvalue()


def figure(**changes: str) -> Figure:
    """A good row with changes."""
    return parse_figures(table(changes), "figures.csv")[0]


@pytest.mark.parametrize(("quantity", "unit"), QUANTITIES)
def test_every_quantity_is_answered_in_its_unit(quantity: str, unit: str, tmp_path: Path) -> None:
    """No quantity that a table may hold is left without a prediction."""
    spec = {**SPEC, "workload": {**SPEC["workload"], "tokens": 10**9}}
    counter = "reserved" if quantity.startswith("mem") else ""
    published = "yes" if quantity == "fits" else "3"
    row = figure(quantity=quantity, unit=unit, counter=counter, published=published)
    row = row.model_copy(update={"spec": spec})
    found = compared([row], asker(tmp_path / "figures.csv"))

    assert found.unanswered == ()
    assert 0 < found.rows[0].low <= found.rows[0].predicted <= found.rows[0].high


def test_rates_agree_with_the_step(tmp_path: Path) -> None:
    """Samples, tokens and FLOPs follow from one predicted step."""
    quantities = ("step_s", "samples/s", "tok/s/gpu", "model_tflops", "mfu")
    rows = [figure(id=q, quantity=q, published="1") for q in quantities]
    found = {row.id: row for row in compared(rows, asker(tmp_path / "f.csv")).rows}
    step = found["step_s"].predicted

    assert found["samples/s"].predicted == pytest.approx(16 / step)
    assert found["tok/s/gpu"].predicted == pytest.approx(16 * 2048 / step / 8)
    assert found["mfu"].predicted == pytest.approx(found["model_tflops"].predicted / 312 * 100)
    assert found["samples/s"].low == pytest.approx(16 / found["step_s"].high)


@pytest.mark.parametrize("quantity", ["mem", "step_s", "tok/s/gpu"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_an_unstated_loss_is_a_reading(quantity: str, method: str, tmp_path: Path) -> None:
    """Whole logits are likely, as Hugging Face's trainers hold them; the interval spans chunks."""
    work = {**SPEC["workload"], "method": method}
    fixed = {**SPEC["strategy"], "zero_stage": 2, "micro_batch_size": 2}

    def answered(**loss: str) -> Any:
        spec = {**SPEC, "workload": work, "strategy": {**fixed, **loss}}
        row = figure(quantity=quantity, counter="reserved", unit="GiB", spec=json.dumps(spec))
        return compared([row], asker(tmp_path / "figures.csv")).rows[0]

    unstated, plain, chunked = answered(), answered(loss="plain"), answered(loss="chunked")

    assert unstated.predicted == plain.predicted
    assert unstated.low == min(plain.low, chunked.low)
    assert unstated.high == max(plain.high, chunked.high)


def test_a_reading_that_does_not_fit_is_not_the_likely_one(tmp_path: Path) -> None:
    """A published run did fit: where whole logits cannot, they were not whole."""
    work = {**SPEC["workload"], "sequence_length": 65536, "global_batch_size": 8, "method": "lora"}
    fixed = {"zero_stage": 3, "micro_batch_size": 1, "recompute": "full"}
    cluster = {"nodes": 1, "gpus_per_node": 1, "gpu": "a100-80gb"}
    spec = {"model": "llama-3.2-1b", "cluster": cluster, "workload": work, "strategy": fixed}
    row = figure(quantity="mem", counter="allocated", unit="GiB", spec=json.dumps(spec))
    found = compared([row], asker(tmp_path / "figures.csv")).rows[0]

    assert found.predicted < 80 < found.high


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"published": "-1"}, "should be above 0"),
        ({"published": "nan"}, "should be above 0"),
        ({"published": "many"}, "could not convert"),
        ({"quantity": "happiness"}, "should be 'mem'"),
        ({"express": "perhaps"}, "should be 'exact'"),
        ({"spec": "{"}, "should be a JSON object"),
        ({"spec": "[" * 5000}, "should be a JSON object"),
        ({"spec": "[]"}, "should be a JSON object with model"),
        ({"spec": '{"model": "7b", "extra": 1}'}, "should be a JSON object with model"),
        ({"spec": '{"model": "7b", "cluster": 3}'}, "should be objects"),
        ({"spec": json.dumps({"model": "x" * 20_000})}, "at most 20000 characters"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(change: dict[str, str], words: str) -> None:
    """What a row may not hold is refused by line and column."""
    with pytest.raises(SpecError) as caught:
        parse_figures(table({}, {"id": "own-2", **change}), "figures.csv")
    (problem,) = caught.value.problems

    assert str(problem).startswith("figures.csv:3: ")
    assert words in str(problem)


def test_a_model_beside_the_table_is_read(tmp_path: Path) -> None:
    """A config in the folder `configs` beside the table describes what no catalog holds."""
    (tmp_path / "configs").mkdir()
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512}
    config |= {"architectures": ["GPT2LMHeadModel"], "n_positions": 4096}
    (tmp_path / "configs" / "small.json").write_text(json.dumps(config), encoding="utf-8")
    spec = json.dumps({**SPEC, "model": "configs/small.json"})
    asked = asker(tmp_path / "figures.csv")(figure(spec=spec))

    assert asked.plan.model.layers == 2


@pytest.mark.parametrize("model", ["../secret.json", "/etc/passwd", "configs/../../x", "./x"])
def test_a_model_elsewhere_is_not_read(model: str, tmp_path: Path) -> None:
    """A table of somebody else names no path on this machine."""
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    folder = tmp_path / "inner"
    folder.mkdir()

    with pytest.raises(DsforgeError):
        asker(folder / "figures.csv")(figure(spec=json.dumps({**SPEC, "model": model})))


def test_what_cannot_be_asked_counts_as_unanswered(tmp_path: Path) -> None:
    """A refusal and a row that says so itself are in the score, with their reasons."""
    impossible = json.dumps({**SPEC, "strategy": {"tensor_parallel_size": 3}})
    rows = parse_figures(
        table({}, {"id": "b", "spec": impossible}, {"id": "c", "express": "none"}), "f.csv"
    )
    found = compared(rows, asker(tmp_path / "f.csv"))

    assert (found.overall.answered, found.overall.figures) == (1, 3)
    assert [row.id for row in found.unanswered] == ["b", "c"]
    assert all(row.reason for row in found.unanswered)


def test_sources_weigh_the_same(tmp_path: Path) -> None:
    """A source of many figures does not decide the median."""
    many = [{"id": f"m{i}", "source": "many", "published": "1000"} for i in range(9)]
    few = [{"id": "f", "source": "few", "published": "0.001"}]
    found = compared(parse_figures(table(*many, *few), "f.csv"), asker(tmp_path / "f.csv"))
    medians = [found.sources[name].median or 0 for name in ("few", "many")]

    assert found.overall.median == pytest.approx(sum(medians) / 2)


def test_the_command_shows_scores_and_json(tmp_path: Path) -> None:
    """`dsforge validate` knows the format by its header."""
    path = tmp_path / "figures.csv"
    path.write_text(table({}, {"id": "own-2", "published": "40"}), encoding="utf-8")
    shown = CliRunner().invoke(app, ["validate", str(path)])
    document = json.loads(CliRunner().invoke(app, ["validate", str(path), "--json"]).output)

    assert "speed, full" in shown.output
    assert "on paper" in shown.output
    assert [row["id"] for row in document["rows"]] == ["own-1", "own-2"]
    assert document["overall"]["answered"] == 2
