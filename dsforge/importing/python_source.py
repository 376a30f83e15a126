"""Facts of a Python source: calls with their arguments, assignments, defaults of arguments.

The source is parsed, never run. Deep nesting can end a parser's process, so it is parsed in a
process of its own that has little memory and little time (`confine.py`).
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsforge.confine import EndedError, Limits, confined
from dsforge.importing.values import Unknown, Value
from dsforge.reading.refusals import refusal

LIMITS = Limits(seconds=5.0, memory_bytes=512 << 20, answer_bytes=8 << 20)
MOST_CALLS = 5_000
DEEPEST = 12  # levels of a value
_CALL, _UNKNOWN = "\x00call", "\x00unknown"
_NUMBERS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}


class Call(NamedTuple):
    """One call: the last part of the function's name, and its arguments."""

    name: str
    values: dict[str, Value]
    line: int
    owner: str = ""  # what stands before the last dot


class Facts(NamedTuple):
    """What a source says."""

    calls: tuple[Call, ...]
    assigned: dict[str, Value]  # `cfg.model.seq_length = 4096` by its dotted name
    arguments: dict[str, Value]  # defaults of `add_argument`, and of fields of classes

    def call(self, *names: str) -> Call | None:
        """The first call of one of some functions."""
        return next((call for call in self.calls if call.name in names), None)


def facts_of(text: str, name: str) -> Facts:
    """The facts of a source. Raises SpecError where it is no Python, or too large to parse."""

    def work() -> bytes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return json.dumps(_collected(ast.parse(text))).encode()
            except SyntaxError as error:
                return json.dumps({"line": error.lineno or 0, "error": error.msg}).encode()
            except (RecursionError, MemoryError, ValueError):
                return json.dumps({"line": 0, "error": "nested too deeply"}).encode()

    try:
        found = json.loads(confined(work, LIMITS))
    except EndedError as error:
        raise refusal("python-large", name, f"cannot be parsed: it {error}") from error
    if "error" in found:
        place = f"{name}:{found['line']}" if found["line"] else name
        raise refusal("python-syntax", place, f"not Python: {found['error'][:200]}")
    return Facts(
        tuple(_call(each, name) for each in found["calls"]),
        {key: _value(each, name) for key, each in found["assigned"].items()},
        {key: _value(each, name) for key, each in found["arguments"].items()},
    )


def _value(found: list[Any], name: str) -> Value:
    return Value(_revived(found[0], name), f"{name}:{found[1]}")


def _call(found: dict[str, Any], name: str) -> Call:
    values = {key: _value(each, name) for key, each in found["values"].items()}
    return Call(found["name"], values, found["line"], found["owner"])


