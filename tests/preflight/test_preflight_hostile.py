"""Hosts that lie, shout, hang or attack: refused in bounded time, and nothing of it is run."""

from __future__ import annotations

import ast
import json
import sys
import time
from pathlib import Path
from typing import Any

import preflight_case as make
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dsforge.errors import SpecError
from dsforge.findings.writers import as_lines
from dsforge.hostfile import Entry
from dsforge.preflight import collect as visiting
from dsforge.preflight import remote
from dsforge.preflight.case import Case, Job
from dsforge.preflight.host_facts import HostFacts
from dsforge.preflight.job_files import nodes, read_job, scheduled
from dsforge.preflight.registry import findings
from dsforge.preflight.report import document, table

LONGEST_S = 10.0
PROGRAMS = sorted(Path(remote.__file__).parent.glob("*.py"))
MARK = visiting.MARK
# What a host says instead of answers, as a shell script.
LIARS = {
    "junk": "head -c 2000000 /dev/urandom",
    "endless": "yes greeting",
    "one-long-line": f"printf '{MARK}'; head -c 100000000 /dev/zero | tr '\\0' x",
    "no-json": f"echo '{MARK}{{'",
    "not-a-reply": f"echo '{MARK}[]'",
    "wrong-type": f"""echo '{MARK}{{"reply": "soon"}}'""",
    "not-a-number": f"""echo '{MARK}{{"reply": NaN}}'""",
    "deep": f"""printf '{MARK}'; head -c 200000 /dev/zero | tr '\\0' '['; echo""",
    "loud-stderr": "yes complaint >&2 & sleep 0.5; kill $!; exit 255",
    "silent": "sleep 30",
}


def job_of(*addresses: str) -> Job:
    """The healthy job on other hosts."""
    return make.JOB._replace(entries=tuple(Entry(a, 8, "hostfile") for a in addresses))


