"""Imports of the package as a graph: no cycle, nothing unused, nothing that only tests import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dsforge.cli.main import COMMANDS, module_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dsforge"


def name_of(path: Path) -> str:
    """The dotted name of a module or package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
# What is started or imported from outside: by python -m, launchers, the table of commands, users.
ENTRIES = {
    *("dsforge", "dsforge.cli.main", "dsforge.notebook", "dsforge.train.attend"),
    "dsforge.ui.ahead",  # run in the runtime of the page
    *(name for name in MODULES if name.endswith("__main__")),
    *(f"dsforge.cli.{module_of(command)}" for command in COMMANDS),
}


def statements(body: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports anywhere in some code, functions included; those for type checkers left out."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse)
        else:
            yield from statements(ast.iter_child_nodes(node))


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of the package that a file imports."""
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in full}
    return frozenset(found & MODULES.keys())


def reached(start: Iterable[str]) -> set[str]:
    """All modules that are imported by some, by theirs, and so on, with their packages."""
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [*imports(MODULES[name]), *[name.rpartition(".")[0]] * ("." in name)]
    return seen


def cycle(graph: dict[str, frozenset[str]]) -> list[str]:
    """Modules that import each other in a ring; none where there is no ring."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    """There is no cycle, not inside a room either, nor through an import in a function."""
    graph = {name: imports(path) - {name} for name, path in MODULES.items()}

    assert cycle(graph) == []


def test_every_module_is_used_by_the_product() -> None:
    """Each module is imported, from an entry or a script of the project on; tests do not count."""
    users = ENTRIES.union(*map(imports, (ROOT / "scripts").glob("*.py")))

    unused = MODULES.keys() - reached(users)

    assert unused == set()


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()}, set()),
        ({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a")}, {"a", "b", "c"}),
        ({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}, {"b", "c"}),
    ],
    ids=["none", "all", "some"],
)
def test_cycles_are_found(graph: dict[str, frozenset[str]], expected: set[str]) -> None:
    """A ring is found wherever it lies."""
    assert set(cycle(graph)) == expected


def test_imports_in_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    """The graph holds what runs."""
    source = tmp_path / "module.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from dsforge import plan\n"
        "def late():\n    from dsforge.errors import DsforgeError\n    import dsforge.units\n"
    )

    assert imports(source) == {"dsforge.errors", "dsforge.units"}
