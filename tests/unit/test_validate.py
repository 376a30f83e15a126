"""A table of measured runs: its cells, the case that a row makes, the score of predictions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dsforge.cli.main import app, main
from dsforge.errors import SpecError
from dsforge.validate import parse_table, validation
from dsforge.validate.cases import Case, case_of, counter_of, rank_of
from dsforge.validate.score import Outcome, Run, decisions, errors, overall
from dsforge.validate.table import Row

COLUMNS = {
    "id": "own-1",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "ffn_hidden": "11008",
    "vocab": "32000",
    "seq_len": "2048",
    "gpu_type": "a100-80gb",
    "gpus": "8",
    "dp": "8",
    "tp": "1",
    "pp": "1",
    "micro_batch": "1",
    "global_batch": "8",
    "peak_mem_gib": "40",
    "step_time_s": "1.5",
    "framework": "DeepSpeed",
    "zero_stage_or_sharding": "ZeRO-3",
    "notes": "mlp=gated; tied_emb=no; mem=max_memory_reserved on the worst rank",
}


def table(*changes: dict[str, str], drop: str = "") -> str:
    """CSV text with one row for each set of changes to a good row."""
    names = [name for name in COLUMNS if name != drop]
    lines = [[{**COLUMNS, **change}[name] for name in names] for change in changes or ({},)]
    return "\n".join(",".join(cells) for cells in [names, *lines]) + "\n"


def row(**changes: str) -> Row:
    """A good row with changes."""
    return parse_table(table(changes), "runs.csv")[0]


def refused(text: str) -> list[str]:
    """What is wrong with a table, problem by problem."""
    with pytest.raises(SpecError) as caught:
        parse_table(text, "runs.csv")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("peak_mem_gib", "nan"),
        ("peak_mem_gib", "inf"),
        ("step_time_s", "-1"),
        ("step_time_s", "0"),
        ("layers", "-32"),
        ("layers", "many"),
        ("hidden", "1e30"),
        ("layers", "1000000"),
        ("pp", "1" + "0" * 12),
        ("gpus", "9" * 5000),
    ],
)
def test_a_wrong_number_is_named_with_its_line(column: str, cell: str) -> None:
    """NaN, negative and absurd values are refused by line and column, cut to a readable length."""
    (problem,) = refused(table({}, {"id": "own-2", column: cell}))

    assert problem.startswith(f"runs.csv:3: {column} (={cell[:60]})")
    assert len(problem) < 250


def test_missing_columns_are_named_together() -> None:
    """A table without a column that is needed says which."""
    (problem,) = refused("id,layers\nx,1\n")

    assert "runs.csv:1: columns hidden, heads, ffn_hidden" in problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "runs.csv:1: columns id"),
        (table().splitlines()[0], "has no rows"),
        (table({}, {}), "own-1) occurs twice"),
        (table() + "own-2,1,2\n", "runs.csv:3: has more or fewer cells"),
        (table({"notes": '"no end'}), "unexpected end"),
    ],
    ids=["empty", "no rows", "twice", "short row", "open quote"],
)
def test_a_broken_table_says_where(text: str, words: str) -> None:
    """What is no table is refused with the place."""
    assert any(words in problem for problem in refused(text))


def test_columns_that_nobody_knows_are_ignored() -> None:
    """A table may hold more than is read."""
    text = table().replace("id,", "colour,id,", 1).replace("own-1,", "red,own-1,", 1)

    assert parse_table(text, "runs.csv")[0].id == "own-1"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpus": "16"}, "dp x tp x pp x cp (=8) is not gpus (=16)"),
        ({"global_batch": "9"}, "global_batch is not a multiple"),
        ({"framework": "Caffe"}, "unknown framework 'Caffe'"),
        ({"gpu_type": "abacus"}, "'abacus' is not in the catalog"),
        ({"layers": ""}, "not stated: layers"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_expressed_has_a_reason(changes: dict[str, str], reason: str) -> None:
    """A row that makes no case is skipped with words, not dropped."""
    made = case_of(row(**changes))

    assert isinstance(made, str)
    assert reason in made


@pytest.mark.parametrize(
    ("note", "counter", "rank"),
    [
        ("mem=max_memory_reserved on the worst rank", "reserved", "fullest"),
        ("mem=torch peak on rank 0 only (first pipeline stage)", "allocated", "first"),
        ("mem=torch peak allocated on the LAST rank (last pipeline stage)", "allocated", "last"),
        ("mem=nvidia-smi reading on the first/last nodes", "device", "fullest"),
        ("", "allocated", "fullest"),
    ],
)
def test_the_memory_tag_says_counter_and_rank(note: str, counter: str, rank: str) -> None:
    """`mem=` in the notes decides what is predicted."""
    found = row(notes=f"mlp=gated; {note}")

    assert (counter_of(found), rank_of(found)) == (counter, rank)


@pytest.mark.parametrize(
    ("changes", "trainer", "stage"),
    [
        ({}, "deepspeed", 3),
        ({"framework": "Megatron-DeepSpeed", "zero_stage_or_sharding": "ZeRO-1"}, "megatron", 1),
        ({"framework": "torchtitan", "zero_stage_or_sharding": "FSDP2 FULL_SHARD"}, "fsdp", 3),
        ({"framework": "nanotron", "zero_stage_or_sharding": "ZeRO-0"}, "nanotron", 0),
    ],
    ids=["deepspeed", "megatron", "fsdp", "nanotron"],
)
def test_the_framework_decides_how_it_runs(
    changes: dict[str, str], trainer: str, stage: int
) -> None:
    """Name and sharding of a row become trainer and ZeRO stage."""
    made = case_of(row(**changes))

    assert isinstance(made, Case)
    assert (made.strategy.runs_as.trainer, made.strategy.zero_stage) == (trainer, stage)


def test_rows_that_call_themselves_suspect_need_asking() -> None:
    """Tagged rows are skipped by default and predicted on request."""
    rows = [row(notes="mlp=gated; suspect: differs from its neighbours")]

    assert validation(rows).skipped[0].reason == "tagged suspect"
    assert len(validation(rows, every=True).rows) == 2


def test_errors_are_signed_fractions_of_the_measured_value() -> None:
    """The document holds predicted, interval, measured and error of each quantity."""
    memory, step_time = validation([row()]).rows

    assert memory.error == pytest.approx(memory.predicted / 40 - 1)
    assert step_time.low <= step_time.predicted <= step_time.high
    assert {memory.quantity, step_time.quantity} == {"memory", "step_time"}


def test_sources_weigh_equally() -> None:
    """Two rows of one source weigh as much as one of another."""
    small = [Outcome(0.1, True), Outcome(-0.2, True)]
    found = overall({"a": small, "b": [Outcome(0.5, False)]})

    assert found.median == pytest.approx(0.2)
    assert found.p90 == pytest.approx(0.5)
    assert found.holds == pytest.approx(2 / 3)
    assert errors(small).bias == pytest.approx(-0.05)


def group(*pairs: tuple[float, float]) -> list[Run]:
    """Runs of so many layouts, from predicted and measured seconds."""
    return [Run(number, *pair) for number, pair in enumerate(pairs)]


def test_decisions_are_judged_by_order_and_regret() -> None:
    """A reversed order has correlation -1; its pick is the slowest."""
    measured = [1.0, 2.0, 3.0, 4.0, 5.0]
    right = decisions([group(*((m * 2, m) for m in measured))])
    wrong = decisions([group(*((-m, m) for m in measured))])

    assert right is not None
    assert wrong is not None
    assert (right.spearman, right.regret, right.repeat_spread) == (pytest.approx(1), 0, None)
    assert (wrong.spearman, wrong.worst_regret) == (pytest.approx(-1), 4)


def test_of_layouts_predicted_alike_none_is_the_lucky_pick() -> None:
    """The regret is their mean, not that of the fastest among them."""
    found = decisions([group((1, 3), (1, 1), (2, 2), (3, 3), (4, 4))])

    assert found is not None
    assert found.regret == pytest.approx(1.0)


@given(st.permutations(range(15)))
def test_repeats_of_a_layout_are_no_layouts(order: list[int]) -> None:
    """Three runs each of five layouts, in any order: as the five with their median runs."""
    five = group((1, 10), (2, 20), (3, 15), (4, 40), (5, 50))
    runs = [run._replace(took=run.took * noise) for run in five for noise in (0.8, 1, 1.2)]
    once, thrice = decisions([five]), decisions([[runs[place] for place in order]])

    assert once is not None
    assert thrice is not None
    assert (thrice.spearman, thrice.regret) == (once.spearman, once.regret)
    assert thrice.repeat_spread == pytest.approx(0.5)


@pytest.mark.parametrize(
    "runs",
    [group(*[(1.0, 1.0)] * 4), group(*[(1.0, 1.0)] * 5), [Run(0, 1.0, t) for t in range(1, 9)]],
    ids=["few", "equal", "one layout"],
)
def test_groups_that_say_nothing_are_left_out(runs: list[Run]) -> None:
    """Fewer than five layouts, five alike, or runs of one layout have no order."""
    assert decisions([runs]) is None


def test_the_command_prints_a_document_that_is_json(tmp_path: Path) -> None:
    """`--json` is one document with rows, skipped and summary."""
    path = tmp_path / "runs.csv"
    path.write_text(table({}, {"id": "own-2", "gpus": "16"}))
    ran = CliRunner().invoke(app, ["validate", str(path), "--json"], catch_exceptions=False)
    made = json.loads(ran.stdout)

    assert [entry["quantity"] for entry in made["rows"]] == ["memory", "step_time"]
    assert made["skipped"][0]["id"] == "own-2"
    assert math.isfinite(made["summary"]["memory"]["overall"]["median"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs.csv", "--what", "speed"), "--what"),
        (("runs.csv", "--sources", "theirs"), "no rows of theirs"),
        (("absent.csv",), "cannot be read"),
        (("bad.csv",), "bad.csv:2: layers (=-1)"),
        (("skipped.csv",), "no row could be compared"),
    ],
    ids=["what", "sources", "absent", "bad", "skipped"],
)
def test_the_command_refuses_what_is_wrong(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A clear message, a non-zero exit, nothing written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(table())
    (tmp_path / "bad.csv").write_text(table({"layers": "-1"}))
    (tmp_path / "skipped.csv").write_text(table({"gpus": "16"}))
    before = sorted(tmp_path.iterdir())

    with pytest.raises(SystemExit) as caught:
        main(["validate", *arguments])

    assert caught.value.code in (1, 2)
    assert words in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
