"""The rules of the house, read from the source: import order, sizes, who may touch the world."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dsforge"
SOURCES = sorted(PACKAGE.rglob("*.py"))

Rule = Callable[[Path], Iterable[str]]

# A room imports only what stands before it.
ORDER = [
    *(
        "errors",
        "findings",
        "masking",
        "error_report",
        "units",
        "slurm",
        "rope",
        "zero_stages",
        "specs",
        "layout",
        "strategy",
        "ds_config",
        "job",
        "constraints",
        "estimate",
        "plan",
    ),
    "planner",
    "explain",
    *(
        "document",
        "outside",
        "walk",
        "checkpoints",
        "hostfile",
        "huggingface",
        "catalog",
        "reading",
        "artifacts",
    ),
    "origin",
    *(
        "process",
        "confine",
        "render",
        "validate",
        "diagnose",
        "train",
        "rehearse",
        "bench",
        "lint",
    ),
    *("preflight", "probe", "cli"),
]
CORE = set(ORDER[: ORDER.index("document") + 1])
HEAVY = {"torch", "deepspeed", "transformers", "datasets", "peft", "safetensors", "gguf"}
HEAVY_HOMES = (PACKAGE / "train", PACKAGE / "rehearse", PACKAGE / "probe/rank")
PRINTING = {"cli"}
ENTRIES = {"__main__.py", "attend.py"}  # that launchers and scripts start
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


class Found(NamedTuple):
    """What the rules ask for, collected in one pass over a file."""

    imports: list[ast.Import | ast.ImportFrom]
    called: list[ast.expr]
    functions: list[ast.FunctionDef]
    classes: list[ast.ClassDef]
    inner: list[ast.AST]  # functions and classes inside functions


@cache
def found(path: Path) -> Found:
    """Imports, calls, functions and classes of a file."""
    kept = Found([], [], [], [], [])
    waiting: list[tuple[ast.AST, bool]] = [(tree(path), False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            (kept.functions if isinstance(node, ast.FunctionDef) else kept.classes).append(node)
            if inside:
                kept.inner.append(node)
            inside = inside or isinstance(node, ast.FunctionDef)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            kept.imports.append(node)
        elif isinstance(node, ast.Call):
            kept.called.append(node.func)
        for field in node._fields:
            value = getattr(node, field)
            if isinstance(value, list):
                waiting += [(one, inside) for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.Name | ast.Constant):
                waiting.append((value, inside))
    return kept


@cache
def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports anywhere, functions included."""
    names: set[str] = set()
    for node in found(path).imports:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.AST) -> str:
    """A name with its attributes: `os.path.join`; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


@cache
def calls(path: Path) -> frozenset[str]:
    """Everything that a file calls, as it is written: `open`, `os.system`, `sys.exit`."""
    return frozenset(filter(None, map(dotted, found(path).called)))


def offences(rule: Rule, paths: list[Path] = SOURCES) -> dict[str, list[str]]:
    """What breaks a rule, by file; empty where all files keep it."""
    broken = {str(path.relative_to(ROOT)): sorted(rule(path)) for path in paths}
    return {name: what for name, what in broken.items() if what}


def later_rooms(path: Path) -> Iterable[str]:
    """Rooms that a module imports although they come after its own."""
    if room(path) in {"__init__", "__main__"}:
        return set()
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith("dsforge.")}
    return rooms & set(ORDER[ORDER.index(room(path)) + 1 :])


def top_level(path: Path) -> set[str]:
    """Packages that a module imports."""
    return {name.split(".")[0] for name in imported(path)}


def world_in_the_core(path: Path) -> Iterable[str]:
    """Modules and calls of the pure rooms that reach outside."""
    if room(path) not in PURE:
        return set()
    banned = {"os", "subprocess", "jinja2", "socket", "pathlib", "urllib", "yaml", "shutil"}
    return (top_level(path) & banned) | ({"open"} & calls(path))


def talk(path: Path) -> Iterable[str]:
    """Printing and leaving outside the command line; an entry for launchers may leave."""
    if room(path) in PRINTING or path.name in ENTRIES:
        return set()
    return calls(path) & {"print", "input", "exit", "quit", "sys.exit"}


def starters(path: Path) -> Iterable[str]:
    """Ways to start a process outside process.py, and what runs where there is no process.py."""
    if room(path) == "process" or path.parent == PACKAGE / "preflight/remote":
        return set()
    ways = ("os.system", "os.popen", "os.exec", "os.spawn", "os.posix_spawn", "pty.")
    return {call for call in calls(path) if call.startswith(ways)} | (
        top_level(path) & {"subprocess"}
    )


def executed(path: Path) -> Iterable[str]:
    """Ways to run data: eval, pickle, unsafe YAML, a shell."""
    text = path.read_text(encoding="utf-8")
    unsafe = {word for word in ("shell=True", "yaml.unsafe_load", "yaml.Loader") if word in text}
    return (calls(path) & {"eval", "exec"}) | (imported(path) & {"pickle"}) | unsafe


def too_long(path: Path) -> Iterable[str]:
    """The file, and its functions, beyond their limits, with their lines."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    sizes = {f.name: f.end_lineno - f.lineno + 1 for f in found(path).functions}
    long = {f"{name} ({n})" for name, n in sizes.items() if n > LINES_PER_FUNCTION}
    return long | ({f"the file ({lines})"} if lines > LINES_PER_FILE else set())


