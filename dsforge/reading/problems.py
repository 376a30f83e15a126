"""Problems: pydantic's findings in our words, and the collector that shows them all at once.

Each becomes `place: thing (=value) + rule (way out)`: the file and line or the flag, the dotted
path, the value, the rule it breaks, and the nearest legal key or value.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dsforge.errors import Problem, SpecError
from dsforge.reading.refusals import MAX_PROBLEMS, Loc
from dsforge.reading.source import Source, read_source

REQUIRED = "Field required"  # what pydantic says of a key that has no default
TAGS = ("<text>", "<mapping>")
LONGEST_SHOWN = 60  # characters of a value in a message

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

_LIMITS = {
    "greater_than": "must be greater than {gt:,.12g}",
    "greater_than_equal": "must be at least {ge:,.12g}",
    "less_than": "must be less than {lt:,.12g}",
    "less_than_equal": "must be at most {le:,.12g}",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match `{pattern}`",
    "string_too_short": "must have at least {min_length} character",
}
_TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; put it in quotes if it is",
    "bool_type": "must be true or false",
    "model_type": "must contain `key: value` lines",
    "model_attributes_type": "must contain `key: value` lines",
    "dict_type": "must contain `key: value` lines",
    "tuple_type": "must be a list",
    "finite_number": "must be a finite number",
}


class Attempt(Generic[Value]):
    """What came of reading one part: its value, or the SpecError that kept it from having one."""

    def __init__(self, read: Callable[[], Value]) -> None:
        self._value: tuple[Value, ...] = ()
        self.error: SpecError | None = None
        try:
            self._value = (read(),)
        except SpecError as error:
            self.error = error

    @property
    def value(self) -> Value:
        """The value. Raises the SpecError where there is none, so that dependents fail alike."""
        if self.error is not None:
            raise self.error
        return self._value[0]


class Collector:
    """Problems of several parts of the input, raised together."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def attempt(self, read: Callable[[], Value]) -> Attempt[Value]:
        """What came of `read`; its problems are kept."""
        attempt = Attempt(read)
        if attempt.error is not None:
            self.problems += attempt.error.problems
        return attempt

    def check(self) -> None:
        """Raise SpecError with everything that was kept, each problem once, if anything was."""
        if self.problems:
            raise SpecError(tuple(dict.fromkeys(self.problems)))


def read_file(kind: type[Model], path: Path) -> Model:
    """The value in a YAML file. Raises SpecError with all problems of the file."""
    return validated(kind, read_source(path))


def validated(kind: type[Model], source: Source) -> Model:
    """The value of that type in a source. Raises SpecError with all problems at once."""
    try:
        return kind.model_validate(_tuples(source.values), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
    found = [_problem(kind, source, detail) for detail in details[:MAX_PROBLEMS]]
    raise SpecError(tuple(dict.fromkeys(found)))


def nearest(word: str, choices: list[str]) -> str:
    """A hint with the legal word closest to a wrong one, or with all of them."""
    match = get_close_matches(word, choices, n=1, cutoff=0.6)
    if match:
        return f"did you mean `{match[0]}`?"
    return "use " + ", ".join(f"`{choice}`" for choice in choices) if choices else ""


def shown(value: Any) -> str:
    """A value as messages show it: short and without control characters."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def _tuples(value: Any) -> Any:
    """The value with tuples for lists, which strict validation asks for."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tuples(inner) for inner in value)
    return value


def _problem(kind: type[BaseModel], source: Source, detail: ErrorDetails) -> Problem:
    """One finding of pydantic in our words."""
    # Tags of unions choose a branch and are no key; YAML's `<<` begins like them and is one.
    loc: Loc = tuple(part for part in detail["loc"] if part not in TAGS)
    place, thing = source.place(loc), f"`{dotted((*source.prefix, *loc))}`" if loc else "the file"
    code, value = detail["type"], detail.get("input")
    if code == "extra_forbidden":
        keys = list(_fields(kind, loc[:-1]))
        return Problem("key-unknown", f"{thing} is not a key", nearest(str(loc[-1]), keys), place)
    if code == "missing":
        hint = "" if detail["msg"] == REQUIRED else detail["msg"]
        return Problem("key-missing", f"{thing} is missing", hint, place)
    subject = f"{thing} (={shown(value)})"
    if code == "literal_error":
        choices = [str(choice) for choice in _choices(kind, loc)]
        legal = _either(choices) or str(detail["ctx"]["expected"])
        hint = nearest(str(value), choices) if len(choices) > 1 else ""
        hint = hint if hint.startswith("did") else ""
        return Problem("value-choice", f"{subject} must be {legal}", hint, place)
    if code in _LIMITS:
        return Problem("value-range", f"{subject} {_limit(detail)}", "", place)
    if code in _TYPES:
        listed = code == "string_type" and isinstance(value, tuple)
        wrong = "must be one text, not a list" if listed else _TYPES[code]
        return Problem("value-type", f"{subject} {wrong}", "", place)
    text = detail["msg"].removeprefix("Value error, ")
    return Problem("value-wrong", f"{subject} {text}", "", place)


def _either(choices: list[str]) -> str:
    """Legal values as a person lists them: "`a`, `b` or `c`"."""
    quoted = [f"`{choice}`" for choice in choices]
    return ", ".join(quoted[:-1]) + " or " + quoted[-1] if len(quoted) > 1 else "".join(quoted)


def _limit(detail: ErrorDetails) -> str:
    """The broken limit in words."""
    return _LIMITS[detail["type"]].format(**detail["ctx"])


def dotted(loc: Loc) -> str:
    """A location as people write it: `hosts[2].slots`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return shown(text.removeprefix("."))


def _fields(kind: type[BaseModel], loc: Loc) -> dict[str, Any]:
    """The legal keys at a location, with their types."""
    fields: dict[str, Any] = {n: f.annotation for n, f in kind.model_fields.items()}
    for part in loc:
        if isinstance(part, int):
            continue
        inner = next(iter(_models(fields.get(part))), None)
        if inner is None:
            return {}
        fields = {n: f.annotation for n, f in inner.model_fields.items()}
    return fields


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic types inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _choices(kind: type[BaseModel], loc: Loc) -> list[Any]:
    """The members of the Literal at a location."""
    named = tuple(part for part in loc if not isinstance(part, int))
    annotation = _fields(kind, named[:-1]).get(str(named[-1])) if named else None
    return _members(annotation)


def _members(annotation: Any) -> list[Any]:
    """The values of every Literal inside an annotation."""
    inner = get_args(annotation)
    if inner and not any(isinstance(i, type) or get_args(i) for i in inner):
        return list(inner)
    return [member for i in inner for member in _members(i)]
