"""The core installation: planning, linting and diagnosis without numpy and torch."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dsforge.errors import EXIT_FINDINGS
from dsforge.units import TFLOP

ROOT = Path(__file__).resolve().parents[1]
CORE_BYTES = 43e6
INSTALLED_BYTES = 47e6  # with the byte code of all packages, too
HELP_S = 0.12
# Packages of the extras, all of which are installed where the tests run, are hidden.
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(%r))
from dsforge.cli.main import main
main(sys.argv[1:])
"""
EXTRAS = ("numpy", "torch", "deepspeed", "transformers", "peft", "safetensors", "pyarrow", "gguf")


def core_packages() -> set[str]:
    """What `pip install .` installs beside dsforge: the closure of the core's requirements."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted, found = [Requirement(line) for line in own], set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and name not in found:
            found.add(name)
            wanted += map(Requirement, importlib.metadata.requires(name) or ())
    return found


def core(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A command line in a Python in which no package of an extra can be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS % (EXTRAS,), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_numpy_and_torch_are_no_part_of_the_core() -> None:
    """Nothing that the core needs asks for them."""
    packages = core_packages()

    assert {"pydantic", "click", "jinja2", "pyyaml"} <= packages
    assert not packages & {"numpy", "torch", "scipy", "pandas"}


def test_the_core_is_small() -> None:
    """All files that pip installs; byte code is counted as large as its source."""
    files = [
        Path(str(file.locate()))
        for name in core_packages()
        for file in importlib.metadata.files(name) or ()
    ]
    own = [path for path in (ROOT / "dsforge").rglob("*") if "__pycache__" not in path.parts]
    own += (ROOT / "templates").rglob("*")
    sizes = {path: path.stat().st_size for path in files + own if path.is_file()}
    compiled = sum(size for path, size in sizes.items() if path.suffix == ".py" and path in own)

    assert 20e6 < sum(sizes.values()) + compiled < CORE_BYTES


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--model", "7b", "--gpu", "h100", "--gpus-per-node", "8"),
        ("estimate", "--model", "7b", "--gpu", "h100", "--exact", "--zero-stage", "3"),
        ("catalog", "gpus"),
        ("detect",),
        ("diagnose", "tests/diagnose/logs/exit-9.log"),
        ("lint", "examples/broken_ds_config.json"),
        ("preflight", "--rules"),
        ("validate", "--help"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_of_the_core_run_without_the_extras(arguments: tuple[str, ...]) -> None:
    """They answer, whatever the answer is."""
    done = core(*arguments)

    assert done.returncode in (0, EXIT_FINDINGS), done.stderr
    assert done.stdout


def test_a_run_folder_is_written_without_the_extras(tmp_path: Path) -> None:
    """`gen` with a model from the catalog writes all its files."""
    done = core(*"gen --model 7b --gpu h100 --gpus-per-node 8 --out run".split(), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/deepspeed/ds_config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("generate", "x", "--prompt", "hi"), "torch", "train"),
        (("train", "train.yaml"), "numpy", "train"),
        (("ckpt", "verify", "x"), "numpy", "ckpt"),
        (("ckpt", "inspect", "x"), "numpy", "ckpt"),
        (("ckpt", "export", "x", "y"), "numpy", "ckpt"),
        (("ckpt", "convert", "x", "y"), "numpy", "ckpt"),
        (
            ("rehearse", "--model", "smollm2-135m", "--world-size", "2", "--gpu", "h100"),
            "torch",
            "train",
        ),
        (("probe",), "torch", "train"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else str(value),
)
def test_a_command_of_an_extra_says_what_to_install(
    arguments: tuple[str, ...], module: str, extra: str
) -> None:
    """One message with the command to run, no traceback."""
    done = core(*arguments)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert module in done.stderr
    assert re.search(rf"pip install .*\[{extra}\]", done.stderr)


def test_the_cpu_is_rated_as_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numpy the matrix products of this CPU are estimated, within a factor of four."""
    from dsforge.probe.cpu_speed import cpu_speed

    measured = cpu_speed(1)
    monkeypatch.setitem(sys.modules, "numpy", None)
    rated = cpu_speed(1)

    assert (measured.note, bool(rated.note)) == ("", True)
    assert measured.flops / 4 < rated.flops < measured.flops * 4
    assert 0.004 * TFLOP < rated.flops < 0.4 * TFLOP


@pytest.mark.slow
def test_a_fresh_environment_holds_the_core_alone(tmp_path: Path) -> None:
    """`pip install .` in a new virtual environment: size, packages, time of `--help`."""
    venv.create(tmp_path / "venv", with_pip=True)
    folder = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    before = installed_bytes(folder)
    subprocess.run([tmp_path / "venv/bin/pip", "install", "--quiet", str(ROOT)], check=True)
    program = tmp_path / "venv/bin/dsforge"

    assert installed_bytes(folder) - before < INSTALLED_BYTES
    assert not (folder / "numpy").exists()
    assert min(seconds_of(program, "--help") for _ in range(5)) < HELP_S


def installed_bytes(folder: Path) -> int:
    """Bytes of all files of an environment."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def seconds_of(*command: str | Path) -> float:
    """How long a command takes."""
    import time

    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start