def crowded(path: Path) -> Iterable[str]:
    """Functions with too many positional parameters."""
    counts = {
        f.name: len({a.arg for a in f.args.args} - {"self", "cls"}) for f in found(path).functions
    }
    return {name for name, count in counts.items() if count > POSITIONAL}


def misnamed(path: Path) -> Iterable[str]:
    """Drawers of leftovers, empty verbs, Managers and Factories."""
    classes = {each.name for each in found(path).classes}
    return (
        ({path.name} & FORBIDDEN_FILES)
        | {f.name for f in found(path).functions if f.name.startswith(FORBIDDEN_PREFIXES)}
        | {name for name in classes if name.endswith(("Manager", "Factory", "Handler"))}
    )


def undocumented(path: Path) -> Iterable[str]:
    """The module, its public classes and functions without a docstring."""
    named = [*found(path).functions, *found(path).classes]
    inner = set(map(id, found(path).inner))
    public = [n for n in named if not n.name.startswith("_") and id(n) not in inner]
    bare = {n.name for n in public if not ast.get_docstring(n)}
    return bare if ast.get_docstring(tree(path)) else bare | {"the module"}


def test_rooms_import_only_what_stands_above_them() -> None:
    """A module imports its own room and rooms that come earlier in the order."""
    assert offences(later_rooms) == {}


def test_heavy_libraries_stay_in_their_homes() -> None:
    """Torch and its relatives are imported by train, rehearse and the ranks of probe only."""
    elsewhere = [p for p in SOURCES if not any(p.is_relative_to(home) for home in HEAVY_HOMES)]

    assert offences(lambda path: top_level(path) & HEAVY, elsewhere) == {}


def test_the_core_touches_nothing_outside() -> None:
    """The core opens no file, reads no environment, starts nothing, renders nothing."""
    assert offences(world_in_the_core) == {}


def test_only_the_command_line_prints_and_exits() -> None:
    """Nothing but cli prints, asks or leaves."""
    assert offences(talk) == {}


def test_only_process_starts_subprocesses() -> None:
    """Neither subprocess nor os.system and its kind occur outside process.py."""
    assert offences(starters) == {}


def test_no_outside_data_is_executed() -> None:
    """No pickle, no eval, no unsafe YAML, no shell."""
    assert offences(executed) == {}


def test_sizes_of_files_and_functions() -> None:
    """Files and functions stay under their hard limits."""
    assert offences(too_long) == {}


def test_sizes_of_test_files() -> None:
    """Test files stay under their hard limit."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    long = [p.name for p in tests if len(p.read_text("utf-8").splitlines()) > LINES_PER_TEST_FILE]

    assert long == []


def test_functions_take_few_positional_parameters() -> None:
    """More than four parameters are keyword-only."""
    assert offences(crowded) == {}


def test_names_follow_the_house() -> None:
    """Names say what a thing is."""
    assert offences(misnamed) == {}


def test_public_things_have_docstrings() -> None:
    """Modules, public classes and public functions say what they are."""
    assert offences(undocumented) == {}


def test_every_room_has_its_place_in_the_order() -> None:
    """No room is outside the import order."""
    assert {room(p) for p in SOURCES} - {"__init__", "__main__", "py"} <= set(ORDER)


def test_types_are_checked_everywhere() -> None:
    """No module of the package is left out of mypy's strict mode, and no error is waved through."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    ours = [each for each in settings["overrides"] if "dsforge" in str(each["module"])]
    allowed = {"module", "disallow_subclassing_any"}

    assert settings["strict"]
    assert settings["packages"] == ["dsforge"]
    assert not settings.keys() & {"exclude", "ignore_errors", "disable_error_code"}
    assert [each for each in ours if each.keys() - allowed] == []
