"""Forms of files: YAML, JSON, TOML, Python, shell and lines of arguments, read within limits."""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

from dsforge.errors import SpecError
from dsforge.importing.python_source import Facts, facts_of
from dsforge.importing.shell.expansion import is_unknown, readable
from dsforge.importing.values import Settings, Unknown, Value, flat
from dsforge.outside import UnreadableError, json_value
from dsforge.reading.refusals import refusal

Form = Literal["yaml", "json", "toml", "python", "shell", "lines"]
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".job", ".pbs", ".sub", ".zsh")
_SUFFIXES: dict[str, Form] = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".py": "python",
}
_JSON_KEY = re.compile(r'"((?:[^"\\\n]|\\.){1,200})"\s*:')
_TOML_LINE = re.compile(r"\s*(?:\[+\s*([\w.\"'-]+)\s*\]+|([\w.\"'-]+)\s*=)")
_COMMENT = re.compile(r'^\s*//.*$|(?<=[,{\[\s])//[^"\n]*$', re.MULTILINE)
_YAML_KEY = re.compile(r"^[A-Za-z_][\w.-]*:(\s|$)", re.MULTILINE)


class Source:
    """One file: its name, text and form, and what it says once somebody asks."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text.lstrip("\ufeff")
        self.form = form_of(name, self.text)

    @property
    def base(self) -> str:
        """The name without its folders."""
        return PurePath(self.name).name

    def place(self, line: int) -> str:
        """A place in it."""
        return f"{self.name}:{line}" if line else self.name

    @cached_property
    def root(self) -> dict[str, Any]:
        """The mapping in a file of data; empty in scripts. Raises SpecError."""
        return self._grown[0]

    @cached_property
    def _grown(self) -> tuple[dict[str, Any], Any]:
        if self.form == "yaml":
            root, place = _yaml(self)
        elif self.form == "json":
            root, place = _json(self)
        elif self.form == "toml":
            root, place = _toml(self)
        else:
            return {}, lambda _loc: self.name
        if not isinstance(root, dict):
            raise refusal("not-a-mapping", self.name, "must contain keys with values")
        return root, place

    def settings(self) -> Settings:
        """The values of a file of data by flat keys, none of them read yet. Raises SpecError."""
        root, place = self._grown
        return Settings({key: _value(value) for key, value in flat(root, place).items()})

    @cached_property
    def facts(self) -> Facts:
        """What a Python source says. Raises SpecError."""
        return facts_of(self.text, self.name)


def form_of(name: str, text: str) -> Form:
    """The form of a file, by its name, else by how it begins."""
    suffix = PurePath(name).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    first = text.lstrip()[:200]
    if suffix in SCRIPTS or first.startswith("#!"):
        begins = first.partition("\n")[0]
        return "python" if begins.startswith("#!") and "python" in begins else "shell"
    if first.startswith("{"):
        return "json"
    if first.startswith("--"):
        return "lines"
    return "yaml" if _YAML_KEY.search(text[:20_000]) else "shell"


def _value(value: Value) -> Value:
    """A value in which `${...}` stands for what another program fills in."""
    if isinstance(value.value, str) and is_unknown(value.value):
        return value._replace(value=Unknown(readable(value.value)))
    if isinstance(value.value, str) and re.search(r"\$\{|^\{\{.*\}\}$", value.value):
        return value._replace(value=Unknown(value.value))
    return value


def _yaml(source: Source) -> tuple[Any, Any]:
    from dsforge.reading.tree import grown  # with yaml, which other forms need not pay

    tree = grown(source.text, source.name, foreign=True)
    return tree.root, lambda loc: tree.places.get(loc, source.name)


def _json(source: Source) -> tuple[Any, Any]:
    """JSON; with comments, which people write, where it is none without."""
    try:
        root = json_value(source.text)
    except UnreadableError as first:
        bare = re.sub(r",(\s*[}\]])", r"\1", _COMMENT.sub("", source.text))
        try:
            root = json_value(bare)
        except UnreadableError:
            place = source.place(first.line)
            raise refusal("json-syntax", place, first.reason) from first
    lines: dict[str, int] = {}
    line, counted = 1, 0
    for match in _JSON_KEY.finditer(source.text):
        line += source.text.count("\n", counted, match.start())
        counted = match.start()
        lines.setdefault(match[1], line)
    return root, lambda loc: source.place(lines.get(str(loc[-1]) if loc else "", 0))


def _toml(source: Source) -> tuple[Any, Any]:
    try:
        root = tomllib.loads(source.text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise refusal("toml-syntax", source.name, f"not TOML: {str(error)[:200]}") from error
    except RecursionError as error:
        raise refusal("toml-depth", source.name, "not TOML: nested too deeply") from error
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(source.text.split("\n"), start=1):
        match = _TOML_LINE.match(line)
        if match and match[1]:
            table = match[1].replace('"', "")
        elif match:
            key = f"{table}.{match[2]}" if table else match[2]
            lines.setdefault(key.replace('"', ""), number)
    return root, lambda loc: source.place(lines.get(".".join(map(str, loc)), 0))


def is_readable(source: Source) -> bool:
    """Whether a file of data can be read."""
    try:
        return bool(source.root) or source.form in ("python", "shell", "lines")
    except SpecError:
        return False
