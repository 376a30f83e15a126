"""The rules of the house, read from the source: import order, sizes, who may touch the world."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dsforge"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A room imports only what stands before it.
ORDER = [
    *("errors", "units", "specs", "layout", "strategy", "job", "rules", "estimate", "plan"),
    *("planner", "document", "hostfile", "huggingface", "catalog", "reading", "artifacts"),
    *("process", "render", "rehearse", "train", "bench", "lint", "doctor", "cli"),
]
CORE = set(ORDER[: ORDER.index("document") + 1])
HEAVY = {"torch", "deepspeed", "transformers", "datasets", "peft", "safetensors", "gguf"}
HEAVY_HOMES = {"train", "rehearse"}
PRINTING = {"cli"}
PURE = CORE | {"hostfile", "huggingface"}

LINES_PER_FILE, LINES_PER_TEST_FILE, LINES_PER_FUNCTION = 400, 500, 40
POSITIONAL = 4
FORBIDDEN_FILES = {"utils.py", "common.py", "misc.py", "helpers.py"}
FORBIDDEN_PREFIXES = ("get_", "handle_", "process_", "do_")


def room(path: Path) -> str:
    """The room that a file of the package belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports anywhere, functions included."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def calls(path: Path) -> frozenset[str]:
    """Everything that a file calls, as it is written: `open`, `os.system`, `sys.exit`."""
    nodes = (n for n in ast.walk(tree(path)) if isinstance(n, ast.Call))
    return frozenset(ast.unparse(n.func) for n in nodes if len(ast.dump(n.func)) < 400)


@cache
def functions(path: Path) -> list[ast.FunctionDef]:
    """Every function and method of a file."""
    return [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef)]


def by_name(path: Path) -> str:
    """A short test id."""
    return str(path.relative_to(ROOT))


every_source = pytest.mark.parametrize("path", SOURCES, ids=by_name)


@every_source
def test_rooms_import_only_what_stands_above_them(path: Path) -> None:
    """A module imports its own room and rooms that come earlier in the order."""
    if room(path) in {"__init__", "__main__"}:
        return
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith("dsforge.")}
    allowed = set(ORDER[: ORDER.index(room(path)) + 1])

    assert rooms & set(ORDER) <= allowed


@every_source
def test_heavy_libraries_stay_in_their_homes(path: Path) -> None:
    """Torch and its relatives are imported by train and rehearse only."""
    if room(path) in HEAVY_HOMES:
        return

    assert not {name.split(".")[0] for name in imported(path)} & HEAVY


@pytest.mark.parametrize("path", [p for p in SOURCES if room(p) in PURE], ids=by_name)
def test_the_core_touches_nothing_outside(path: Path) -> None:
    """The core opens no file, reads no environment, starts nothing, renders nothing."""
    banned = {"os", "subprocess", "jinja2", "socket", "pathlib", "urllib", "yaml", "shutil"}

    assert not {name.split(".")[0] for name in imported(path)} & banned
    assert "open" not in calls(path)


@every_source
def test_only_the_command_line_prints_and_exits(path: Path) -> None:
    """print, sys.exit and input occur in cli only; the launcher's entry may exit."""
    if room(path) in PRINTING or path.name == "__main__.py":
        return

    assert not calls(path) & {"print", "input", "exit", "quit", "sys.exit"}


@every_source
def test_only_process_starts_subprocesses(path: Path) -> None:
    """Neither subprocess nor os.system and its kind occur outside process.py."""
    if room(path) == "process":
        return

    assert "subprocess" not in {name.split(".")[0] for name in imported(path)}
    assert not {
        c for c in calls(path) if c.startswith(("os.system", "os.popen", "os.exec", "os.spawn"))
    }


@every_source
def test_no_outside_data_is_executed(path: Path) -> None:
    """No pickle, no eval, no unsafe YAML, no shell."""
    text = path.read_text(encoding="utf-8")

    assert not calls(path) & {"eval", "exec"}
    assert "pickle" not in imported(path)
    assert "shell=True" not in text
    assert "yaml.load(" not in text or "SafeLoader" in text


@every_source
def test_sizes_of_files_and_functions(path: Path) -> None:
    """Files and functions stay under their hard limits."""
    long = [
        f"{f.name} ({f.end_lineno - f.lineno + 1})"
        for f in functions(path)
        if f.end_lineno - f.lineno + 1 > LINES_PER_FUNCTION
    ]

    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_PER_FILE
    assert not long


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=by_name)
def test_sizes_of_test_files(path: Path) -> None:
    """Test files stay under their hard limit."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_PER_TEST_FILE


@every_source
def test_functions_take_few_positional_parameters(path: Path) -> None:
    """More than four parameters are keyword-only."""
    many = [
        f.name
        for f in functions(path)
        if len([a for a in f.args.args if a.arg not in {"self", "cls"}]) > POSITIONAL
    ]

    assert not many


@every_source
def test_names_follow_the_house(path: Path) -> None:
    """No drawer of leftovers, no empty verbs, no Manager or Factory."""
    classes = [n.name for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef)]

    assert path.name not in FORBIDDEN_FILES
    assert not [f.name for f in functions(path) if f.name.startswith(FORBIDDEN_PREFIXES)]
    assert not [c for c in classes if c.endswith(("Manager", "Factory", "Handler"))]


@every_source
def test_public_things_have_docstrings(path: Path) -> None:
    """Modules, public classes and public functions say what they are."""
    nodes = [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    nested = {id(inner) for f in functions(path) for inner in ast.walk(f) if inner is not f}
    bare = [
        n.name
        for n in nodes
        if not n.name.startswith("_") and id(n) not in nested and not ast.get_docstring(n)
    ]

    assert ast.get_docstring(tree(path))
    assert not bare


def test_every_room_has_its_place_in_the_order() -> None:
    """No room is outside the import order."""
    assert {room(p) for p in SOURCES} - {"__init__", "__main__", "py"} <= set(ORDER)
