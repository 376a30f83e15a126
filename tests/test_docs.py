"""The README under test: its commands run and print what it shows, and no command is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsforge.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Shown:
    """One command of the README and the output below it."""

    line: str
    output: str

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command line."""
        return tuple(shlex.split(self.line))


def shown(text: str) -> list[Shown]:
    """Every `$ command` of the console blocks, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            found.append(Shown(line, output.strip()))
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
    unwrapped = re.sub(r"\n {10,}", "  ", done.stdout)
    options = re.findall(r"^  (?:-[a-z], )?(--[a-z].*)$", unwrapped, re.MULTILINE)

    assert done.returncode == 0
    assert options
    assert [line for line in options if not re.search(r"\S {2,}\S", line)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, so that a later one finds what an earlier one wrote."""
    made = tmp_path_factory.mktemp("readme")
    for name in ("benchmarks", "examples", "tests"):
        (made / name).symlink_to(ROOT / name)
    return made


def same(text: str) -> list[str]:
    """Lines of an output without what may differ from run to run: the seconds of a search."""
    return [re.sub(r"in [0-9.]+ s$", "in N s", line.rstrip()) for line in text.strip().splitlines()]


@pytest.mark.parametrize("example", shown(README), ids=lambda e: " ".join(e.command)[:60])
def test_readme_shows_real_output(example: Shown, folder: Path, update_golden: bool) -> None:
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
    output = done.stdout + done.stderr
    if update_golden:
        rewrite(example, output)

    assert update_golden or same(output) == same(example.output)


def test_readme_shows_the_config_that_gen_writes(tmp_path: Path, update_golden: bool) -> None:
    """The JSON block is `deepspeed/ds_config.json` of the example, figures included."""
    (gen,) = (e for e in shown(README) if e.command[-2:] == ("--out", "run"))
    subprocess.run([sys.executable, "-m", *gen.command], cwd=tmp_path, check=True, timeout=60)
    written = (tmp_path / "run/deepspeed/ds_config.json").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```json\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    if update_golden:
        path = ROOT / "README.md"
        path.write_text(path.read_text(encoding="utf-8").replace(block, written), encoding="utf-8")

    assert update_golden or block == written


def rewrite(example: Shown, output: str) -> None:
    """Put a command's present output below it in the README."""
    path = ROOT / "README.md"
    old = f"$ {example.line}\n{example.output}".rstrip() + "\n```"
    lines = "\n".join(line.rstrip() for line in output.strip().splitlines())
    new = f"$ {example.line}\n{lines}\n```"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new), encoding="utf-8")
