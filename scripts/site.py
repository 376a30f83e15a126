"""Build the documentation as a site in build/site, with every link checked.

The pages are read on GitHub, too, and there they link to files beside docs/: README, SECURITY,
results of measurements. So the site is built from a copy that has the folders of the repository,
with README.md as its first page and every file that a page links to.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build/site-source"
PAGES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "schemas/*.md")
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.DOTALL | re.MULTILINE)


def copied() -> None:
    """Fill the source folder anew."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for pattern in PAGES:
        for page in ROOT.glob(pattern):
            _write(page)


def _write(page: Path) -> None:
    """Copy a page and the files that it links to; what is a folder becomes its README."""
    parts = CODE.split(page.read_text(encoding="utf-8"))  # odd ones are code
    text = "".join(
        part if n % 2 else LINK.sub(lambda m: _link(page, m), part) for n, part in enumerate(parts)
    )
    target = SOURCE / ("index.md" if page == ROOT / "README.md" else page.relative_to(ROOT))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _link(page: Path, match: re.Match[str]) -> str:
    """The link as the site has it."""
    target, anchor = match["target"], match["anchor"] or ""
    path = (page.parent / target).resolve()
    if "://" in target or not path.is_relative_to(ROOT):
        return match[0]
    if path == ROOT / "README.md":
        target = target.removesuffix("README.md") + "index.md"
    elif path.is_file() and path.suffix != ".md":
        copy = SOURCE / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return f"]({target}{anchor})"


if __name__ == "__main__":
    copied()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr.partition("Traceback")[0])
    print(f"site: {ROOT / 'build/site/index.html'}")