def _revived(value: Any, name: str) -> Any:
    """A value as the confined process sent it."""
    if isinstance(value, dict):
        if _UNKNOWN in value:
            return Unknown(value[_UNKNOWN])
        if _CALL in value:
            return _call(value[_CALL], name)
        return {key: _revived(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_revived(inner, name) for inner in value]
    return value


def _collected(tree: ast.Module) -> dict[str, Any]:
    """All facts of a tree, in the order of its lines."""
    reader = _Reader()
    branches = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for part in (*node.body, *node.orelse)
        for inner in (part, *ast.iter_child_nodes(part))
    }
    nodes = sorted(
        (node for node in ast.walk(tree) if hasattr(node, "lineno")),
        key=lambda node: (node.lineno, node.col_offset),  # type: ignore[attr-defined]
    )
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            reader.fields(node)
        elif isinstance(node, ast.Call):
            reader.argument(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets: list[ast.expr] = (
                node.targets if isinstance(node, ast.Assign) else [node.target]
            )
            reader.assign(targets, node.value, maybe=id(node) in branches)
        elif isinstance(node, ast.FunctionDef):
            reader.defaults(node)
    calls = [node for node in nodes if isinstance(node, ast.Call)][:MOST_CALLS]
    return {
        "calls": [reader.call(node) for node in calls],
        "assigned": {k: v for k, v in reader.assigned.items() if "." in k or v[0] is not None},
        "arguments": reader.arguments,
    }


class _Reader:
    """Values of expressions, by the names that were assigned before."""

    def __init__(self) -> None:
        self.assigned: dict[str, list[Any]] = {}
        self.arguments: dict[str, list[Any]] = {}

    def assign(self, targets: list[ast.expr], value: ast.expr, *, maybe: bool) -> None:
        """Note an assignment; one of a branch does not replace a value by what is not known."""
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple | ast.List):
                if len(target.elts) == len(value.elts):  # rank, alpha = (16, 32)
                    for one, given in zip(target.elts, value.elts, strict=True):
                        self.assign([one], given, maybe=maybe)
                continue
            name = _dotted(target)
            found = self.value(value) if name else None
            known = not (isinstance(found, dict) and _UNKNOWN in found)
            if name and (known or not maybe or name not in self.assigned):
                self.assigned[name] = [found, target.lineno]

    def argument(self, node: ast.Call) -> None:
        """Note the default of an `add_argument`."""
        if _dotted(node.func).rpartition(".")[2] not in ("add_argument", "addoption"):
            return
        names = [a.value for a in node.args if isinstance(a, ast.Constant)]
        long = next(
            (str(n) for n in names if str(n).startswith("--")), str(names[0]) if names else ""
        )
        given = {word.arg: word.value for word in node.keywords}
        if "default" in given:
            value = self.value(given["default"])
        else:
            value = False if _text(given.get("action")) == "store_true" else None
        self.arguments[long.lstrip("-").replace("-", "_")] = [value, node.lineno]

    def fields(self, node: ast.ClassDef) -> None:
        """Note the fields of a class with their defaults."""
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value:
                value = each.value
                if (
                    isinstance(value, ast.Call)
                    and _dotted(value.func).rpartition(".")[2] == "field"
                ):
                    inner = {word.arg: word.value for word in value.keywords}.get("default")
                    if inner is None:
                        continue
                    value = inner
                self.arguments[each.target.id] = [self.value(value), each.lineno]

    def defaults(self, node: ast.FunctionDef) -> None:
        """Note the defaults of the parameters of a function."""
        positional = [*node.args.posonlyargs, *node.args.args]
        with_default = positional[len(positional) - len(node.args.defaults) :]
        pairs = [*zip(with_default, node.args.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults) if d]  # noqa: B905
        for parameter, default in pairs:
            if not isinstance(default, ast.Constant) or default.value is not None:
                self.assigned.setdefault(parameter.arg, [self.value(default), parameter.lineno])

    def call(self, node: ast.Call) -> dict[str, Any]:
        """A call as JSON."""
        owner, _, name = _dotted(node.func).rpartition(".")
        values = {w.arg: [self.value(w.value), w.value.lineno] for w in node.keywords if w.arg}
        for number, each in enumerate(node.args[:20]):
            values[str(number)] = [self.value(each), each.lineno]
        for word in node.keywords:
            inner = self.value(word.value) if word.arg is None else None
            if isinstance(inner, dict) and _CALL not in inner and _UNKNOWN not in inner:
                values |= {k: [v, word.value.lineno] for k, v in inner.items() if k not in values}
        return {"name": name, "owner": owner, "values": values, "line": node.lineno}

    def value(self, node: ast.expr, depth: int = DEEPEST) -> Any:  # noqa: PLR0911 - one for each form
        """The value of an expression, as JSON."""
        if not depth:
            return {_UNKNOWN: "..."}
        if isinstance(node, ast.Constant):
            plain = isinstance(node.value, bool | int | float | str) or node.value is None
            return node.value if plain and _is_short(node.value) else {_UNKNOWN: "..."}
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(_dotted(node))
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self.value(each, depth - 1) for each in node.elts[:200]]
        if isinstance(node, ast.Dict):
            return self._mapping(node, depth)
        if isinstance(node, ast.UnaryOp | ast.BinOp | ast.BoolOp):
            return self._computed(node, depth)
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        return {_UNKNOWN: _shown(node)}

    def _mapping(self, node: ast.Dict, depth: int) -> dict[str, Any]:
        pairs = zip(node.keys, node.values, strict=True)
        return {
            str(key.value): self.value(value, depth - 1)
            for key, value in pairs
            if isinstance(key, ast.Constant)
        }

    def _named(self, name: str) -> Any:
        if name in self.assigned:
            return self.assigned[name][0]
        head, _, last = name.rpartition(".")
        if head and head.rpartition(".")[2] in ("args", "opt", "hparams", "cfg", "config", "self"):
            if last in self.arguments:
                return self.arguments[last][0]
            return {_UNKNOWN: name}
        return name if name.startswith(("torch.", "jnp.")) or not head else {_UNKNOWN: name}

    def _computed(self, node: ast.expr, depth: int) -> Any:
        """Arithmetic of known numbers, `not`, and `x or default`."""
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand, depth - 1)
            if isinstance(node.op, ast.USub) and type(inner) in (int, float):
                return -inner
            if isinstance(node.op, ast.Not) and isinstance(inner, bool):
                return not inner
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left, depth - 1), self.value(node.right, depth - 1)
            numbers = type(left) in (int, float) and type(right) in (int, float)
            made = _NUMBERS.get(type(node.op))
            if numbers and made and abs(left) < 10**12 and abs(right) < 10**12:
                return (
                    made(left, right)
                    if right or type(node.op) not in (ast.Div, ast.FloorDiv)
                    else {_UNKNOWN: "?"}
                )
            if isinstance(node.op, ast.Pow) and type(left) is int and right in range(13):
                return left**right if abs(left) <= 1000 else {_UNKNOWN: "?"}  # noqa: PLR2004
        return {_UNKNOWN: _shown(node)}

    def _called(self, node: ast.Call, depth: int) -> Any:
        """A call inside a value: `float("1e-4")` and `dict(a=1)` are plain."""
        name = _dotted(node.func)
        if name in ("int", "float", "str", "bool") and len(node.args) == 1:
            inner = self.value(node.args[0], depth - 1)
            return inner if not isinstance(inner, dict) else {_UNKNOWN: _shown(node)}
        if name == "dict" and not node.args:
            return {w.arg: self.value(w.value, depth - 1) for w in node.keywords if w.arg}
        if name in ("os.environ.get", "os.getenv") and len(node.args) == 2:  # noqa: PLR2004
            return self.value(node.args[1], depth - 1)
        if not name or name.startswith("os."):
            return {_UNKNOWN: _shown(node)}
        return {_CALL: self.call(node)} if depth > DEEPEST - 4 else {_UNKNOWN: _shown(node)}


def _is_short(value: Any) -> bool:
    return not isinstance(value, str | int) or len(str(value)[:5_000]) < 4_000  # noqa: PLR2004


def _shown(node: ast.AST) -> str:
    """A name for what is not known."""
    names = [_dotted(each) for each in _shallow(node)]
    return next((name for name in names if name), type(node).__name__)[:80]


def _shallow(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    yield from list(ast.iter_child_nodes(node))[:10]


def _text(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _dotted(node: ast.AST) -> str:
    """A name with its attributes; empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < 20:  # noqa: PLR2004
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
