"""Tokens on disk, rows of larger files, dataset folders: made once, mapped, the same for all."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_job import write_job

from dsforge.errors import DsforgeError, SpecError
from dsforge.job import TrainJob
from dsforge.reading.job import read_job
from dsforge.train.data import preparation
from dsforge.train.data.preparation import Prepared, prepare_data, read_data
from dsforge.train.data.rows import read_rows
from dsforge.train.data.samples import IGNORED, Sample
from dsforge.train.data.token_cache import BATCH, StoredSamples, Writer, cache_folder, stored
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.progress import Screen

pytestmark = pytest.mark.engine
ALONE = Place(0, 0, 1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setenv("DSFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tokenizer(tiny_llama: Path) -> Any:
    """The tokenizer of the tiny model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.fixture
def job(tiny_llama: Path, tmp_path: Path) -> TrainJob:
    """A job of 64 pairs, in the folder of the test."""
    return read_job(write_job(tmp_path, tiny_llama, {}))


def prepared(job: TrainJob, folder: Path, tokenizer: Any) -> Prepared:
    """The samples of a job."""
    screen = Screen(shown=True)
    return prepare_data(job, read_data(job, folder, screen), tokenizer, ALONE, screen=screen)


def same(ones: Any, others: Any) -> bool:
    """Whether two sequences hold the same samples."""
    return len(ones) == len(others) and all(
        np.array_equal(one.tokens, other.tokens) and np.array_equal(one.labels, other.labels)
        for one, other in zip(ones, others, strict=True)
    )


def entries() -> list[Path]:
    """The entries of the cache."""
    return [path for path in cache_folder().iterdir() if path.is_dir()]


def test_tokens_are_made_once(
    job: TrainJob, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run reads no row and encodes no text, and has the same samples."""
    first = prepared(job, tmp_path, tokenizer)
    for name in ("read_rows", "tokenize"):
        monkeypatch.setattr(preparation, name, None)
    second = prepared(job, tmp_path, tokenizer)

    assert len(first.train) == 64
    assert same(first.train, second.train)
    assert len(entries()) == 1


@pytest.mark.parametrize("changed", ["data", "length", "template", "end", "shape"])
def test_what_tokens_depend_on_makes_new_ones(
    changed: str, job: TrainJob, tmp_path: Path, tokenizer: Any
) -> None:
    """Data, limit, template, end mark, shape: a change of any of them is another entry."""
    prepared(job, tmp_path, tokenizer)
    if changed == "data":
        with (tmp_path / "data.jsonl").open("a") as data:
            data.write(json.dumps({"prompt": "new?", "completion": "yes"}) + "\n")
    if changed == "length":
        job = job.model_copy(update={"sequence_length": 48})
    if changed == "template":
        tokenizer.chat_template = tokenizer.chat_template.replace("<|user|>", "<|system|>") + "\n"
    if changed == "end":
        tokenizer.eos_token = "<pad>"
    if changed == "shape":
        data_spec = job.data.model_copy(update={"shape": "prompt"})
        job = job.model_copy(update={"data": data_spec})
    prepared(job, tmp_path, tokenizer)

    assert len(entries()) == 2


def test_rows_left_out_are_named_again(
    job: TrainJob, tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was skipped when the tokens were made is said at each run that uses them."""
    with (tmp_path / "data.jsonl").open("a") as data:
        data.write("{broken\n")
    job = job.model_copy(update={"on_bad_row": "skip"})
    said = []
    for _ in range(2):
        prepared(job, tmp_path, tokenizer)
        said.append(capsys.readouterr().err)

    assert all(f"{tmp_path / 'data.jsonl'}:65" in text for text in said)
    assert [text.count("left out: 1 bad row") for text in said] == [1, 1]
    assert len(entries()) == 1


def test_samples_of_many_batches_come_back_as_they_were(tmp_path: Path) -> None:
    """Across the borders of record batches, from both ends."""
    random = np.random.default_rng(2)
    samples = []
    for length in random.integers(1, 30, BATCH + 300):
        tokens = random.integers(0, 2**31 - 1, length)
        samples.append(Sample(tokens, np.where(random.random(length) < 0.5, IGNORED, tokens)))
    writer = Writer(tmp_path / "samples.arrow")
    for sample in samples:
        writer.add(sample)
    writer.close()
    found = StoredSamples(tmp_path / "samples.arrow")

    assert same(found, samples)
    assert same(found[BATCH - 2 : BATCH + 2], samples[BATCH - 2 : BATCH + 2])
    assert np.array_equal(found[-1].tokens, samples[-1].tokens)
    assert found.lengths.tolist() == [len(sample.tokens) for sample in samples]


def test_an_entry_that_failed_does_not_count(tmp_path: Path) -> None:
    """Where making it fails nothing is left behind, and the next run makes it anew."""

    def fails(writer: Writer) -> list[str]:
        writer.add(Sample(np.arange(3), np.arange(3)))
        raise DsforgeError("no answer begins within 3 tokens")

    def succeeds(writer: Writer) -> list[str]:
        writer.add(Sample(np.arange(4), np.arange(4)))
        return ["said"]

    with pytest.raises(DsforgeError):
        stored("key", fails, leads=True)
    left = entries()
    samples, notes = stored("key", succeeds, leads=True)

    assert left == []
    assert ([len(s.tokens) for s in samples], notes) == ([4], ("said",))


def _rank(number: int, folder: str) -> tuple[int, int]:
    """How many samples a rank has, and whether it made them."""
    made = []

    def make(writer: Writer) -> list[str]:
        made.append(1)
        for length in range(1, 50):
            writer.add(Sample(np.arange(length), np.arange(length)))
        return []

    samples, _ = stored(folder, make, leads=number == 0)
    return len(samples), len(made)


def test_one_rank_of_a_host_makes_tokens_for_all() -> None:
    """Three processes at once: all have the samples, one has made them."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.starmap(_rank, [(number, "shared") for number in range(3)])

    assert [count for count, _ in found] == [49] * 3
    assert sum(made for _, made in found) == 1


def test_a_dataset_folder_gives_the_rows_of_jsonl(tmp_path: Path) -> None:
    """As `Dataset.save_to_disk` writes it, in several files."""
    from datasets import Dataset

    messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b."}]
    rows = [{"messages": messages, "id": i} for i in range(5)]
    Dataset.from_list(rows).save_to_disk(tmp_path / "set", num_shards=2)
    found = list(read_rows(tmp_path / "set", "auto"))

    assert [row.messages for row in found] == [tuple(messages)] * 5
    assert found[4].place == f"{tmp_path / 'set'}: row 5"


def test_folders_that_are_no_dataset_are_refused(tmp_path: Path) -> None:
    """Several splits: the user names one; any other folder is no data."""
    from datasets import Dataset, DatasetDict

    part = Dataset.from_list([{"text": "abc"}])
    DatasetDict({"train": part, "test": part}).save_to_disk(tmp_path / "splits")
    (tmp_path / "none").mkdir()
    with pytest.raises(SpecError) as several:
        read_rows(tmp_path / "splits", "auto")
    with pytest.raises(SpecError) as none:
        read_rows(tmp_path / "none", "auto")

    assert f"{tmp_path / 'splits' / 'train'}" in several.value.problems[0].hint
    assert [problem.rule for problem in none.value.problems] == ["data-folder"]
