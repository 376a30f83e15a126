"""Templates that somebody else wrote: no code runs, nothing is endless, every refusal is a line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import plans
import pytest

from dsforge.errors import RenderError
from dsforge.render import render
from dsforge.render.engine import template_root

NAME = "env/hostfile.j2"
SECONDS = 20  # six, on a machine that does other things, too
DEEP = 20_000

# What would reach Python, the machine, or a file.
CODE = {
    "globals of a class": "{{ cycler.__init__.__globals__.os.system('touch owned') }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "map by attribute": "{{ [''] | map(attribute='__class__') | first }}",
    "format of an attribute": "{{ '{0.__class__}'.format('') }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "self": "{{ self.__init__.__globals__ }}",
    "method of a context": "{{ hosts[0].model_copy() }}",
    "parser of a context": "{{ hosts[0].parse_file('/etc/passwd') }}",
    "constructor": "{{ hosts[0].model_construct }}{{ hosts[0].model_construct() }}",
    "frame of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "frame of a loop": "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "environment": "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "undefined": "{{ nothing.__class__ }}",
    "import": "{% import 'os' as os %}",
    "path": "{% include '../../../../etc/passwd' %}",
    "absolute path": "{% include '/etc/passwd' %}",
    "change of the context": "{{ {}.update({'a': 1}) }}{{ [].append(1) }}",
}
# What would never end, or take all memory.
ENDLESS = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested ranges": "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}",
    "product of a text": "{{ 'a' * 10**10 }}",
    "product of a list": "{{ [0] * 10**10 }}",
    "power": "{{ (10 ** (10 ** 8))|string|length }}",
    "centre": "{{ 'a'|center(10**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "format filter": "{{ '%9999999999d'|format(1) }}",
    "indent": "{{ 'a\nb'|indent(10**10) }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "replace": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set n.x = n.x|replace('a', 'aa' ~ n.x) %}{% endfor %}",
    "lipsum": "{{ lipsum(n=10**7) }}",
    "batch": "{{ [1]|batch(10**10, 0)|list }}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive include": "{% include 'env/hostfile.j2' %}",
    "recursive extends": "{% extends 'env/hostfile.j2' %}",
    "deep brackets": "{{ " + "(" * DEEP + "1" + ")" * DEEP + " }}",
    "deep lists": "{{ " + "[" * DEEP + "]" * DEEP + " }}",
    "deep minus": "{{ " + "-" * DEEP + "1 }}",
    "deep ifs": "{% if 1 %}" * DEEP + "{% endif %}" * DEEP,
    "much text": "{% for i in range(9**5) %}" + "x" * 2000 + "{% endfor %}",
    "regular expression": "{{ ('<' * 9**7)|striptags }}{{ ('a ' * 9**7)|wordwrap(1)|urlize }}",
}
# What goes wrong in the middle.
WRONG = {
    "attribute": "x\n{{ hosts.nothing.more }}",
    "method that is none": "x\n{{ 'a'.nothing() }}",
    "call of a number": "x\n{{ 1() }}",
    "division": "x\n{{ 1 // 0 }}",
    "index": "x\n{{ [][1] }}",
    "an unpaired surrogate": "x\n{{ '\\ud800' }}",
    "syntax": "x\n{% for %}",
}
ALL = {**CODE, **ENDLESS, **WRONG}
QUICK = ("globals of a class", "parser of a context", "nested ranges", "doubling", "deep lists")


def refusal(folder: Path) -> RenderError:
    """How a folder of templates is refused, within seconds."""
    begin = time.monotonic()
    with pytest.raises(RenderError) as caught:
        render(plans.plan(), folder)
    assert time.monotonic() - begin < SECONDS
    return caught.value


def planted(folder: Path, text: str) -> Path:
    """A folder of templates with one in it."""
    (folder / "env").mkdir()
    (folder / NAME).write_text(text)
    return folder


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ALL]
)
def test_a_hostile_template_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing of it runs, and the message names the template, or what it ran into."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "templates").mkdir()

    error = refusal(planted(tmp_path / "templates", ALL[name]))

    assert "\n" not in error.message
    assert len(error.message) < 600
    assert error.hint
    assert not (tmp_path / "owned").exists()
    if name in WRONG:
        assert NAME in error.message or "hostfile" in error.message
    if name in WRONG and name != "an unpaired surrogate":
        assert "line 2" in error.message


def pipe(path: Path) -> None:
    """A pipe that nobody fills."""
    os.mkfifo(path)


def way_out(path: Path) -> None:
    """A link out of the folder."""
    path.symlink_to("/etc/hostname")


def device(path: Path) -> None:
    """A link to a device without end."""
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    """A folder where a template should be."""
    path.mkdir()


def huge(path: Path) -> None:
    """A template of a gigabyte, most of it a hole."""
    with path.open("wb") as stream:
        stream.truncate(1 << 30)


def latin(path: Path) -> None:
    """Text in another encoding."""
    path.write_bytes("Grüße".encode("latin-1"))


@pytest.mark.parametrize("make", [pipe, way_out, device, folder, huge, latin])
def test_what_is_no_template_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Only regular files that are really in the folder are read."""
    (tmp_path / "env").mkdir()
    make(tmp_path / NAME)

    assert NAME in refusal(tmp_path).message


def test_our_own_templates_render_alike_in_the_sandbox(tmp_path: Path) -> None:
    """A copy of our folder makes the same files, byte for byte."""
    for path in template_root().rglob("*.j2"):
        target = tmp_path / path.relative_to(template_root())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    plan = plans.plan()

    assert render(plan, tmp_path) == render(plan)


def test_a_link_inside_of_the_folder_is_followed(tmp_path: Path) -> None:
    """Sharing one text between two names is nobody's harm."""
    planted(tmp_path, "")
    (tmp_path / "shared").write_text("localhost slots=1\n")
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("../shared")

    made = {a.path: a.text for a in render(plans.plan(), tmp_path)}

    assert made["hostfile"] == "localhost slots=1\n"


def test_no_process_stays_behind(tmp_path: Path) -> None:
    """A template that exceeded its time limit is ended, not left."""
    before = own_children()
    refusal(planted(tmp_path, ENDLESS["nested ranges"]))

    assert own_children() <= before


def own_children() -> set[str]:
    """Processes that this one has started, those of other tests among them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for path in lists for pid in path.read_text().split()}
