"""Every exception of ours is in the tree that `errors.py` draws; one function shows them all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import dsforge.errors
from dsforge.error_report import COLOURED, MAX_PROBLEMS, error_report
from dsforge.errors import DsforgeError, LayoutError, Problem, RunError, SpecError

PACKAGE = Path(dsforge.errors.__file__).parent
DRAWN = re.compile(r"^ {4}((?:[│ ] {2})*)(?:[├└]─ )?(\w+) {2,}(.+)$", re.MULTILINE)
NUMBER = re.compile(r"exit code (\d)")


def exceptions() -> Iterator[type[Exception]]:
    """All exception classes that the package defines, private ones too."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        if any(name.endswith(("Error", "Stopped", "Exception")) for name in names):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            found = (getattr(import_module(module), name, None) for name in names)
            yield from (c for c in found if isinstance(c, type) and issubclass(c, Exception))


def drawn() -> dict[str, tuple[str, int | None]]:
    """Parent and exit code of each class in the docstring; both empty for internal ones."""
    ancestors: list[tuple[str, int]] = []
    found: dict[str, tuple[str, int | None]] = {}
    text = str(dsforge.errors.__doc__)
    tree, internal = text.split("These are caught")
    for match in DRAWN.finditer(tree):
        depth = 0 if match[2] == "DsforgeError" else len(match[1]) // 3 + 1
        parent, code = ancestors[depth - 1] if depth else ("Exception", 0)
        own = NUMBER.search(match[3])
        code = int(own[1]) if own else code
        ancestors[depth:] = [(match[2], code)]
        found[match[2]] = parent, code
    return found | {match[2]: ("", None) for match in DRAWN.finditer(internal)}


def test_the_tree_is_complete() -> None:
    """Each class stands in the docstring below its parent, with its exit code, and no other."""
    known = {}
    for each in exceptions():
        ours = issubclass(each, DsforgeError)
        known[each.__name__] = (each.__base__.__name__, each.exit_code) if ours else ("", None)

    assert drawn() == known


PROBLEMS = (Problem("tokens", "`tokens` must be a number", "write 300b", "job.yaml"),)
PROBLEM_LINE = "  - job.yaml: `tokens` must be a number (write 300b) [tokens]\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DsforgeError("no file"), "error: no file\n"),
        (DsforgeError("no file", "name one"), "error: no file\n  name one\n"),
        (
            SpecError(PROBLEMS),
            f"error: 1 problem in the input\n{PROBLEM_LINE}",
        ),
        (
            LayoutError(PROBLEMS * 2),
            f"error: 2 problems with this combination\n{2 * PROBLEM_LINE}",
        ),
        (
            RunError("it ended", "look", command=("ssh",), code=1, tail="one\ntwo"),
            "error: it ended\n  last lines:\n  | one\n  | two\n  look\n",
        ),
    ],
    ids=["message", "hint", "problems", "layout", "process"],
)
def test_a_report_has_message_problems_and_way_out(error: DsforgeError, expected: str) -> None:
    """The parts of a report, each on lines of its own."""
    assert error_report(error) == expected


def test_a_report_is_bounded_and_harmless() -> None:
    """A file that is wrong in every row does not flood the terminal, nor drive it."""
    many = tuple(Problem("row", f"row {n} \x1b[2J is wrong") for n in range(5 * MAX_PROBLEMS))

    found = error_report(SpecError(many), where=" on rank 3, host")

    assert found.startswith("error on rank 3, host: 1000 problems")
    assert "\x1b" not in found
    assert found.count("\n") == MAX_PROBLEMS + 2
    assert found.endswith("  and 800 more\n")


def test_a_terminal_gets_colours() -> None:
    """The message and the ids of rules have a style of their own."""
    found = error_report(SpecError(PROBLEMS), style=COLOURED)

    assert found.startswith("\x1b[31merror: 1 problem in the input\x1b[0m\n")
    assert "\x1b[2m[tokens]\x1b[0m" in found


def called_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The functions that are called by their plain names."""
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return {called.id for called in calls if isinstance(called, ast.Name)}


def test_every_entry_shows_errors_by_the_one_report() -> None:
    """Who turns an error into an exit code shows it by `error_report`, itself or by the command."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler) or "DsforgeError" not in ast.unparse(node):
                continue
            if "exit_code" in ast.unparse(node):
                shown = called_names(ast.walk(node)) & {"error_report", "show_error"}
                found.append((path.relative_to(PACKAGE).as_posix(), *shown))

    assert found == [
        ("cli/main.py", "show_error"),
        ("probe/rank/__main__.py", "error_report"),
        ("train/__main__.py", "error_report"),
    ]