def behind(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program called `ssh` first on PATH that does what the script says."""
    ssh = folder / "ssh"
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("liar", LIARS)
def test_a_host_that_does_not_answer_as_asked_is_lost(
    liar: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says, it is named with a reason, in bounded time."""
    behind(LIARS[liar], tmp_path, monkeypatch)
    monkeypatch.setattr(visiting, "LOGIN_S", 1.5)
    begin = time.monotonic()

    case = visiting.visit(job_of("10.9.9.1", "10.9.9.2"))

    assert set(case.lost) == {"10.9.9.1", "10.9.9.2"}
    assert all(0 < len(said) < 1000 for said in case.lost.values())
    assert time.monotonic() - begin < LONGEST_S
    assert {f.rule for f in findings(case)} <= {"bad-answer", "host-down", "loud-login"}


@pytest.mark.parametrize(
    ("script", "rule", "words"),
    [
        ("yes 'Welcome to the cluster' | head -c 10000000; cat", "loud-login", "Welcome to the"),
        ("head -c 10000000 /dev/zero | tr '\\0' x; cat", "loud-login", "prints too much"),
        (
            "echo 'This account is currently not available.'; exit 1",
            "bad-answer",
            "exit code 1: This account is currently not available.",
        ),
    ],
)
def test_a_shell_that_does_not_let_us_in_is_quoted(
    script: str, rule: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a login says instead of an answer is the reason, on whichever stream."""
    behind(script, tmp_path, monkeypatch)
    case = visiting.visit(job_of("10.9.9.1", "10.9.9.2"))

    assert {finding.rule for finding in findings(case)} == {rule}
    assert words in case.lost["10.9.9.1"]


def test_a_greeting_of_some_lines_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that greets and then answers is heard."""
    program = f"exec {sys.executable} -I -S -c \"$(printf '%s' '{visiting.BOOT}')\""
    behind(f"yes hello | head -n 500; {program}", tmp_path, monkeypatch)
    case = visiting.visit(job_of("10.9.9.1", "10.9.9.2"), measure=False)

    assert "loud-login" not in {finding.rule for finding in findings(case)}
    assert not case.lost


def test_nothing_of_the_job_reaches_the_remote_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remote command is a constant; metacharacters of paths and ports travel as data."""
    behind('printf "%s\\n" "$@" >>"$0.words"; exit 255', tmp_path, monkeypatch)
    job = job_of("10.9.9.1", "10.9.9.2")._replace(
        folder=Path("/data/$(touch owned)"), interpreter="/opt/`touch owned`/python"
    )

    visiting.visit(job)

    words = (tmp_path / "ssh.words").read_text()
    assert "owned" not in words
    assert "BatchMode=yes" in words
    assert words.count("--\n10.9.9.") == 2


@pytest.mark.parametrize(
    "address", ["-oProxyCommand=touch owned", "$(touch owned)", "a;touch owned", "a b", "a\nb"]
)
def test_a_host_name_that_is_no_name_is_never_called(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from a hostfile nor from a scheduler does such a name come as far as ssh."""
    (tmp_path / "hostfile").write_text(f"{address} slots=8\n10.0.0.2 slots=8\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", address)

    assert read_job(tmp_path).entries == ()
    try:
        names = [entry.address for entry in scheduled({"SLURM_JOB_NODELIST": address})]
    except SpecError:
        names = []
    assert all("owned" not in name and not name.startswith("-") for name in names)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_for_hosts_need_nothing_there(path: Path) -> None:
    """What is sent to a host is Python 3.9 and imports the standard library and each other."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    foreign = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}

    assert foreign <= {f"dsforge.preflight.remote.{name}" for name in visiting.MODULES}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[01-03,07],gpu5", ["n01", "n02", "n03", "n07", "gpu5"]),
        ("a-b[9-11]", ["a-b9", "a-b10", "a-b11"]),
        ("", []),
    ],
    ids=["one", "ranges", "dashes", "nothing"],
)
def test_node_list_of_slurm(text: str, names: list[str]) -> None:
    """Names as `scontrol show hostnames` would print them."""
    assert nodes(text) == names


@pytest.mark.parametrize("text", ["n[1-99999999999999999999]", "n[1", "a b", "-n", "n,,m", "n]"])
def test_node_list_that_is_none_is_refused(text: str) -> None:
    """No part of a list is taken where the rest makes no sense."""
    with pytest.raises(SpecError):
        nodes(text)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=40),
    st.sampled_from(["²", "$(touch owned)", "-o", "\x1b[2J", "::1", "127.0.1.1", "=", "^"]),
    st.lists(st.text(max_size=5), max_size=3),
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, inner in items:
        is_outer = isinstance(inner, dict | list)
        found += leaves(inner, (*path, key)) if is_outer else [(*path, key)]
    return found


PATHS = leaves(make.FACTS)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), SCALARS), min_size=1, max_size=4))
def test_whatever_passes_as_facts_is_judged(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Facts of any content are refused, or every check and every shape of output takes them."""
    document_of_host = json.loads(json.dumps(make.FACTS))
    for path, value in changes:
        inner = document_of_host
        for key in path[:-1]:
            inner = inner[key] if isinstance(inner, dict | list) and _has(inner, key) else {}
        if isinstance(inner, dict | list) and _has(inner, path[-1]):
            inner[path[-1]] = value
    try:
        facts = HostFacts.model_validate(document_of_host)
    except ValidationError:
        return
    case = make.healthy()._replace(hosts={make.FIRST: make.host(), make.SECOND: facts})

    found = findings(case)

    assert table(case, found)
    assert all("\n" not in f.fix and "touch owned" not in f.fix for f in found)
    assert json.dumps(document(case, found, 1.0))
    assert len(as_lines(found)) == 2 * len(found)


def _has(value: Any, key: Any) -> bool:
    """Whether a mapping or list has something there."""
    return key in value if isinstance(value, dict) else isinstance(key, int) and key < len(value)


def test_hosts_that_are_lost_stand_in_the_table() -> None:
    """A host without facts has a dash where nothing is known."""
    case = Case(make.JOB, {}, {make.FIRST: "No route to host", make.SECOND: "timed out"})

    lines = table(case, findings(case))

    assert lines[1].split()[:4] == [make.FIRST, "FAIL", "-", "-"]
