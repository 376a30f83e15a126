"""The Containerfile, as far as it can be judged unbuilt: pinned, minimal, sound shell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Containerfile").read_text("utf-8")
INSTRUCTIONS = [
    (words.partition(" ")[0], " ".join(words.partition(" ")[2].split()))
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if (words := line.strip())
]


def of(kind: str) -> list[str]:
    """The arguments of each instruction of a kind."""
    return [words for name, words in INSTRUCTIONS if name == kind]


def test_the_base_has_a_registry_a_version_and_a_compiler() -> None:
    """No `latest`; ops of DeepSpeed need nvcc, which only `devel` images have."""
    (base,) = of("FROM")

    assert re.fullmatch(r"docker\.io/nvidia/cuda:\d+\.\d+\.\d+-devel-ubuntu\d\d\.04", base)


def test_torch_is_that_of_the_makefile() -> None:
    """One version for tests and image; its CUDA is that of the base (13.0, read off its wheel)."""
    (wanted,) = re.findall(r"^TORCH\s*:= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert re.findall(r"torch==(\S+)", TEXT) == [wanted]
    assert (wanted, of("FROM")[0].split(":")[1][:4]) == ("2.13.0", "13.0")


def test_packages_are_few_and_have_check_sums() -> None:
    """Lists of apt are removed, pip takes files by checksum, nothing of a stranger's name."""
    runs = " && ".join(of("RUN"))
    installs = re.findall(r"pip install ([^&]*)", runs)

    assert runs.count("apt-get install") == runs.count("--no-install-recommends") == 1
    assert "rm -rf /var/lib/apt/lists/*" in runs
    assert [line.split() for line in installs] == [
        ["--no-deps", "--require-hashes", "-r", "/tmp/constraints.txt"],
        ["torch==2.13.0"],
        ["--no-deps", "--no-build-isolation", "/opt/source"],
    ]
    assert not re.search(r"curl|wget|\|\s*(ba)?sh|sudo", runs)
    assert not of("ADD")


def test_what_is_copied_is_there_and_enough_to_build(tmp_path: Path) -> None:
    """A wheel is built from the copied files alone."""
    for words in of("COPY"):
        *sources, target = words.split()
        folder = tmp_path / target.strip("/")
        for source in sources:
            assert (ROOT / source).exists(), source
            into = folder / source if target.endswith("/") else folder
            into.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, into)
    source = tmp_path / "opt/source"
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--outdir",
            tmp_path / "out",
            source,
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert built.returncode == 0, built.stderr
    assert list((tmp_path / "out").glob("dsforge_planner-*.whl"))


def test_shell_code_is_sound() -> None:
    """There is nothing that shellcheck would say, under the shell that SHELL names."""
    shell = json.loads(of("SHELL")[0])
    for run in of("RUN"):
        done = subprocess.run(
            [str(Path(sys.executable).with_name("shellcheck")), "--shell=bash", "-"],
            input=f"{run}\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    assert shell == ["/bin/bash", "-o", "pipefail", "-c"]


def test_ignored_folders_are_the_same_for_both_programs() -> None:
    """One name is podman's, the other docker's."""
    texts = {(ROOT / name).read_text() for name in (".containerignore", ".dockerignore")}

    assert len(texts) == 1
    assert ".venv\n" in texts.pop()
