"""The static files of the page, put together: any web host can serve the folder.

The page, the Python runtime, the charts and the planner itself; nothing is loaded from elsewhere.
`precache.js` lists all files with one version, by which the service worker keeps them offline.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dsforge import __version__
from dsforge.errors import DsforgeError
from dsforge.render.engine import template_root
from dsforge.report.pages import PRINTED, SCRIPTS, STYLES
from dsforge.ui.bundles import STDLIB_ZIP, parts
from dsforge.ui.runtime import Component, Say, cache_folder, components, fetched
from dsforge.ui.worker import FIRST_QUESTION, answered

PACKAGE = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("page")
PRECACHE, LICENCES = "precache.js", "licences.txt"
PLANNER, LATER = "planner.bin", "later.bin"
CHOICES = "choices.json"  # so that the form is there before Python is
FIRST = "first.json"  # the answer to the page's first question, shown until Python has it, too
# Rooms that need torch, hosts or a terminal: the page has no use for them.
LEFT_OUT = {"train", "rehearse", "bench", "probe", "preflight", "cli", "ui/page", "templates"}
SHARED = {*STYLES, *PRINTED, *SCRIPTS}
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", STDLIB_ZIP)
LOCK = "pyodide-lock.json"
CHART = "dist/chart.umd.min.js"
SKIPPED_PACKAGES = ("pydantic/v1/", "pydantic/mypy.py")  # for users of pydantic 1, for mypy
NOT_IN_BROWSER = (".cpython-314-x86_64-linux-gnu.so", ".pyx", ".c")
NOT_SERVED = {PRECACHE, "sw.js"}  # a service worker does not keep itself


class Exported(NamedTuple):
    """A folder that was written."""

    folder: Path
    files: tuple[str, ...]
    bytes: int


def export(folder: Path, say: Say, *, cache: Path | None = None) -> Exported:
    """Write the page into a folder: new, empty, or of an earlier export. Raises DsforgeError."""
    _check(folder)  # before minutes are spent
    kept = cache or cache_folder()
    wanted = components()
    fetched(wanted, kept, say)
    files = dict(_files(wanted, kept, say))
    files[PRECACHE] = _precache(files)
    _check(folder)
    try:
        _write(folder, files)
    except OSError as error:
        raise DsforgeError(f"cannot write {folder}: {error.strerror}") from error
    return Exported(folder, tuple(sorted(files)), sum(map(len, files.values())))


def _check(folder: Path) -> None:
    """Raise DsforgeError where the folder holds what is not ours."""
    places = (folder, *folder.absolute().parents)
    nearest = next(place for place in places if place.is_symlink() or place.exists())
    if folder.is_symlink() or not nearest.is_dir():
        raise DsforgeError(f"{nearest} is not a folder", "name a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / PRECACHE).is_file():
        raise DsforgeError(f"{folder} is not empty and holds no page", "name a new folder")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write all files, those of the listing last: an interrupted export lists what was before."""
    for name in sorted(files, key=lambda name: name == PRECACHE):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(files[name])
        partial.replace(path)


def _files(wanted: tuple[Component, ...], cache: Path, say: Say) -> Iterator[tuple[str, bytes]]:
    """Every file of the site but the list of them."""
    by_name = {each.name: cache / each.file for each in wanted}
    for path in sorted(PAGE.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(PAGE)), path.read_bytes()
    wheels = [(each, by_name[each.name]) for each in wanted if each.registry == "pypi"]
    yield from _python(by_name["pyodide"], [path for _, path in wheels], cache, say)
    with tarfile.open(by_name["chart.js"]) as archive:
        yield "chart.js", _member(archive, CHART)
        licence = _member(archive, "LICENSE.md").decode()
    yield CHOICES, answered('{"do": "choices"}').encode()
    yield FIRST, first_answer()
    texts = {"chart.js": licence} | {each.name: _licence_of(path) for each, path in wheels}
    yield LICENCES, _licences(wanted, texts)


def _python(
    runtime: Path, wheels: list[Path], cache: Path, say: Say
) -> Iterator[tuple[str, bytes]]:
    """The runtime, and the planner with its libraries in two parts."""
    with tarfile.open(runtime) as archive:
        files = {name: _member(archive, name) for name in PYODIDE}
        files[LOCK] = _lock(_member(archive, LOCK))
    made = parts(files, {**dict(_own_files()), **dict(_wheel_files(wheels))}, cache, say)
    for name, content in {**files, STDLIB_ZIP: made.stdlib}.items():
        yield f"pyodide/{name}", content
    yield PLANNER, made.first
    yield LATER, made.later


def first_answer() -> bytes:
    """The job that greets a visitor, and what is shown of its answer."""
    shown = json.loads(answered(json.dumps(FIRST_QUESTION)))["shown"]
    return json.dumps({"job": FIRST_QUESTION["job"], "shown": shown}, ensure_ascii=False).encode()


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """A file of an npm package."""
    stream = archive.extractfile(f"package/{name}")
    if stream is None:
        raise DsforgeError(f"{archive.name!s} has no {name}", "delete it, and it is fetched again")
    return stream.read()


def _lock(text: bytes) -> bytes:
    """The runtime's own list of packages, less all packages: ours come with the planner."""
    lock = json.loads(text)
    return json.dumps({**lock, "packages": {}}).encode()


def _own_files() -> Iterator[tuple[str, bytes]]:
    """The package without the rooms that a browser cannot use, and the templates."""
    for root, below in ((PACKAGE, "dsforge"), (template_root(), "dsforge/templates")):
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            left_out = root == PACKAGE and any(
                name == room or name.startswith(f"{room}/") for room in LEFT_OUT
            )
            left_out = left_out and name not in SHARED  # reports share styles with the page
            if path.is_file() and not left_out and "__pycache__" not in path.parts:
                yield f"{below}/{name}", path.read_bytes()


def _wheel_files(wheels: list[Path]) -> Iterator[tuple[str, bytes]]:
    """The files of wheels that Python imports."""
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                unused = name.startswith(SKIPPED_PACKAGES) or name.endswith(NOT_IN_BROWSER)
                if unused or name.endswith(("/", ".pyi")):
                    continue
                if ".dist-info/" not in name:
                    yield name, archive.read(name)
                elif name.endswith("/METADATA"):
                    yield name, archive.read(name).partition(b"\n\n")[0]  # less the README


def _licence_of(wheel: Path) -> str:
    """The licence texts in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" in n and "LICEN" in n.upper()]
        texts = [archive.read(name).decode() for name in sorted(names) if not name.endswith("/")]
    return "\n".join(texts)


def _licences(wanted: tuple[Component, ...], texts: dict[str, str]) -> bytes:
    """What is shipped, of whom, under which licence."""
    parts = [f"dsforge {__version__}, Apache-2.0"]
    for each in wanted:
        parts.append(f"{each.name} {each.version}, {each.licence}: {each.use}")
        parts += [texts[each.name].strip()] if texts.get(each.name) else []
    return ("\n\n".join(parts) + "\n").encode()


def _precache(files: dict[str, bytes]) -> bytes:
    """All files for the service worker, and a version that changes with any of them."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + hashlib.sha256(files[name]).digest())
    listed = json.dumps(["./", *(name for name in sorted(files) if name not in NOT_SERVED)])
    version = json.dumps(f"{__version__}-{digest.hexdigest()[:16]}")
    return f"self.DSFORGE = {{ version: {version}, files: {listed} }};\n".encode()
