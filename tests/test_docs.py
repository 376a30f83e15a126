"""The README under test: its commands run and print what it shows, and no command is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(
    r'app\.command\("([a-z]+)"',
    "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "dsforge/cli").glob("*.py"))
    ),
)


@dataclass(frozen=True)
class Shown:
    """One command of the README and the output below it."""

    command: tuple[str, ...]
    output: str


def shown(text: str) -> list[Shown]:
    """Every `$ command` of the console blocks, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.replace("\\\n", " ").partition("\n")
            found.append(Shown(tuple(shlex.split(line)), output.strip()))
    return found


def test_every_command_stands_in_the_readme() -> None:
    """The table of commands names each one."""
    assert COMMANDS
    assert [name for name in COMMANDS if f"`dsforge {name}" not in README] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """`--help` of a command explains it and each of its options."""
    done = subprocess.run(
        [sys.executable, "-m", "dsforge", name, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb"},
    )
    options = re.findall(r"^[│| ]+(?:\*\s+)?(--[a-z-]+.*)$", done.stdout, re.MULTILINE)

    assert done.returncode == 0
    assert options
    assert [line for line in options if not re.search(r"[a-z]{3,} +\S+ ", line)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands: a later one may use what an earlier one wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("example", shown(README), ids=lambda e: " ".join(e.command)[:60])
def test_readme_shows_real_output(example: Shown, folder: Path) -> None:
    """Each command of a console block prints exactly what stands below it."""
    assert example.command[0] == "dsforge"

    done = subprocess.run(
        [sys.executable, "-m", *example.command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "100", "TERM": "dumb", "HOME": str(folder)},
    )

    assert [line.rstrip() for line in (done.stdout + done.stderr).strip().splitlines()] == [
        line.rstrip() for line in example.output.splitlines()
    ]
