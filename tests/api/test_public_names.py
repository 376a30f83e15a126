"""Each public name, by enumeration: documented, typed, imported lazily, with a running example."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dsforge
from dsforge import errors
from dsforge.errors import DsforgeError

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = [name for name in dsforge.__all__ if not name.startswith("__")]
FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(getattr(dsforge, name))]
RESULTS = [name for name in PUBLIC if name.endswith("Result")]
ERRORS = [name for name in PUBLIC if name.endswith("Error")]
VERBS = "calibrate diagnose estimate explain find gen lint plan rehearse validate"
NEED_TORCH = {"rehearse"}


def in_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_public_names() -> None:
    """Names are sorted, each once, and those that the documentation promises are there."""
    assert dsforge.__all__ == sorted(set(dsforge.__all__))
    assert set(VERBS.split()) | {"load_model", "load_cluster", "load_workload"} <= set(FUNCTIONS)
    assert set(dir(dsforge)) == set(dsforge.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    """A sentence says what it is; that of a type alias or an enumeration would say less."""
    text = inspect.getdoc(getattr(dsforge, name)) or ""

    assert text.split("\n")[0].endswith(".")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_names_each_argument_and_error(name: str) -> None:
    """The docstring has a line for each parameter, what is returned, and what is raised."""
    function = getattr(dsforge, name)
    text = inspect.getdoc(function) or ""

    missing = [each for each in inspect.signature(function).parameters if f"  {each}: " not in text]
    assert missing == []
    assert [
        head for head in ("Args:", "Returns:", "Raises:", "Examples:") if head not in text
    ] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_typed(name: str) -> None:
    """Each parameter and the result has a type; no more than four come by position."""
    signature = inspect.signature(getattr(dsforge, name))
    parameters = list(signature.parameters.values())

    assert signature.return_annotation is not inspect.Signature.empty
    assert [p.name for p in parameters if p.annotation is inspect.Parameter.empty] == []
    assert sum(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in parameters) <= 4
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.engine) if name in NEED_TORCH else name
        for name in (*FUNCTIONS, *RESULTS)
    ],
)
def test_every_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a function or a result shows what it really answers."""
    monkeypatch.chdir(ROOT)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(dsforge, name), name, globs={})

    assert example.examples
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_the_example_of_the_package_runs() -> None:
    """The first lines that a newcomer reads."""
    (example,) = doctest.DocTestFinder(recurse=False).find(dsforge, "dsforge", globs={})

    assert len(example.examples) > 2
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_the_examples_of_the_page_run() -> None:
    """Python in docs/how-to/python.md answers what it shows."""
    text = (ROOT / "docs/how-to/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    examples = [doctest.DocTestParser().get_doctest(b, {}, "python.md", None, 0) for b in blocks]

    assert sum(len(example.examples) for example in examples) > 4
    assert [doctest.DocTestRunner(verbose=False).run(e).failed for e in examples] == [0] * len(
        blocks
    )


def test_the_page_names_every_function() -> None:
    """The table of functions is whole."""
    text = (ROOT / "docs/how-to/python.md").read_text(encoding="utf-8")

    assert [name for name in FUNCTIONS if f"`{name}" not in text] == []


def test_every_error_is_a_dsforge_error() -> None:
    """One `except` takes all of them, and each that a function may raise is public."""
    known = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}

    assert known == set(ERRORS)
    assert [name for name in ERRORS if not issubclass(getattr(dsforge, name), DsforgeError)] == []


def test_importing_imports_nothing_else() -> None:
    """Neither pydantic nor any module of dsforge is loaded before a name is used."""
    code = (
        "import sys, dsforge; print(*(m for m in sys.modules if m.startswith(('dsforge.', 'pyd'))))"
    )

    assert in_python(code) == ""


def test_unknown_names_are_refused() -> None:
    """A misspelt name is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match="plann"):
        _ = dsforge.plann  # type: ignore[attr-defined]


ROOMS = [name for name in FUNCTIONS if (ROOT / "dsforge" / name).exists()]
ROOMS += [name for name in FUNCTIONS if (ROOT / "dsforge" / f"{name}.py").exists()]


@pytest.mark.parametrize("name", ROOMS)
@pytest.mark.parametrize("first", [True, False], ids=["name-first", "module-first"])
def test_a_function_keeps_its_name_beside_a_module(name: str, *, first: bool) -> None:
    """`dsforge.plan` is the function even where the module `dsforge.plan` is imported, too."""
    use, load = f"a = dsforge.{name}", f"import_module('dsforge.{name}')"
    steps = (use, load) if first else (load, use)
    code = f"import dsforge; from importlib import import_module; {'; '.join(steps)}; "
    code += f"from dsforge import {name} as b; print(callable(dsforge.{name}), b is a)"

    assert in_python(code) == "True True"


def test_planning_imports_no_heavy_library() -> None:
    """What needs no torch imports none, nor anything of the command line."""
    heavy = "torch transformers deepspeed click rich matplotlib"
    code = (
        "import sys, dsforge; dsforge.plan('gpt2', 'v100-32gb').document; "
        f"print(*(set(sys.modules) & set('{heavy}'.split())))"
    )

    assert in_python(code) == ""
