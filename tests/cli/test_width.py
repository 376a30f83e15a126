"""Help pages and tables in a pipe of 80 columns: no line is longer, nothing drives a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dsforge.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 80
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")
JOB = "--model llama-3.1-8b --gpu h100 --gpus-per-node 8 --nodes 2 --tokens 2b --gpu-hour-price 2"
SAMPLE = ROOT / "tests/checkpoints/samples/zero2-lora"
TABLES = (
    f"plan {JOB}",
    f"plan {JOB} --verbose",
    f"plan {JOB} --argue",
    f"estimate {JOB} --verbose",
    f"estimate {JOB} --find micro-batch",
    f"gen {JOB} --out run",
    "plan --model mixtral-8x22b --gpu h200 --gpus-per-node 8 --nodes 16 --inter-node ib-ndr",
    "catalog models",
    "catalog gpus",
    "catalog links",
    "catalog models llama",
)


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and group by its words."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*words, name))


def piped(*words: str) -> str:
    """The stdout of a command in a pipe; it must succeed."""
    done = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("words", list(commands(app)), ids=lambda words: " ".join(words) or "-")
def test_help_is_no_wider_than_the_pipe(words: tuple[str, ...]) -> None:
    """Of every command and group."""
    text = piped(*words, "--help")

    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert not CONTROL.search(text)


@pytest.mark.parametrize("line", TABLES)
def test_tables_are_no_wider_than_the_pipe(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trailing blanks included."""
    monkeypatch.chdir(tmp_path)
    text = piped(*line.split())

    assert text.strip()
    assert [row for row in text.splitlines() if len(row) > WIDTH] == []
    assert not CONTROL.search(text)


@pytest.mark.parametrize("table", ["models", "gpus", "links"])
@pytest.mark.parametrize("columns", [60, 80, 120, 400])
def test_no_value_of_the_catalog_is_cut(table: str, columns: int) -> None:
    """Columns that do not fit are left out and named; those that are shown are whole."""
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["catalog", table])
    names = [row["name"] for row in json.loads(piped("catalog", table, "--json"))[table]]

    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    assert all(re.search(rf"^ {re.escape(name)} ", done.stdout, re.MULTILINE) for name in names)
    assert columns == 120 or ("not shown in" in done.stderr) == (columns < 120)


PROMISED = (
    f"plan {JOB}",
    f"estimate {JOB}",
    f"gen {JOB} --out run",
    "catalog gpus",
    f"ckpt verify {SAMPLE}",
    f"ckpt inspect {SAMPLE}",
    "detect",
)


def test_every_command_that_promises_json_prints_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--json` stands in the help of these; what it prints is one JSON object and nothing else."""
    monkeypatch.chdir(tmp_path)
    for line in PROMISED:
        words = line.split()
        command = words[:2] if words[0] == "ckpt" else words[:1]
        assert "--json" in piped(*command, "--help")
        assert isinstance(json.loads(piped(*words, "--json")), dict), line
