"""Questions and answers from the docstrings of Python's own standard library.

Real text that is on every machine, so that the demo needs no download: the question asks what a
public function or class does, the answer is the first paragraph of its docstring. The source files
are parsed, never imported. The same interpreter always gives the same files: order and split
follow a checksum of each name.

    python examples/docstrings.py demo/data        writes train.jsonl and validation.jsonl there

First paragraphs are of much the same length; with `--whole` the answers are whole docstrings.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
SHORTEST, LONGEST = 25, 400  # characters of an answer
HELD_OUT_EVERY = 20


class Pair(NamedTuple):
    """The full name of a function or class, and the first paragraph of its docstring."""

    name: str
    answer: str

    @property
    def question(self) -> str:
        """What a user would ask."""
        return f"What does `{self.name}` do in Python?"

    @property
    def is_held_out(self) -> bool:
        """Whether the pair is kept away from training."""
        return zlib.crc32(self.name.encode()) % HELD_OUT_EVERY == 0

    def line(self) -> str:
        """The pair as one line of chat data."""
        messages = [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": self.answer},
        ]
        return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


def module_files(library: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name and source file of each public module of the standard library."""
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if parts and not SKIPPED & set(parts) and not any(p.startswith("_") for p in parts):
            yield ".".join(parts), path


def definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Full name and docstring of each public function and class below a node."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if child.name.startswith("_"):
            continue
        name = f"{prefix}.{child.name}"
        yield name, ast.get_docstring(child) or ""
        if isinstance(child, ast.ClassDef):
            yield from definitions(child, name)


def pairs(library: Path, *, whole: bool = False) -> list[Pair]:
    """All questions with a usable answer, one per name, in an order without a pattern."""
    found: dict[str, Pair] = {}
    for module, path in module_files(library):
        tree = ast.parse(path.read_bytes(), str(path))
        for name, docstring in definitions(tree, module):
            text = inspect.cleandoc(docstring)
            answer = text if whole else " ".join(text.split("\n\n")[0].split())
            if len(answer) >= SHORTEST and (whole or len(answer) <= LONGEST):
                found.setdefault(name, Pair(name, answer))
    return sorted(found.values(), key=lambda pair: (zlib.crc32(pair.name.encode()), pair.name))


def write(folder: Path, *, whole: bool = False) -> tuple[int, int]:
    """Counts of training and held-out pairs, written to `folder` as JSONL."""
    every = pairs(Path(sysconfig.get_path("stdlib")), whole=whole)
    folder.mkdir(parents=True, exist_ok=True)
    counts = []
    for name, held_out in (("train.jsonl", False), ("validation.jsonl", True)):
        lines = [pair.line() for pair in every if pair.is_held_out is held_out]
        (folder / name).write_text("".join(lines), encoding="utf-8")
        counts.append(len(lines))
    return counts[0], counts[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whole", action="store_true", help="whole docstrings as answers")
    given = parser.parse_args()
    train, validation = write(given.folder, whole=given.whole)
    print(f"{train} pairs for training, {validation} held out, in {given.folder}")
