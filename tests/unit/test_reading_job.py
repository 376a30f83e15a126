"""train.yaml -> TrainJob."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsforge.errors import SpecError
from dsforge.reading.job import read_job

SMALLEST = """
model: some/model
deepspeed_config: ds_config.json
data: {train: data.jsonl}
sequence_length: 512
"""


def written(folder: Path, text: str) -> Path:
    """A train.yaml."""
    path = folder / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_four_keys_are_enough(tmp_path: Path) -> None:
    """Everything else has a default."""
    job = read_job(written(tmp_path, SMALLEST))

    assert (job.model, job.sequence_length, job.epochs, job.steps) == ("some/model", 512, 1.0, None)
    assert (job.lora, job.tokenizer, job.data.shape) == (None, None, "auto")


def test_nested_blocks_are_read(tmp_path: Path) -> None:
    """Adapters and validation data."""
    more = "lora: {rank: 8}\n"
    text = SMALLEST.replace("data.jsonl}", "a.parquet, validation: b.parquet}") + more
    job = read_job(written(tmp_path, text))

    assert job.lora is not None
    assert (job.lora.rank, job.data.validation) == (8, "b.parquet")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stepps: 3", "`stepps` is not a key (did you mean `steps`?)"),
        ("steps: 0", "`steps` (=0) must be at least 1"),
        ("steps: many", "`steps` (=many) must be a whole number"),
        ("schedule: cosin", "`schedule` (=cosin) must be `cosine`, `linear` or `constant`"),
        ("lora: {rank: 0}", "`lora.rank` (=0) must be at least 1"),
        ("minimum_learning_rate_ratio: 2", "must be at most 1"),
        ("gradient_checkpointing: 1", "`gradient_checkpointing` (=1) must be true or false"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(line: str, words: str, tmp_path: Path) -> None:
    """File, line, value, rule and the nearest legal word."""
    path = written(tmp_path, SMALLEST + line + "\n")
    with pytest.raises(SpecError) as raised:
        read_job(path)

    (problem,) = raised.value.problems
    assert problem.place == f"{path}:6"
    assert words in str(problem)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    """Missing and unknown keys together."""
    with pytest.raises(SpecError) as raised:
        read_job(written(tmp_path, "model: m\nsteps: -1\ndataa: {}\n"))

    assert sorted(problem.rule for problem in raised.value.problems) == [
        "key-missing",
        "key-missing",
        "key-missing",
        "key-unknown",
        "value-range",
    ]


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    """No traceback for a path with a slip."""
    with pytest.raises(SpecError) as raised:
        read_job(tmp_path / "trian.yaml")

    assert raised.value.problems[0].rule == "file-unreadable"
