"""The page's Python in two parts: what a first plan needs, and the rest, fetched after it.

Where Node is installed, the runtime of the page itself compiles what it imports for a first plan
(`ahead.mjs`); a page then starts in half the time. Without Node all of it is one part of sources.
A part is a gzip stream: the length of a listing, the listing (names and sizes, JSON), the files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dsforge.errors import DsforgeError
from dsforge.process import run

Files = dict[str, bytes]
Say = Callable[[str], None]

HERE = Path(__file__).parent
COMPILER, SCRIPT = "ahead.mjs", "ahead.py"
STDLIB_ZIP = "python_stdlib.zip"
TIMEOUT_S = 300.0
NAMES = "later.json"  # modules of the later part, listed in the first
PACKAGE = "__init__.py"
LISTING_BYTES = 4
ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the same content is the same file


class Parts(NamedTuple):
    """Python of the page."""

    stdlib: bytes  # the archive that the runtime starts with
    first: bytes
    later: bytes


def parts(runtime: Mapping[str, bytes], planner: Files, cache: Path, say: Say) -> Parts:
    """The standard library of the runtime and the planner, split and compiled where that can be."""
    with zipfile.ZipFile(io.BytesIO(runtime[STDLIB_ZIP])) as archive:
        stdlib = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    compiled = _compiled(runtime, planner, cache, say)
    bytecode = {kind: _below(compiled, kind) for kind in ("stdlib", "planner")}
    own, own_later = _split(planner, bytecode["planner"], _package_of, whole=False)
    # A package cannot be imported from a zip archive and a folder at once.
    standard, standard_later = _split(stdlib, bytecode["stdlib"], _top_of, whole=True)
    later = own_later | standard_later
    names = sorted(_module(name) for name in later if name.endswith(".py"))
    own[NAMES] = json.dumps(names).encode()
    return Parts(zipped(standard), bundled(own), bundled(later))


def _below(files: Files, folder: str) -> Files:
    """Files below a folder, by their names in it."""
    return {n.removeprefix(f"{folder}/"): b for n, b in files.items() if n.startswith(f"{folder}/")}


def _split(
    files: Files, bytecode: Files, home: Callable[[str, Files], str], *, whole: bool
) -> tuple[Files, Files]:
    """What is used at first, compiled; and the rest. All is used where nothing is compiled.

    Data of a package that is used is, too, and with `whole` its other modules.
    """
    used = {home(name.removesuffix("c"), files) for name in bytecode}
    first: Files = dict(bytecode)
    later: Files = {}
    for name, content in files.items():
        if f"{name}c" in bytecode:
            continue
        can_wait = not whole and name.endswith(".py")
        is_first = not bytecode or (home(name, files) in used and not can_wait)
        (first if is_first else later)[name] = content
    return first, later


def _package_of(name: str, files: Files) -> str:
    """The innermost package that a file belongs to."""
    folder = PurePosixPath(name).parent
    return next(
        (str(each) for each in (folder, *folder.parents) if f"{each}/{PACKAGE}" in files), ""
    )


def _top_of(name: str, _files: Files) -> str:
    """The top-level package or module of a file."""
    return name.partition("/")[0]


def _module(name: str) -> str:
    """The module of a source."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def bundled(files: Files) -> bytes:
    """Files as one compressed part."""
    listing = json.dumps([[name, len(files[name])] for name in sorted(files)]).encode()
    content = b"".join(files[name] for name in sorted(files))
    head = len(listing).to_bytes(LISTING_BYTES, "little")
    return gzip.compress(head + listing + content, 9, mtime=0)


def unbundled(part: bytes) -> Files:
    """The files of a part."""
    content = gzip.decompress(part)
    start = LISTING_BYTES + int.from_bytes(content[:LISTING_BYTES], "little")
    found: Files = {}
    for name, size in json.loads(content[LISTING_BYTES:start]):
        found[name] = content[start : start + size]
        start += size
    return found


def zipped(files: Files) -> bytes:
    """Files as a zip archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, ZIP_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return stream.getvalue()


def _compiled(runtime: Mapping[str, bytes], planner: Files, cache: Path, say: Say) -> Files:
    """Bytecode of what a first plan imports, kept in the cache; nothing where there is no Node."""
    scripts = [(HERE / name).read_bytes() for name in (COMPILER, SCRIPT)]
    kept = cache / f"bytecode-{_digest([*runtime.values(), *planner.values(), *scripts])}.zip"
    content = kept.read_bytes() if zipfile.is_zipfile(kept) else b""
    if not content:
        node = shutil.which("node")
        if node is None:
            say("without Node.js the page is not compiled ahead: its Python starts 2 s later")
            return {}
        say("compiling the planner for the browser, about 10 s, once")
        content = _run_compiler(node, runtime, planner, say)
        if not content:
            return {}
        with suppress(OSError):  # a cache that cannot be written is no obstacle
            _keep(kept, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _keep(path: Path, content: bytes) -> None:
    """Put the archive into the cache, in place of those of other versions."""
    for old in path.parent.glob("bytecode-*.zip"):
        old.unlink(missing_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


def _digest(contents: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for content in contents:
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()[:16]


def _run_compiler(node: str, runtime: Mapping[str, bytes], planner: Files, say: Say) -> bytes:
    """The archive of `ahead.mjs`; nothing, and a message, where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in runtime.items():
            (folder / file).write_bytes(content)
        (folder / "planner.zip").write_bytes(zipped(planner))
        out = folder / "bytecode.zip"
        command = (node, str(HERE / COMPILER), name, str(folder / "planner.zip"))
        try:
            done = run((*command, str(HERE / SCRIPT), str(out)), timeout_s=TIMEOUT_S)
            if done.code == 0:
                return out.read_bytes()
            reason = done.tail.strip().splitlines()[-1:] or [f"exit code {done.code}"]
        except DsforgeError as error:
            reason = [error.message]
    say(f"{node} cannot compile the page ahead ({reason[0][:200]}): its Python starts 2 s later")
    return b""
