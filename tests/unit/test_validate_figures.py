"""A table of figures: what each row asks, what is refused, and how answers are scored."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsforge import catalog
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
    """Whole logits are likely, as Hugging Face's trainers hold them; the interval holds chunks."""
    work = {**SPEC["workload"], "method": method}
    fixed = {**SPEC["strategy"], "zero_stage": 2, "micro_batch_size": 2}

    def answered(**loss: str) -> Any:
        spec = {**SPEC, "workload": work, "strategy": {**fixed, **loss}}
        row = figure(quantity=quantity, counter="reserved", unit="GiB", spec=json.dumps(spec))
        return compared([row], asker(tmp_path / "figures.csv")).rows[0]

    unstated, plain, chunked = answered(), answered(loss="plain"), answered(loss="chunked")

    assert unstated.predicted == plain.predicted
    assert unstated.high == plain.high
    if quantity == "mem":
        assert unstated.low <= min(plain.low, chunked.predicted)
    else:
        assert unstated.low <= chunked.predicted <= unstated.high


def test_a_reading_that_does_not_fit_is_not_the_likely_one(tmp_path: Path) -> None:
    """A published run did fit: where whole logits cannot, they were not whole."""
    work = {**SPEC["workload"], "sequence_length": 65536, "global_batch_size": 8, "method": "lora"}
    fixed = {"zero_stage": 3, "micro_batch_size": 1, "recompute": "full"}
    cluster = {"nodes": 1, "gpus_per_node": 1, "gpu": "a100-80gb"}
    spec = {"model": "llama-3.2-1b", "cluster": cluster, "workload": work, "strategy": fixed}
    whole = {**spec, "strategy": {**fixed, "loss": "plain"}}
    found, plain = (
        compared(
            [figure(quantity="mem", counter="allocated", unit="GiB", spec=json.dumps(asked))],
            asker(tmp_path / "figures.csv"),
        ).rows[0]
        for asked in (spec, whole)
    )

    assert found.predicted < 80 < plain.predicted


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


@pytest.mark.parametrize("folder", ["configs", "paper_configs"])
def test_a_model_beside_the_table_is_read(folder: str, tmp_path: Path) -> None:
    """A config in a folder beside the table describes what no catalog holds."""
    (tmp_path / folder).mkdir()
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512}
    config |= {"architectures": ["GPT2LMHeadModel"], "n_positions": 4096}
    (tmp_path / folder / "small.json").write_text(json.dumps(config), encoding="utf-8")
    spec = json.dumps({**SPEC, "model": f"{folder}/small.json"})
    asked = asker(tmp_path / "figures.csv")(figure(spec=spec))

    assert asked.plan.model.layers == 2


@pytest.mark.parametrize(
    "model", ["../secret.json", "/etc/passwd", "configs/../../x", "./x", "linked/secret.json"]
)
def test_a_model_elsewhere_is_not_read(model: str, tmp_path: Path) -> None:
    """A table of somebody else names no path on this machine."""
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "linked").symlink_to(tmp_path)

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
    assert "tensor (3) parallelism" in found.unanswered[0].reason
    assert found.unanswered[1].reason


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


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_largest_model_by_states_is_the_memory_over_bytes_of_a_parameter(
    stage: int, tmp_path: Path
) -> None:
    """2 + 2 + 12 bytes, each divided by 8 ranks from its stage on (Rajbhandari et al. 2020)."""
    fixed = {"zero_stage": stage, "micro_batch_size": 1, "hpz_partition_size": 1}
    spec = {**SPEC, "strategy": {"offload_optimizer": "none", "recompute": "none", **fixed}}
    row = figure(quantity="find model", unit="B", counter="states", spec=json.dumps(spec))
    found = compared([row], asker(tmp_path / "figures.csv")).rows[0]
    shares = [8 if stage >= wanted else 1 for wanted in (3, 2, 1)]
    card = catalog.gpu("a100-80gb")
    each = sum(size / share for size, share in zip((2, 2, 12), shares, strict=True))

    assert found.predicted == pytest.approx(card.memory_bytes / each / 1e9, rel=1e-3)
    assert found.low < found.predicted < found.high


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_while_the_optimizer_steps_are_no_less_than_those_that_last(
    stage: int, tmp_path: Path
) -> None:
    """Stage 3: float32 gradients in the place of those in 16 bits, and the largest module."""
    spec = {**SPEC, "strategy": {"zero_stage": stage, "micro_batch_size": 1}}
    lasting, stepping = (
        figure(id=counter, quantity="mem_states", counter=counter, spec=json.dumps(spec))
        for counter in ("allocated", "step")
    )
    found = compared([lasting, stepping], asker(tmp_path / "figures.csv")).rows

    assert found[0].predicted <= found[1].predicted <= found[0].high
    if stage == 3:
        shard, module = 6.738e9 / 8, 4 * 32000 * 4096
        assert found[1].predicted == pytest.approx((18 * shard + module) / 1e9, rel=0.01)
