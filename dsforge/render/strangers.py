"""Strangers: templates that somebody else wrote, rendered without trusting them.

`--templates DIR` may be anybody's. jinja2's sandbox keeps a template from the inside of Python,
here narrowed to the calls that a text needs; `confine` bounds its time, memory and output, and a
template is read from the folder itself, never through a link out of it. What a template *says* is
another matter: it writes the scripts that a person will start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import BuiltinMethodType
from typing import Any

from jinja2 import Environment, FunctionLoader
from jinja2.loaders import split_template_path
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from dsforge.artifacts import Artifact
from dsforge.confine import EndedError, Limits, confined
from dsforge.errors import DsforgeError, RenderError
from dsforge.outside import UnreadableError, read_text
from dsforge.render.engine import HINT, OPTIONS, add_filters, place_of, template_root

MOST_BYTES = 1 << 20  # of one template; ours have at most 10 KB
LIMITS = Limits(seconds=6.0, memory_bytes=384 << 20, answer_bytes=16 << 20)
SIMPLER = "simplify the template"
_GLOBALS = ("range", "dict", "cycler", "joiner", "namespace")
_PLAIN = (str, int, float, bool, dict, list, tuple)
_OF_JINJA = (Macro, LoopContext, BlockReference, Cycler, Joiner)


def rendered_apart(
    templates: Path, work: Callable[[Environment], tuple[Artifact, ...]]
) -> tuple[Artifact, ...]:
    """What `work` makes with a folder of templates before our own. Raises RenderError."""
    try:
        answer = confined(lambda: _answer(templates, work), LIMITS)
    except EndedError as error:
        raise RenderError(f"a template of {templates} {error}", SIMPLER) from error
    document = json.loads(answer)
    if "message" in document:
        raise RenderError(document["message"], document["hint"])
    return tuple(Artifact(**artifact) for artifact in document["artifacts"])


def _answer(templates: Path, work: Callable[[Environment], tuple[Artifact, ...]]) -> bytes:
    """The artifacts, or the one error, as JSON."""
    try:
        made = work(stranger_environment(templates))
        rows = [
            {"path": a.path, "text": a.text, "executable": a.executable, "private": a.private}
            for a in made
        ]
        return json.dumps({"artifacts": rows}).encode()
    except DsforgeError as error:
        document = {"message": error.message, "hint": error.hint}
    except MemoryError as error:
        message = f"template {place_of(error, 'of the folder')}: needs more memory than it may have"
        document = {"message": message, "hint": SIMPLER}
    except Exception as error:  # a template can raise anything
        document = {
            "message": f"template {place_of(error, 'of the folder')}: {_words(error)}",
            "hint": HINT,
        }
    return json.dumps(document).encode()


def _words(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, RecursionError):
        return "has endless recursion"
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Strict(ImmutableSandboxedEnvironment):
    """A sandbox in which a template calls what makes text, and nothing else."""

    def is_safe_callable(self, obj: Any) -> bool:
        """Whether it is a macro or loop, a method of a plain value, or one of our globals."""
        if isinstance(obj, BuiltinMethodType):
            return isinstance(obj.__self__, _PLAIN)
        if isinstance(obj, _OF_JINJA) or isinstance(getattr(obj, "__self__", None), _OF_JINJA):
            return True
        return any(obj is known for known in self.globals.values())


def _loader(*folders: Path) -> FunctionLoader:
    """Templates of the first folder that has the name, each a regular file really in there."""
    roots = [Path(os.path.realpath(folder)) for folder in folders]

    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        parts = split_template_path(name)
        for root in roots:
            path = root.joinpath(*parts)
            if os.path.lexists(path):
                return _text(path, root, name), str(path), lambda: True
        return None

    return FunctionLoader(load)


def _text(path: Path, root: Path, name: str) -> str:
    """The text of one template. Raises RenderError."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        hint = "replace it with the file itself"
        raise RenderError(f"template {name} is a link out of {root}", hint)
    try:
        return read_text(real, MOST_BYTES, pipes=False)
    except UnreadableError as error:
        raise RenderError(f"template {name} {error.reason}", HINT) from error


def stranger_environment(templates: Path) -> Environment:
    """The Environment in which a folder of templates is searched before our own.

    Nothing that it compiles is kept: our own templates must not meet code of another sandbox.
    """
    made = _Strict(loader=_loader(templates, template_root()), **OPTIONS)
    known = {"namespace": Namespace, **made.globals}
    made.globals = {name: known[name] for name in _GLOBALS}
    add_filters(made)
    return made
