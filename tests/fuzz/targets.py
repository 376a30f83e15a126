"""What is fuzzed: one function for each parser of text from outside, and what must hold after it.

A target takes any bytes. Nothing may escape from it but a DsforgeError with a message; no process
may start, no connection open, no file be written; what comes out must be printable and bounded.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import input_targets
from input_targets import INPUT_TARGETS

from dsforge.checkpoints.pickles.allowed_names import called_unknown, held_unknown
from dsforge.checkpoints.pickles.reader import PickleError, read_pickle
from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.weights.safetensors_header import read_entries
from dsforge.diagnose import diagnose_stream
from dsforge.errors import DsforgeError, SpecError
from dsforge.hostfile import hostfile_entries
from dsforge.lint.files import Against, checked, release_named
from dsforge.lint.reading.document import Kind, applied
from dsforge.lint.reading.kind import document_of
from dsforge.probe.messages import read_answer
from dsforge.probe.nccl_log import MOST_NAMES, NcclWords
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import parse_source

ROOT = Path(__file__).resolve().parents[2]
REACHING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn")
CONNECTING = ("socket.connect", "socket.sendto", "socket.bind")
WRITING = set("wax+")
SAFE_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")  # what ssh and a shell take for a name
LONGEST_MESSAGE = 2_000
MOST_FINDINGS = 2_000
LINT_FILES: dict[str, tuple[str, Kind]] = {
    "ds_config": ("ds_config.json", "ds_config"),
    "ds_config_yaml": ("ds_config.yaml", "ds_config"),
    "deepspeed_env": (".deepspeed_env", "env"),
    "lint_hostfile": ("hostfile", "hostfile"),
    "megatron": ("args.txt", "megatron"),
    "accelerate": ("accelerate.yaml", "accelerate"),
    "train": ("train.yaml", "train"),
}
AGAINST = Against(*release_named(None))

STORE = tempfile.NamedTemporaryFile(prefix="dsforge-fuzz-")  # noqa: SIM115 - to the very end

watching = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: whatever reaches outside while a target runs is an error."""
    if not watching or (event == "os.fork" and input_targets.apart):
        return
    if event.startswith(REACHING + CONNECTING):
        raise AssertionError(f"{event} {arguments!r:.200}")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & WRITING:
        raise AssertionError(f"writes {arguments[0]!r:.200}")


sys.addaudithook(watch)


@contextmanager
def watched() -> Iterator[None]:
    """Inside, nothing may reach outside."""
    global watching  # noqa: PLW0603 (a hook cannot be removed)
    watching = True
    try:
        yield
    finally:
        watching = False


def said(error: DsforgeError) -> None:
    """A refusal is short and cannot drive the terminal that shows it."""
    problems = error.problems if isinstance(error, SpecError) else ()
    for text in (error.message, *map(str, problems)):
        assert len(text) < LONGEST_MESSAGE, text[:200]


def hostfile(data: bytes) -> None:
    """Every host that is accepted is a name that neither ssh nor a shell takes for more."""
    try:
        entries = hostfile_entries(data.decode("utf-8", "replace"), "hostfile")
    except DsforgeError as error:
        said(error)
        return
    for entry in entries:
        assert SAFE_HOST.fullmatch(entry.address), entry.address
        assert entry.slots > 0


def cluster(data: bytes) -> None:
    """A cluster file or card: refused, or a cluster whose texts are safe in a script."""
    try:
        spec, _ = cluster_of(parse_source(data.decode("utf-8", "replace"), "cluster.yaml"))
    except DsforgeError as error:
        said(error)
        return
    names = [host.address for host in spec.hosts] + [spec.interface, spec.ssh_user]
    for name in filter(None, names):
        assert SAFE_HOST.fullmatch(name) or name.startswith("_"), name


def answers(data: bytes) -> None:
    """What ranks and NCCL print."""
    words = NcclWords()
    for line in data.decode("utf-8", "replace").splitlines():
        read_answer(line)
        words.hear(line)
    assert len(words.networks) <= MOST_NAMES
    assert len(words.devices) <= MOST_NAMES


def diagnose(data: bytes) -> None:
    """A log, in two pieces as a stream comes."""
    half = len(data) // 2
    for cause in diagnose_stream((data[:half], data[half:]), "log"):
        assert 0 < cause.confidence <= 1
        assert cause.message.isprintable()


def pickle(data: bytes) -> None:
    """A pickle out of a torch file: refused, or values and the names that it would call."""
    try:
        pickled = read_pickle(data)
    except PickleError as error:
        said(DsforgeError(str(error)))
        return
    called_unknown(pickled), held_unknown(pickled)
    for name, tensor in tensors_in(pickled.value):
        assert tensor.elements >= 0, name


def torch_file(data: bytes) -> None:
    """A torch file: refused, or records whose sums can be asked for."""
    try:
        archive = Archive(_stored(data))
        _ = archive.value
        assert all(line.isprintable() for line in (*archive.lacking(), *archive.damage()))
    except DsforgeError as error:
        said(error)


def safetensors(data: bytes) -> None:
    """A safetensors file: refused, or tensors that lie one behind the other in it."""
    try:
        entries = read_entries(_stored(data))
    except DsforgeError as error:
        said(error)
        return
    ends = [entry.end for entry in entries]
    assert [entry.begin for entry in entries[1:]] == ends[:-1]
    assert not ends or ends[-1] == len(data)


def _stored(data: bytes) -> Path:
    """The one file of this process that targets read, with these bytes: it is open already."""
    os.ftruncate(STORE.fileno(), 0)
    os.pwrite(STORE.fileno(), data, 0)
    return Path(STORE.name)


def _lint(name: str, kind: Kind) -> Callable[[bytes], None]:
    """A target for one kind of file: its findings, and what its repairs make of it."""

    def target(data: bytes) -> None:
        document = document_of(name, data.decode("utf-8", "replace"), kind)
        found = checked(document, AGAINST)
        assert len(found) < MOST_FINDINGS
        for finding in found:
            assert finding.message.isprintable()
            assert len(finding.message) < LONGEST_MESSAGE
        edits = [edit for finding in found for edit in finding.edits]
        if edits:
            checked(document_of(name, applied(document.text, edits), kind), AGAINST)

    return target


TARGETS: dict[str, Callable[[bytes], None]] = {
    "hostfile": hostfile,
    "cluster": cluster,
    "answers": answers,
    "diagnose": diagnose,
    "torch_file": torch_file,
    "pickle": pickle,
    "safetensors": safetensors,
    **INPUT_TARGETS,
    **{target: _lint(name, kind) for target, (name, kind) in LINT_FILES.items()},
}
