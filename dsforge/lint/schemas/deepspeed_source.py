"""What a DeepSpeed release reads from its config, taken from its source without running it.

DeepSpeed keeps no list of its keys: part of them are fields of pydantic models, which refuse
anything else, part are looked up one by one in plain dicts, where a misspelt key is simply never
asked for. Both are read here from the syntax trees of the config modules, by following the config
from `DeepSpeedConfig` through the functions and classes that it is handed to. So neither torch nor
CUDA is needed, and a release that cannot be installed beside another can be read all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Path = tuple[str, ...]
Env = dict[str, Path | str]  # a variable stands for a place in the config, or for a key

ROOT = "DeepSpeedConfig"
SELF = "self"
READERS = {"get_scalar_param", "get_list_param", "get_dict_param"}
MODELS = {"DeepSpeedConfigModel", "DtypeConfig"}
SCALARS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "Path": "str"}
LIMITS = ("ge", "gt", "le", "lt")
_ASSIGNED = (ast.Assign, ast.AnnAssign)


class Key(NamedTuple):
    """One key: its type and limits as far as the source says, and what replaces it."""

    type: str = ""  # int, float, bool, str, block, list or empty where unknown
    null: bool = False
    limits: tuple[tuple[str, float], ...] = ()
    choices: tuple[str | int, ...] = ()
    deprecated: str | None = None  # the key that replaces it; empty where none does


class Schema(NamedTuple):
    """Keys of each block by its path; a closed block refuses every other key."""

    keys: dict[Path, dict[str, Key]]
    closed: set[Path]
    removed: dict[Path, set[str]]


def is_config_module(name: str) -> bool:
    """Whether a file of the package (path inside it) is one that the extraction needs."""
    file = name.rsplit("/", 1)[-1]
    fit = "config" in file or file in ("constants.py", "utils.py", "offload_states.py")
    return fit and file.endswith(".py") and not name.startswith(("inference/v2", "ops/"))


def extracted(sources: Mapping[str, str]) -> Schema:
    """The schema of one release from its config modules: path inside the package -> text."""
    return _Reader(sources).read()


class _Reader:
    """Follows the config through the modules."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.constants: dict[str, ast.expr] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.schema = Schema({(): {}}, set(), {})
        self._done: set[tuple[int, tuple[tuple[str, Path | str], ...]]] = set()
        for name in sorted(sources):
            self._index(ast.parse(sources[name]))

    def read(self) -> Schema:
        """The keys of all blocks."""
        root = self.classes[ROOT]
        for method in _methods(root):
            self._follow(method, {"self": SELF, "config": (), "param_dict": ()}, root)
        places: dict[str, Path] = {"TOP_LEVEL": (), "ZERO": ("zero_optimization",)}
        for name, path in places.items():
            self._removed(f"_REMOVED_{name}_CONFIG_KEYS", path)
        old, new = ("bfloat16",), ("bf16",)  # two spellings of one block
        self.schema.keys.setdefault(new, self.schema.keys.get(old, {}))
        self.schema.closed.update({new} if old in self.schema.closed else ())
        for path in self.schema.keys:
            if path and path[-1] in (above := self.schema.keys.get(path[:-1], {})):
                above[path[-1]] = above[path[-1]]._replace(type="block")
        return self.schema

    def _index(self, module: ast.Module) -> None:
        for node in module.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
        assigned = [n for n in module.body if isinstance(n, ast.Assign)]
        own = {n.targets[0].id: n.value for n in assigned if isinstance(n.targets[0], ast.Name)}
        self.constants = {**own, **self.constants}

    def _removed(self, constant: str, path: Path) -> None:
        table = self.constants.get(constant)
        if isinstance(table, ast.Dict):
            names = (self._word(key, {}) for key in table.keys)
            self.schema.removed[path] = {name for name in names if name}

    def _follow(self, function: ast.FunctionDef, env: Env, owner: ast.ClassDef | None) -> None:
        """Note the keys that a function reads from the variables whose paths are known."""
        state = (id(function), tuple(sorted(env.items())))
        if state in self._done:
            return
        self._done.add(state)
        env = dict(env)
        for statement in _statements(function):
            for node in ast.walk(statement):
                self._note(node, env, owner)
            if isinstance(statement, _ASSIGNED) and statement.value is not None:
                self._assign(statement, env)

    def _assign(self, statement: ast.Assign | ast.AnnAssign, env: Env) -> None:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        path = self._path(statement.value, env)
        place = path if path is not None else self._word(statement.value, env)
        if isinstance(target, ast.Name) and place is not None:
            env[target.id] = place

    def _note(self, node: ast.AST, env: Env, owner: ast.ClassDef | None) -> None:
        """Note the key of one expression, and follow the config into calls."""
        if isinstance(node, ast.Subscript):
            self._key(self._path(node.value, env), self._word(node.slice, env))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            self._key(self._path(node.comparators[0], env), self._word(node.left, env))
        elif isinstance(node, ast.Call):
            self._call(node, env, owner)
        elif isinstance(node, ast.DictComp) and isinstance(node.generators[0].iter, ast.Tuple):
            for word in node.generators[0].iter.elts:
                self._key(self._path(node.value, env), self._word(word, env))

    def _call(self, node: ast.Call, env: Env, owner: ast.ClassDef | None) -> None:
        name = _name(node.func)
        if name == "get" and isinstance(node.func, ast.Attribute):
            self._key(self._path(node.func.value, env), self._word(node.args[0], env))
        elif name in READERS:
            self._key(self._path(node.args[0], env), self._word(node.args[1], env), node.args[2:])
        elif name in self.classes and self._is_model(name):
            spread = next((k.value for k in node.keywords if k.arg is None), None)
            path = self._path(spread, env) if spread is not None else None
            if path is not None:
                self._model(name, path)
        else:
            self._enter(name, node, env, owner)

    def _enter(self, name: str, node: ast.Call, env: Env, owner: ast.ClassDef | None) -> None:
        """Follow the config into a function, a constructor or a method of the same class."""
        target, home = self.functions.get(name), None
        if isinstance(node.func, ast.Attribute) and _name(node.func.value) == "self" and owner:
            home = owner
            target = next((m for m in _methods(owner) if m.name == name), None)
        elif name in self.classes:
            home = self.classes[name]
            target = next((m for m in _methods(home) if m.name == "__init__"), None)
        if target is None:
            return
        inner = self._bound(target, node, env)
        if any(isinstance(place, tuple) for place in inner.values()):
            self._follow(target, inner, home)

    def _bound(self, target: ast.FunctionDef, node: ast.Call, env: Env) -> Env:
        """What the parameters of a function stand for in one call of it."""
        names = [a.arg for a in target.args.args if a.arg != SELF]
        defaults = target.args.defaults
        values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        values |= dict(zip(names, node.args, strict=False))
        found = {name: self._path(value, env) for name, value in values.items()}
        words = {name: self._word(value, env) for name, value in values.items()}
        places = {name: place for name, place in found.items() if place is not None}
        return {**{name: word for name, word in words.items() if word is not None}, **places}

    def _key(
        self, path: Path | None, key: str | None, default: list[ast.expr] | None = None
    ) -> None:
        if path is None or key is None:
            return
        keys = self.schema.keys.setdefault(path, {})
        kind = self._kind(default[0]) if default else ""
        if key not in keys or (kind and not keys[key].type and path not in self.schema.closed):
            keys[key] = Key(kind, null=True)

    def _kind(self, default: ast.expr) -> str:
        """The type of a default; only a boolean says enough, as `0` may stand for any number."""
        node = self._resolved(default)
        is_flag = isinstance(node, ast.Constant) and isinstance(node.value, bool)
        return "bool" if is_flag else ""

    def _path(self, node: ast.expr | None, env: Env) -> Path | None:
        """Where in the config an expression is; none where it is something else."""
        if isinstance(node, ast.Name):
            place = env.get(node.id)
            return place if isinstance(place, tuple) else None
        if isinstance(node, ast.Attribute):
            return () if node.attr == "_param_dict" else None
        if isinstance(node, ast.Subscript):
            return self._below(node.value, node.slice, env)
        if isinstance(node, ast.DictComp):  # {key: config.get(key) for key in ("a", "b")}
            return self._path(getattr(getattr(node.value, "func", None), "value", None), env)
        if isinstance(node, ast.IfExp):
            return self._path(node.body, env)
        return self._path_of_call(node, env) if isinstance(node, ast.Call) else None

    def _path_of_call(self, node: ast.Call, env: Env) -> Path | None:
        name = _name(node.func)
        if name in READERS:
            return self._below(node.args[0], node.args[1], env)
        if name in ("copy", "deepcopy") and node.args:
            return self._path(node.args[0], env)
        if isinstance(node.func, ast.Attribute) and name in ("get", "keys", "items"):
            if name == "get":
                return self._below(node.func.value, node.args[0], env)
            return self._path(node.func.value, env)
        return self._returned(self.functions.get(name), node, env)

    def _returned(self, target: ast.FunctionDef | None, node: ast.Call, env: Env) -> Path | None:
        """The place in the config that a function of one statement returns."""
        if target is None or not isinstance(target.body[-1], ast.Return) or len(target.body) > 1:
            return None
        return self._path(target.body[-1].value, self._bound(target, node, env))

    def _below(self, value: ast.expr, key: ast.expr, env: Env) -> Path | None:
        path, word = self._path(value, env), self._word(key, env)
        return None if path is None or word is None else (*path, word)

    def _word(self, node: ast.expr | None, env: Env) -> str | None:
        """The text that an expression stands for."""
        if isinstance(node, ast.Name) and isinstance(env.get(node.id), str):
            return str(env[node.id])
        node = self._resolved(node)
        return (
            node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
        )

    def _resolved(self, node: ast.expr | None) -> ast.expr | None:
        """The value behind names of constants."""
        for _ in range(5):
            if not isinstance(node, ast.Name) or node.id not in self.constants:
                break
            node = self.constants[node.id]
        return node

    def _is_model(self, name: str) -> bool:
        bases = {_name(base) for base in self.classes[name].bases}
        return bool(bases & MODELS) or any(b in self.classes and self._is_model(b) for b in bases)

    def _model(self, name: str, path: Path) -> None:
        """Note the fields of a pydantic model at a path, and of the models inside it."""
        if path:
            self.schema.closed.add(path)
        keys = self.schema.keys.setdefault(path, {})
        for node in self._fields(name):
            field, call = node.target.id, _field_call(node.value)  # type: ignore[union-attr]
            words = {k.arg: k.value for k in call.keywords} if call else {}
            key = self._field(ast.unparse(node.annotation), words)
            for spelling in {field, self._word(words.get("alias"), {}) or field}:
                keys[spelling] = key
                for inner in _names(node.annotation):
                    if inner in self.classes and self._is_model(inner):
                        self._model(inner, (*path, spelling))

    def _fields(self, name: str) -> Iterator[ast.AnnAssign]:
        for base in self.classes[name].bases:
            if _name(base) in self.classes:
                yield from self._fields(_name(base))
        for node in self.classes[name].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node

    def _field(self, annotation: str, words: dict[str | None, ast.expr]) -> Key:
        null = annotation.startswith("Optional[") or "None" in annotation
        kind = annotation.removeprefix("Optional[").rstrip("]").split("[")[0]
        choices: tuple[str | int, ...] = ()
        if kind == "Literal":
            choices = tuple(ast.literal_eval(f"[{annotation.partition('[')[2].rstrip(']')}]"))
            kind = "choice"
        elif kind in self.classes and not self._is_model(kind):
            choices = _members(self.classes[kind])
            kind = "choice" if choices else ""
        elif kind in self.classes:
            kind = "block"
        limits = {name: _number(words[name]) for name in LIMITS if name in words}
        return Key(
            {**SCALARS, "choice": "choice", "block": "block", "list": "list", "List": "list"}.get(
                kind, ""
            ),
            null,
            tuple((name, value) for name, value in limits.items() if value is not None),
            choices,
            self._replacement(words),
        )

    def _replacement(self, words: dict[str | None, ast.expr]) -> str | None:
        """The key that replaces a deprecated one; none where it is not deprecated."""
        extra = words.get("json_schema_extra")
        if isinstance(extra, ast.Dict):
            words = {self._word(k, {}): v for k, v in zip(extra.keys, extra.values, strict=True)}
        return (self._word(words.get("new_param"), {}) or "") if "deprecated" in words else None


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """The simple statements of a function and the heads of its compound ones, in order."""
    waiting: list[ast.stmt] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.For) and isinstance(node.iter, (ast.List, ast.Tuple)):
            rounds = [[ast.Assign([node.target], word), *node.body] for word in node.iter.elts]
            waiting += reversed([statement for body in rounds for statement in body])
            continue
        inner = [s for field in ("body", "orelse", "finalbody") for s in getattr(node, field, [])]
        if inner and isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            head = getattr(node, "test", None) or getattr(node, "iter", None)
            if head is not None:
                yield ast.Expr(head)
            waiting += reversed(inner)
        else:
            yield node


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [n for n in node.body if isinstance(n, ast.FunctionDef)]


def _name(node: ast.expr) -> str:
    """The last name of an expression: `Field` of `pydantic.Field`."""
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))


def _names(node: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def _field_call(node: ast.expr | None) -> ast.Call | None:
    return node if isinstance(node, ast.Call) and _name(node.func) == "Field" else None


def _members(node: ast.ClassDef) -> tuple[str | int, ...]:
    """The values of an enumeration; `max_stage` is a limit and none."""
    assigned = [n.value for n in node.body if isinstance(n, ast.Assign)]
    found = [value.value for value in assigned if isinstance(value, ast.Constant)]
    return tuple(dict.fromkeys(v for v in found if isinstance(v, (str, int))))


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, (int, float)) else None
