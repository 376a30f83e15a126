"""Blocks of the README and of docs/: what a page shows, run in a folder of its own and compared.

A `console` block holds commands after `$ ` and what they print. `...` on a line stands for any
lines, one at the end of a line for the rest of it. A comment above a block says more:

    <!-- similar: REASON -->    numbers differ from run to run: only words are compared
    <!-- slow: REASON -->       the same, and it takes minutes: run by `make test-all`
    <!-- write: NAME -->        the block is the content of a file that later commands read
    <!-- file: NAME -->         the block is the content of a file that earlier commands wrote
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<how>\w+)(?:: (?P<what>[^\n]*?))? -->\n)?"
    r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LIMIT_S = 900
REST = "..."


class Block(NamedTuple):
    """One fenced block of a page."""

    kind: str
    how: str  # similar, slow, write, file; empty: compared to the letter
    what: str  # the reason, or the name of the file
    text: str

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Each command and the output below it."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        return [(line, rest.strip("\n")) for line, _, rest in (p.partition("\n") for p in parts)]


class Outcome(NamedTuple):
    """What a command of a page printed."""

    block: Block
    line: str
    expected: str
    printed: str
    code: int

    @property
    def agrees(self) -> bool:
        """Whether it printed what the page shows."""
        mask = digits_masked if self.block.how in ("similar", "slow") else seconds_masked
        return matches(lines(mask(self.expected)), lines(mask(self.printed)))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(found["kind"], found["how"] or "", found["what"] or "", found["text"])


def outcomes(page: Path, folder: Path, *, slow: bool) -> Iterator[Outcome]:
    """What the commands of a page print, one after another in one folder; files are compared."""
    prepare(folder)
    for block in blocks(page):
        if block.how == "write":
            (folder / block.what).write_text(block.text, encoding="utf-8")
        elif block.how == "file":
            text = (folder / block.what).read_text(encoding="utf-8")
            yield Outcome(block, block.what, block.text.strip("\n"), text, 0)
        elif block.kind == "console" and (slow or block.how != "slow"):
            for line, expected in block.shown:
                printed, code = run(line, folder)
                yield Outcome(block, line, expected, printed, code)


def prepare(folder: Path) -> None:
    """What commands find: the folders of a checkout, and `dsforge` on the PATH."""
    for name in ("benchmarks", "examples", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "bin").mkdir()
    forge = folder / "bin/dsforge"
    forge.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dsforge "$@"\n')
    forge.chmod(0o755)


def run(line: str, folder: Path) -> tuple[str, int]:
    """Output and exit code of a command line as a person types it; no setting of ours is seen."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    settings = {"COLUMNS": "100", "TERM": "dumb", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    settings["MASTER_PORT"] = str(free_port())  # another run of this machine may use the usual one
    kept = {key: value for key, value in os.environ.items() if key.startswith("TORCH_EXTENSIONS")}
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**kept, "PATH": path, "PYTHONPATH": str(ROOT), **settings},
    )
    return done.stdout + done.stderr, done.returncode


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])


def lines(text: str) -> list[str]:
    """The lines of a text without blanks at their ends."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def seconds_masked(text: str) -> str:
    """A text without the seconds of a search."""
    return re.sub(r"in [0-9.]+ s$", "in N s", text, flags=re.MULTILINE)


def digits_masked(text: str) -> str:
    """A text without its numbers, and without the width and the units that follow from them."""
    words = re.sub(r"[0-9][0-9.,]*( ?(ms|s|min|h|KiB|MiB|GiB|TiB)\b)?", "N", text)
    return re.sub(r"[ \t]+", " ", words)


def matches(expected: list[str], printed: list[str]) -> bool:
    """Whether lines are those expected, where `...` stands for any."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == REST else _line_pattern(line) for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def _line_pattern(line: str) -> str:
    """The pattern of one line; `...` at its end stands for its rest."""
    if line.endswith(REST):
        return re.escape(line.removesuffix(REST)) + r".*\n"
    return re.escape(line) + r"\n"


def rewritten(page: Path, found: list[Outcome]) -> None:
    """Put what commands print now below them; blocks with `...` or numbers of a run stay."""
    text = page.read_text(encoding="utf-8")
    for each in found:
        if each.block.how == "file":
            text = text.replace(each.block.text, each.printed)
        elif each.block.how == "" and REST not in each.expected.splitlines():
            old = f"$ {each.line}\n" + (f"{each.expected}\n" if each.expected else "")
            new = "".join(f"{line}\n" for line in (f"$ {each.line}", *lines(each.printed)))
            text = text.replace(old, new, 1)
    page.write_text(text, encoding="utf-8")
