"""Cache of tokens on disk: made once per data, tokenizer and options, then memory-mapped.

An entry is a folder with an Arrow file of samples, which training reads through a memory map, so
that no data set has to fit in memory and the ranks of a host share one copy. Its name is a
checksum of all that the tokens depend on. It gets that name when it is whole; one rank of a host
makes it while the others wait. Any entry can be deleted at any time between runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.train.data.samples import IGNORED, Sample

FORMAT = 4  # of the entries; another one is another key
BATCH = 1024  # samples of a record batch; the last may hold fewer
SAMPLES, NOTES, DIGEST = "samples.arrow", "notes.json", "digest"
HEAD_START_S = 20.0  # for the rank that shows progress to be the one that works


def cache_folder() -> Path:
    """The folder of entries: DSFORGE_CACHE, or `dsforge` in the user's cache folder."""
    given = os.environ.get("DSFORGE_CACHE")
    if given:
        return Path(given) / "tokens"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dsforge" / "tokens"


def checksum(*parts: object) -> str:
    """A short name for values that JSON can hold."""
    text = json.dumps([FORMAT, *parts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def checksum_of_files(paths: Sequence[Path]) -> str:
    """A short name for the content of files."""
    digests = []
    for path in paths:
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "blake2b").hexdigest())
    return checksum(*digests)


def checksum_of_tokenizer(tokenizer: Any) -> str:
    """A short name for all that decides how a tokenizer renders and encodes."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    words = inner.to_str() if inner is not None else json.dumps(tokenizer.get_vocab())
    kind = type(tokenizer).__name__
    return checksum(kind, words, tokenizer.chat_template, tokenizer.eos_token_id)


class StoredSamples(Sequence[Sample]):
    """The samples of an entry, read from the map when they are asked for."""

    def __init__(self, path: Path, digest: str = "") -> None:
        import pyarrow as pa

        self.digest = digest  # of all samples, in their order
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._columns = [(batch.column("tokens"), batch.column("counted")) for batch in batches]
        sizes = [np.diff(tokens.offsets.to_numpy()) for tokens, _ in self._columns]
        self.lengths: NDArray[np.int64] = np.concatenate(sizes).astype(np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        batch, row = divmod(range(len(self))[index], BATCH)
        tokens, counted = (column[row].values for column in self._columns[batch])
        ids = tokens.to_numpy().astype(np.int64)
        return Sample(ids, np.where(counted.to_numpy().astype(bool), ids, IGNORED))


class Writer:
    """Appends samples to an Arrow file, a batch at a time."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        lists = {"tokens": pa.list_(pa.int32()), "counted": pa.list_(pa.uint8())}
        self._schema = pa.schema(lists)
        self._file = pa.ipc.new_file(str(path), self._schema)
        self._waiting: list[Sample] = []
        self._digest = hashlib.blake2b(digest_size=12)

    @property
    def digest(self) -> str:
        """A checksum of the samples so far, in their order."""
        return self._digest.hexdigest()

    def add(self, sample: Sample) -> None:
        """One more sample."""
        self._digest.update(len(sample.tokens).to_bytes(8, "little"))
        self._digest.update(sample.tokens.astype("<i8").tobytes())
        self._digest.update((sample.labels != IGNORED).tobytes())
        self._waiting.append(sample)
        if len(self._waiting) == BATCH:
            self._flush()

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        if self._waiting:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        import pyarrow as pa

        lengths = [len(sample.tokens) for sample in self._waiting]
        offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
        tokens = np.concatenate([sample.tokens for sample in self._waiting]).astype(np.int32)
        labels = np.concatenate([sample.labels for sample in self._waiting])
        values = (tokens, (labels != IGNORED).astype(np.uint8))
        arrays = [pa.ListArray.from_arrays(offsets, pa.array(value)) for value in values]
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._waiting.clear()


def stored(
    key: str, make: Callable[[Writer], Sequence[str]], *, leads: bool
) -> tuple[StoredSamples, tuple[str, ...]]:
    """The samples of an entry and what was said when it was made; made here where there is none.

    The rank that `leads` its host is the one to make it, if it comes in time.
    """
    entry = cache_folder() / key
    if not entry.is_dir():
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _entry_lock(entry.with_suffix(".lock"), leads=leads):
            if not entry.is_dir():
                _make(entry, make)
    notes = json.loads((entry / NOTES).read_text(encoding="utf-8"))
    digest = (entry / DIGEST).read_text(encoding="ascii")
    return StoredSamples(entry / SAMPLES, digest), tuple(str(note) for note in notes)


def _make(entry: Path, make: Callable[[Writer], Sequence[str]]) -> None:
    """Fill a folder of another name, then give it the right one."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        writer = Writer(temporary / SAMPLES)
        notes = make(writer)
        writer.close()
        (temporary / DIGEST).write_text(writer.digest, encoding="ascii")
        (temporary / NOTES).write_text(json.dumps(list(notes)), encoding="utf-8")
        with suppress(FileExistsError, OSError):  # another host with the same folder was faster
            temporary.rename(entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _entry_lock(path: Path, *, leads: bool) -> Iterator[None]:
    """The lock of an entry; a process that dies gives it back."""
    end = time.monotonic() + HEAD_START_S
    while not leads and not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    with path.open("a") as lock:
        with suppress(OSError):  # a file system without locks: each rank makes its own
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
