"""The pages of docs/reference/ and the pictures of docs/images/ show what the code does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dsforge
from dsforge.api.schemas import DOCUMENTS, FILES
from dsforge.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/reference"
COMPARE = """
import sys
sys.path.insert(0, "scripts")
from reference import FOLDER, pages
for name, text in pages().items():
    if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != text:
        print(name)
"""


def test_the_reference_is_current() -> None:
    """In a process of its own, as the script sets the width of help before it imports click."""
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == [], "run: python scripts/reference.py"


def test_the_reference_is_complete() -> None:
    """Every command, every file and document, every public name has its place."""
    pages = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.md")}

    assert [name for name in COMMANDS if f"\n## dsforge {name}\n" not in pages["cli"]] == []
    assert [name for name in FILES if f"\n## {name}\n" not in pages["yaml"]] == []
    assert [name for name in DOCUMENTS if f"\n## {name}\n" not in pages["json"]] == []
    names = [name for name in dsforge.__all__ if name != "__version__"]
    assert [name for name in names if f"\n### {name}\n" not in pages["api"]] == []


def test_the_pictures_are_current(tmp_path: Path) -> None:
    """The plots are those that the command draws now; `python scripts/pictures.py` writes them."""
    draw = 'import sys; from pathlib import Path; sys.path.insert(0, "scripts"); import pictures; '
    subprocess.run(
        [sys.executable, "-c", f"{draw} pictures.draw(Path(sys.argv[1]))", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    shown = {path.name: path.read_text("utf-8") for path in (ROOT / "docs/images").glob("*.svg")}

    assert shown
    for name, text in shown.items():
        assert (tmp_path / name).read_text("utf-8") == text, name
