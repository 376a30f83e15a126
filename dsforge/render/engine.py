"""The one jinja2 Environment, and where templates are looked for.

A template sees exactly the fields of its context: a missing one is an error (`StrictUndefined`), a
value reaches a shell only through `sh` and JSON only through `json`. jinja2's own `tojson` is not
used because it sorts keys and escapes `<`, `&` and `'`.
"""

from __future__ import annotations

import json
import re
import shlex
import traceback
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from jinja2 import (
    BytecodeCache,
    Environment,
    FileSystemBytecodeCache,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
)

from dsforge.errors import RenderError


class Context(Protocol):
    """What a template sees: the fields of a NamedTuple, which are quicker made than dataclasses."""

    def _asdict(self) -> dict[str, Any]:
        """Values by field name."""
        ...


HINT = "compare your template with the built-in one in templates/, which uses every variable"


WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


def template_root() -> Path:
    """Folder of our templates: the packaged one, else that of the checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


# How our templates are written; those of others are, too.
OPTIONS: dict[str, Any] = {
    "undefined": StrictUndefined,
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "comment_start_string": "{##",  # `{#` is what bash writes for the length of an array
    "comment_end_string": "##}",
    "autoescape": False,  # shell and JSON have no HTML to escape
}


@cache
def template_environment() -> Environment:
    """The Environment of our own templates."""
    made = Environment(  # noqa: S701 (autoescape: see above)
        loader=FileSystemLoader(template_root()), bytecode_cache=compiled_templates(), **OPTIONS
    )
    add_filters(made)
    return made


def add_filters(made: Environment) -> None:
    """Give an Environment the filters through which values reach a shell, JSON, YAML and Python."""
    made.filters["sh"] = shell
    made.filters["json"] = to_json
    made.filters["yaml"] = to_yaml
    made.filters["py"] = repr
    made.filters["word"] = word
    made.filters["line"] = one_line


def check_folder(templates: Path) -> None:
    """Raise RenderError where there is no such folder of templates."""
    if not templates.is_dir():
        raise RenderError(
            f"`--templates` (={templates}) is not a folder",
            "give a folder laid out like templates/, e.g. with deepspeed/zero3.json.j2 in it",
        )


def compiled_templates() -> BytecodeCache | None:
    """Templates compiled by earlier runs: without them compiling takes 0.1 s of a 0.35 s command.

    jinja2 keeps them in a folder of the temporary directory that only this user can write, and
    compares the source of each. Where there can be no such folder, nothing is kept.
    """
    try:
        return FileSystemBytecodeCache()
    except (OSError, RuntimeError):
        return None


def shell(value: object) -> str:
    """A value as one word of a POSIX shell."""
    return shlex.quote(str(value))


def to_json(value: object) -> str:
    """A value as JSON in the order and spelling that it has."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_refused)


def word(value: object) -> str:
    """A name or number that every language takes as it is. Raises RenderError for anything else."""
    text = str(value)
    if not WORD.fullmatch(text):
        raise RenderError(f"{text[:40]!a} is not a name", HINT)
    return text


def one_line(value: object) -> str:
    """A text as one line of a comment."""
    return " ".join(str(value).split())


def to_yaml(value: object) -> str:
    """A value on one line of YAML: as JSON, with a point in every float.

    YAML 1.1, which PyYAML reads, takes `2e-05` for text.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_json(key)}: {to_yaml(value[key])}" for key in value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_yaml, value)) + "]"
    text = to_json(value)
    has_point = not isinstance(value, float) or "." in text
    return text if has_point else text.replace("e", ".0e")


def _refused(value: object) -> NoReturn:
    """An undefined variable says its own name when it is printed; anything else is our mistake."""
    raise TypeError(f"a template prints {value} as JSON")


def render_text(made: Environment, name: str, context: Context) -> str:
    """The text of one template. Raises RenderError with template and line where it is wrong."""
    try:
        return made.get_template(name).render(context._asdict())
    except TemplateError as error:
        where = place_of(error, getattr(error, "name", None) or name)
        raise RenderError(f"template {where}: {error.message}", HINT) from error


def place_of(error: BaseException, name: str) -> str:
    """`deepspeed/zero3.json.j2, line 7`: where in which template, as far as an error tells it.

    A wrong template has a line of its own; else it is the innermost template of the traceback.
    """
    line: int | None = getattr(error, "lineno", None)
    if line is None:
        for frame, number in traceback.walk_tb(error.__traceback__):
            file = Path(frame.f_code.co_filename)
            if file.suffix == ".j2":
                line = number
                name = name if str(file).endswith(f"/{name}") else "/".join(file.parts[-2:])
    return f"{name}, line {line}" if line else name
