"""Data preparation, from files to samples, with progress; before any process group exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dsforge.job import TrainJob
from dsforge.train.data.packing import packed
from dsforge.train.data.pairs import Pairs, tokenize_pairs
from dsforge.train.data.row_files import data_files
from dsforge.train.data.rows import BadRows, Rows, RowShape, read_rows, stop
from dsforge.train.data.samples import Sample, lengths_of, split
from dsforge.train.data.sides import tokenize_sides
from dsforge.train.data.token_cache import (
    StoredSamples,
    Writer,
    cache_folder,
    checksum,
    checksum_of_files,
    checksum_of_tokenizer,
    stored,
)
from dsforge.train.data.tokenization import tokenize
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.progress import Screen

Say = Callable[[str], None]
SHOWN = 10  # rows that are named
Form = Literal["tokens", "pairs", "sides"]  # of samples
TOKENIZERS = {"tokens": tokenize, "pairs": tokenize_pairs, "sides": tokenize_sides}
PATH, NAME = "\0path", "\0name"  # in kept notes: the same rows may lie in another file


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a job: its rows where they had to be looked at, none where tokens are kept."""

    name: str
    path: Path
    checksum: str
    rows: Rows | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Training samples, and validation samples where there are any; a checksum of each."""

    train: Sequence[Sample]
    validation: Sequence[Sample]
    train_digest: str
    validation_digest: str


def read_data(job: TrainJob, folder: Path, screen: Screen) -> tuple[DataFile, ...]:
    """The data files of a job, long before a tokenizer is there: training, then validation.

    Raises SpecError with every bad row. Rows of which tokens are kept on disk were good.
    """
    names = [name for name in (job.data.train, job.data.validation) if name is not None]
    return tuple(_data_file(name, folder / name, job, screen) for name in names)


def _data_file(name: str, path: Path, job: TrainJob, screen: Screen) -> DataFile:
    files = checksum_of_files(data_files(path))
    known = checksum(files, shape_of(job), job.on_bad_row)
    if any(cache_folder().glob(f"{known}-*/")):
        return DataFile(name, path, known, None, ())
    said: list[str] = []
    rows = read_rows(path, shape_of(job), _policy(job, _say_to_both(screen.say, said.append)))
    return DataFile(name, path, known, rows, tuple(said))


def shape_of(job: TrainJob) -> RowShape:
    """The shape that the rows of a job are read in."""
    return job.data.shape if job.preference is None else "pairs"


def _say_to_both(one: Say, other: Say) -> Say:
    def say(message: str) -> None:
        one(message)
        other(message)

    return say


def _policy(job: TrainJob, say: Say) -> Callable[[BadRows], None]:
    """What becomes of bad rows."""
    return stop if job.on_bad_row == "stop" else partial(_leave_out, say)


def _leave_out(say: Say, bad: BadRows) -> None:
    """Name what is left out, as the error would."""
    said = bad.error()
    say(f"left out: {said.message}")
    for problem in said.problems:
        say(f"  - {problem}")


def prepare_data(
    job: TrainJob,
    files: Sequence[DataFile],
    tokenizer: Any,
    place: Place,
    *,
    screen: Screen,
    two_sides: bool = False,
) -> Prepared:
    """The samples of a job; `two_sides`: of a model with an encoder. Raises DsforgeError."""
    form: Form = "sides" if two_sides else "pairs" if job.preference is not None else "tokens"
    found = [_samples(file, job, tokenizer, place, screen=screen, form=form) for file in files]
    given: list[Sequence[Sample]] = list(found)
    if job.preference is not None:
        given = [Pairs(samples, samples.lengths) for samples in found]
    if len(found) > 1:
        prepared = Prepared(given[0], given[1], found[0].digest, found[1].digest)
    else:
        fraction = job.data.validation_fraction
        parts = split(given[0], fraction, job.seed)
        digest = f"{found[0].digest}-{fraction:g}" if fraction else found[0].digest
        prepared = Prepared(*parts, digest, digest if parts[1] else "")
    return _packs(prepared, job, screen) if job.packing else prepared


def _packs(prepared: Prepared, job: TrainJob, screen: Screen) -> Prepared:
    """The same samples, several in each sequence."""
    train = packed(prepared.train, job.sequence_length, job.seed)
    held = prepared.validation
    validation = packed(held, job.sequence_length, job.seed) if held else held
    full = int(lengths_of(train).sum()) / (len(train) * job.sequence_length)
    screen.say(
        f"packed {len(prepared.train)} samples into {len(train)} sequences of "
        f"{job.sequence_length} tokens, {full:.0%} full"
    )
    return replace(prepared, train=train, validation=validation)


def _samples(
    file: DataFile, job: TrainJob, tokenizer: Any, place: Place, *, screen: Screen, form: Form
) -> StoredSamples:
    """The tokens of a file, from the disk where they are kept."""
    heard = list(file.notes)

    def make(writer: Writer) -> Sequence[str]:
        heard.extend(_tokenized(file, job, tokenizer, writer, screen=screen, form=form))
        return [_unnamed(note, file) for note in heard]

    key = f"{file.checksum}-{checksum(checksum_of_tokenizer(tokenizer), job.sequence_length)}"
    key += "-sides" if form == "sides" else ""
    samples, notes = stored(key, make, leads=place.local_rank == 0)
    known = {_unnamed(note, file) for note in heard}
    for note in notes:
        if note not in known:
            screen.say(note.replace(PATH, str(file.path)).replace(NAME, file.name))
    return samples


def _unnamed(note: str, file: DataFile) -> str:
    return note.replace(str(file.path), PATH).replace(file.name, NAME)


def _tokenized(
    file: DataFile, job: TrainJob, tokenizer: Any, writer: Writer, *, screen: Screen, form: Form
) -> list[str]:
    """What there is to say of the rows of a file, after their tokens were written."""
    said: list[str] = []
    say = _say_to_both(screen.say, said.append)
    rows = file.rows
    if rows is None:  # kept for another tokenizer
        rows = read_rows(file.path, shape_of(job), _policy(job, say))
    with screen.counting(f"tokenize {Path(file.name).name}", len(rows)):
        counts = TOKENIZERS[form](
            rows,
            tokenizer,
            job.sequence_length,
            take=writer.add,
            on_row=screen.advance,
            on_bad=_policy(job, say),
        )
    limit = job.sequence_length
    if counts.cut:
        where = _where(counts.cut)
        say(
            f"{file.name}: {len(counts.cut)} of {len(rows)} rows truncated at {limit} tokens: "
            f"{where}"
        )
    if counts.without_answer:
        why = f"their answer begins after {limit} tokens: {_where(counts.without_answer)}"
        if job.preference is not None:
            why = f"an answer begins, or they differ, after {limit} tokens: "
            why += _where(counts.without_answer)
        say(f"{file.name}: {len(counts.without_answer)} rows left out: {why}")
    return said


def _where(places: Sequence[str]) -> str:
    """The numbers of the first rows of a file, from their places, and how many more there are."""
    shown = ", ".join(place.rpartition(":")[2].removeprefix(" row ") for place in places[:SHOWN])
    more = len(places) - SHOWN
    return f"rows {shown} and {more} more" if more > 0 else f"rows {shown}"
