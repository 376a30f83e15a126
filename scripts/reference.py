"""Write docs/reference/: the command line, YAML files, JSON documents and the Python API.

All of it is read from the code: the help of click's commands, the types that read and write files,
and the docstrings of the names in `dsforge.__all__`. `tests/test_reference.py` compares.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(COLUMNS="100", TERM="dumb", NO_COLOR="1")

import click
from pydantic import BaseModel

import dsforge
from dsforge.api.schemas import DOCUMENTS, FILES
from dsforge.cli.main import COMMANDS, app, command_of

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
WIDTH = 100
MADE = "Made by `python scripts/reference.py`.\n"
FILE_OPTIONS = {
    "cluster": "`--cluster FILE`: the accelerators, nodes and links; `dsforge detect` writes one.",
    "workload": "`--workload FILE`: what is computed, independent of where.",
    "spec": "`--spec FILE`: model, cluster, workload and fixed parts of the strategy in one file.",
    "job": "`train.yaml`: what `dsforge train` does; `dsforge gen` writes it.",
}
CLI_HEAD = """\
Results go to stdout, messages to stderr. Exit codes: 0 done, 1 wrong input or failed run, 2 wrong
command line, 3 findings.
"""
YAML_HEAD = """\
Unknown keys are refused with the nearest known one. `schemas/` has a JSON schema for each file;
with `# yaml-language-server: $schema=schemas/cluster.schema.json` on the first line an editor
completes and checks it.
"""
JSON_HEAD = """\
Sizes are bytes, times seconds, unless the name of a field says otherwise. If nothing fits,
`plan --json` and `gen --json` print the document `misfit` and end with exit code 1.
"""
API_HEAD = """\
Functions print nothing and raise a `DsforgeError` for every mistake in an input. Only `rehearse`
needs torch. [How to use them](../how-to/python.md).
"""
PRINTED_BY = {
    "plan": "dsforge plan --json",
    "estimate": "dsforge estimate --json",
    "inverse": "dsforge estimate --find ... --json",
    "misfit": "dsforge gen --json",  # where nothing fits, as `plan --json`
    "explanation": "dsforge explain --json",
    "gen": "dsforge gen --json",
    "rehearsal": "dsforge rehearse --json",
    "bench": "dsforge bench --json",
    "import": "dsforge import --json",
    "lint": "dsforge lint --format json",
    "diagnosis": "dsforge diagnose --json",
    "validation": "dsforge validate --json",
    "report": "dsforge report --json",
    "calibration": "dsforge calibrate --json",
    "job-started": "dsforge submit --json",
    "job-status": "dsforge status --json",
}


def pages() -> dict[str, str]:
    """The text of each page by its file name."""
    return {"cli.md": cli(), "yaml.md": yaml_files(), "json.md": documents(), "api.md": api()}


def cli() -> str:
    """The help of every command."""
    parts = [
        f"# Command line\n\n{MADE}",
        CLI_HEAD,
        f"```text\n{_help(app, 'dsforge')}\n```\n",
    ]
    for name in COMMANDS:
        command: click.Command = command_of(name)
        parts += _command(command, f"dsforge {name}", 2)
    return "\n".join(parts)


def _command(command: click.Command, words: str, level: int) -> Iterator[str]:
    """A heading with the help, and those of the commands below."""
    yield f"{'#' * level} {words}\n\n```text\n{_help(command, words)}\n```\n"
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _command(below, f"{words} {name}", level + 1)


def _help(command: click.Command, words: str) -> str:
    """What `--help` prints."""
    settings = {**app.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    with click.Context(command, info_name=words, **settings) as context:
        return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def yaml_files() -> str:
    """Every key of the files that people write."""
    parts = [
        f"# YAML files\n\n{MADE}",
        YAML_HEAD,
    ]
    for name, kind in FILES.items():
        schema = kind.model_json_schema(mode="validation")
        parts.append(f"## {name}\n\n{FILE_OPTIONS[name]}\n\n{_tables(schema, required=True)}")
    return "\n".join(parts)


def documents() -> str:
    """Every field of the documents that commands print."""
    parts = [
        f"# JSON documents\n\n{MADE}",
        JSON_HEAD,
        "| Document | Printed by | Schema |\n|---|---|---|",
        *(f"| [{n}](#{n}) | `{PRINTED_BY[n]}` | `schemas/{n}.schema.json` |" for n in DOCUMENTS),
        "",
    ]
    shown: set[str] = set()
    for name, kind in DOCUMENTS.items():
        schema = kind.model_json_schema(mode="serialization")
        about = " ".join((kind.__doc__ or "").split())
        below = {n: v for n, v in schema.get("$defs", {}).items() if n not in shown}
        shown |= below.keys()
        head = f"## {name}\n\n{about}\n\n{_rows(schema)}"
        parts += [head, *(_type(n, v) for n, v in sorted(below.items()) if "properties" in v)]
    return "\n".join(parts)


def _tables(schema: dict[str, Any], *, required: bool) -> str:
    """The table of a schema and of each type in it."""
    types = schema.get("$defs", {})
    below = [_type(n, v, defaults=required) for n, v in sorted(types.items()) if "properties" in v]
    return "\n".join([_rows(schema, defaults=required), *below])


def _type(name: str, schema: dict[str, Any], *, defaults: bool = False) -> str:
    """A heading and the table of one type."""
    about = " ".join(schema.get("description", "").split())
    return f"### {name}\n\n{about}\n\n{_rows(schema, defaults=defaults)}"


def _rows(schema: dict[str, Any], *, defaults: bool = False) -> str:
    """The table of the fields of one type."""
    needed = schema.get("required", ())
    head = "| Key | Type | Default | Meaning |\n|---|---|---|---|"
    lines = [head if defaults else "| Field | Type | Meaning |\n|---|---|---|"]
    for key, value in schema.get("properties", {}).items():
        about = " ".join(value.get("description", "").split()).replace("|", "\\|")
        default = "required" if key in needed else _default(value)
        cells = [f"`{key}`", _kind(value), *([default] if defaults else []), about]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _default(value: dict[str, Any]) -> str:
    """The default of a key; a dash where nothing is assumed."""
    default = value.get("default")
    return "-" if default in (None, [], {}) else f"`{json.dumps(default)}`"


def _kind(value: dict[str, Any]) -> str:
    """The type of a value, in words; `none` is left out, as it is the absence of the key."""
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2]
    for way in ("anyOf", "oneOf"):
        if way in value:
            kinds = [_kind(each) for each in value[way] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in value or "const" in value:
        words = value.get("enum", [value.get("const")])
        return ", ".join(f"`{word}`" for word in words)
    return _plain(value)


def _plain(value: dict[str, Any]) -> str:
    """A type without alternatives."""
    match value.get("type"):
        case "array":
            return f"list of {_kind(value.get('items', {}))}"
        case "object" if isinstance(value.get("additionalProperties"), dict):
            return f"mapping to {_kind(value['additionalProperties'])}"
        case "object":
            return "mapping"
        case kind:
            names = {"integer": "whole number", "string": "text", "boolean": "true or false"}
            return names.get(str(kind), str(kind or "any"))


def api() -> str:
    """Every public name of `import dsforge`."""
    found = {name: getattr(dsforge, name) for name in dsforge.__all__ if name != "__version__"}
    functions = {name: value for name, value in found.items() if inspect.isfunction(value)}
    types = {name: value for name, value in found.items() if inspect.isclass(value)}
    parts = [
        f"# Python API\n\n{MADE}",
        API_HEAD,
        "## Functions\n",
        *(_function(name, value) for name, value in functions.items()),
        "## Types\n",
        *(_class(name, value) for name, value in types.items()),
    ]
    return "\n".join(parts)


def _function(name: str, value: Any) -> str:
    """Signature and docstring of a function."""
    return f"### {name}\n\n```python\n{name}{_signature(value)}\n```\n\n{_docstring(value)}"


def _signature(value: Any) -> str:
    """The parameters of a function, one on each line."""
    signature = inspect.signature(value)
    lines, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        lines.append(str(parameter).replace("'", ""))
    inside = "".join(f"    {line},\n" for line in lines)
    returned = str(signature.return_annotation).replace("'", "")
    return f"(\n{inside}) -> {returned}"


def _docstring(value: Any) -> str:
    """A docstring as Markdown: sections as bold words, entries as lists, examples as code."""
    lines, section = [], ""
    for line in (inspect.getdoc(value) or "").splitlines():
        if match := re.fullmatch(r"(Args|Returns|Raises|Examples):", line):
            lines += ["```"] if section == "Examples" else []
            section = match[1]
            lines += [f"**{section}**", ""] + (["```pycon"] if section == "Examples" else [])
        elif section in ("Args", "Raises") and (entry := re.fullmatch(r"    (\w+): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section in ("Args", "Raises") and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line.removeprefix("    ") if section else line)
    text = "\n".join(lines).rstrip()
    return text + ("\n```\n" if section == "Examples" else "\n")


def _class(name: str, value: type) -> str:
    """Docstring and public attributes of a class."""
    about = _docstring(value)
    if issubclass(value, BaseModel):
        return f"### {name}\n\n{about}\n{_rows(value.model_json_schema(mode='serialization'))}"
    hints = [f"- `{n}`" for n in getattr(value, "_fields", ())]
    own = vars(value).items()
    hints += [
        f"- `{n}`: {' '.join((inspect.getdoc(p) or '').split())}"
        for n, p in own
        if isinstance(p, property) and not n.startswith("_")
    ]
    return "\n".join([f"### {name}\n\n{about}", *hints, ""])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
