"""The wheel as a stranger gets it: every file is in it, and planning works without torch."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GEN = (
    "gen --model llama-2-7b --nodes 2 --gpus-per-node 8 --gpu a100-80gb --inter-node 100gbe".split()
)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the checkout."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `dsforge` command in an empty environment with the core dependencies only."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=True)
    hashed = ("--require-hashes", "-r", ROOT / "constraints-core.txt")
    run(home / "bin/pip", "install", "--quiet", "--no-deps", *hashed)
    run(home / "bin/pip", "install", "--quiet", "--no-deps", wheel)
    return home / "bin/dsforge"


def test_wheel_holds_every_tracked_file(wheel: Path) -> None:
    """Package and templates of the checkout are in the wheel, and nothing else."""
    tracked = run("git", "ls-files", "dsforge", "templates").split()
    expected = {f"dsforge/{name}" if name.startswith("templates") else name for name in tracked}
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}

    assert packed == expected


def test_planning_works_without_the_training_libraries(clean: Path, tmp_path: Path) -> None:
    """Help, catalog, plan, estimate and gen run where neither torch nor deepspeed exist."""
    run(clean, "--help", cwd=tmp_path)
    run(clean, "catalog", "gpus", cwd=tmp_path)
    run(clean, "plan", *GEN[1:], cwd=tmp_path)
    run(clean, "estimate", *GEN[1:], "--zero-stage", "2", cwd=tmp_path)
    run(clean, *GEN, "--out", "run", cwd=tmp_path)

    assert (tmp_path / "run/deepspeed/ds_config.json").is_file()


def test_train_says_what_to_install(clean: Path, tmp_path: Path) -> None:
    """Without the engine `dsforge train` names the extra instead of failing to import."""
    (tmp_path / "train.yaml").write_text("model: llama-2-7b\n")
    done = subprocess.run(
        [clean, "train", "train.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert ".whl[train]'" in done.stderr  # the very file that was installed
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["--help"], [*GEN, "--out", "run"]], ids=["help", "gen"])
def test_planning_imports_no_heavy_library(command: list[str], tmp_path: Path) -> None:
    """`--help` and `gen` leave torch, deepspeed and transformers alone although they are there."""
    probe = (
        "import sys, dsforge.cli.main as m; sys.argv[1:] = {!r}\n"
        "try: m.main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "print([n for n in ('torch', 'deepspeed', 'transformers') if n in sys.modules])"
    )
    shown = run(sys.executable, "-c", probe.format(command), cwd=tmp_path)

    assert shown.splitlines()[-1] == "[]"
