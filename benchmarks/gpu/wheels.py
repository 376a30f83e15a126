"""Packages for a machine that cannot download any: packed into a folder here, used from it there.

There they go into a temporary environment on top of the machine's own packages: only what is
missing or too old is installed, and the machine is left as it was. torch and transformers are never
packed; they belong to the machine. Nothing of dsforge is imported here, as it may lack packages.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
UNUSED = {"click", "rich"}  # dsforge's command line
ENGINE = {"torch", "deepspeed", "transformers", "peft", "accelerate", "ninja", "nvidia-ml-py"}
# What a machine with torch and transformers has, in versions that fit each other.
OF_THE_MACHINE = {"torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy"}
PURE = {"deepspeed"}  # published as source only; without its C++ ops it is pure Python


class WheelError(Exception):
    """Packing or installing failed; the message is for the user."""


def requirements() -> list[str]:
    """What the benchmark needs, with the lower bounds of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [r for r in project["dependencies"] if _name(r) not in UNUSED]
    engine = [r for r in project["optional-dependencies"]["train"] if _name(r) in ENGINE]
    return own + engine


def missing() -> list[str]:
    """Requirements that are not installed here, by name."""
    modules = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
    names = [_name(requirement) for requirement in requirements()]
    return [n for n in names if importlib.util.find_spec(modules.get(n, n)) is None]


def pack(folder: Path, python: str) -> list[str]:
    """Download what a machine with torch and transformers may lack; the wheels, by name.

    `python` is the version of that machine, such as 3.12; its kind (x86-64 or Arm) is this one's.
    Raises WheelError where pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted, done = {_name(r): r for r in requirements()}, set(OF_THE_MACHINE)
    while fresh := sorted(name for name in wanted if name not in done):
        done |= set(fresh)
        _fetch([wanted[name] for name in fresh], folder, python)
        packed = {_name(path.name.split("-")[0]): path for path in folder.glob("*.whl")}
        for name in fresh:
            for needed in _needs(packed[name], python):
                wanted.setdefault(_name(needed), needed)
    return sorted(path.name for path in folder.glob("*.whl"))


def run_with(folder: Path, target: Path, arguments: list[str]) -> int:
    """The exit code of this program, run again with packages from a folder where they are missing.

    They are installed into `target`. Raises WheelError where pip cannot find what it needs.
    """
    if not list(folder.glob("*.whl")):
        raise WheelError(f"{folder} holds no wheels; make it with --pack where there is internet")
    venv.create(target, with_pip=False, symlinks=True)
    python = target / "bin" / "python"
    inside = next((target / "lib").glob("python*")) / "site-packages"
    own = site.getsitepackages()
    own += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    lines = [f"import site; site.addsitedir({path!r})\n" for path in own]  # their .pth files too
    (inside / "machine.pth").write_text("".join(lines), encoding="utf-8")
    options = ("--no-index", "--find-links", str(folder.resolve()), "--quiet")
    _pip("--python", str(python), "install", *options, *requirements())
    environment = {**os.environ, "PYTHONNOUSERSITE": "1"}
    process = subprocess.Popen([python, *arguments], env=environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other one, who still reports
    return process.wait()


def _fetch(names: list[str], folder: Path, python: str) -> None:
    """Wheels of requirements in the versions of constraints.txt, without what they need."""
    names = [_pinned(name) for name in names]
    built = [name for name in names if _name(name) in PURE]
    ready = [name for name in names if _name(name) not in PURE]
    common = ("--no-deps", "--quiet")
    if built:
        _pip("wheel", *common, "--wheel-dir", str(folder), *built, DS_BUILD_OPS="0")
    if ready:
        kind = ("--only-binary=:all:", "--python-version", python)
        _pip("download", *common, *kind, "--dest", str(folder), *ready)


def _pinned(requirement: str) -> str:
    """A requirement in the version that constraints.txt names; as it is where it names none."""
    name = _name(requirement)
    text = CONSTRAINTS.read_text(encoding="utf-8")
    versions = {_name(n): v for n, v in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}
    return f"{name}=={versions[name]}" if name in versions else requirement


def _needs(wheel: Path, python: str) -> list[str]:
    """The requirements of a wheel on that Python, extras left out."""
    from pip._vendor.packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        head = HeaderParser().parsestr(archive.read(name).decode())
    place: dict[str, Any] = {
        "extra": "",
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    found = [Requirement(line) for line in head.get_all("Requires-Dist", [])]
    return [str(r).split(";")[0] for r in found if r.marker is None or r.marker.evaluate(place)]


def _pip(*arguments: str, **variables: str) -> None:
    """Run this interpreter's pip. Raises WheelError with its last lines."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])
        raise WheelError(f"pip {arguments[0]} failed:\n{tail}")


def _name(requirement: str) -> str:
    """The normalised name that a requirement begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0] if found else "").lower()
