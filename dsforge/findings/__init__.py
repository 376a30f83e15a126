"""Findings: what is wrong, how bad it is, where, and what to do; and the rules that find it.

`lint` judges files, `preflight` hosts, `probe` measurements, `ckpt verify` checkpoints: each with
rules of its own, all with these types. A rule is a pure function from what it looks at to `Hit`s.
The decorator `rule` puts its id, severity, reason and evidence above it, and `collected` gathers
the rules of modules: no list of rules is kept by hand. `writers.py` shows findings to people,
programs and code hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # worst first

Subject = TypeVar("Subject")  # what the rules of one room look at


class Edit(NamedTuple):
    """One repair of a text: what stands between two offsets becomes something else."""

    start: int
    end: int
    text: str


class Hit(NamedTuple):
    """One thing that breaks a rule, as the rule sees it."""

    where: tuple[str | int, ...]  # the location of a key in a file; the addresses of hosts
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    offset: int | None = None  # in the text of a file, where no key says where
    severity: Severity | None = None  # instead of that of the rule


class Finding(NamedTuple):
    """One broken rule: what is wrong, what to do, and where; what does not apply stays empty."""

    rule: str
    severity: Severity
    message: str
    fix: str = ""
    file: str = ""
    line: int = 0  # from 1
    column: int = 0  # from 1
    path: str = ""  # the key in the file, dotted: `fp16.loss_scale`
    hosts: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


Find = Callable[[Subject], Iterable[Hit]]


class Rule(NamedTuple, Generic[Subject]):
    """One rule: what it is called, how bad it is, why it is one, and how that is known."""

    id: str
    severity: Severity
    scope: tuple[str, ...]  # kinds of files for lint, the column of the table for preflight
    title: str
    why: str
    evidence: str
    find: Find[Subject]
    fixable: bool = False


def rule(
    name: str,
    severity: Severity,
    *scope: str,
    why: str,
    evidence: str = "",
    fixable: bool = False,
) -> Callable[[Find[Subject]], Rule[Subject]]:
    """A decorator that makes a rule of a function, whose docstring becomes the title."""

    def made(find: Find[Subject]) -> Rule[Subject]:
        title = (find.__doc__ or "").strip().partition("\n")[0]
        return Rule(name, severity, scope, title, why, evidence, find, fixable)

    return made


def collected(*modules: ModuleType) -> tuple[Rule[Any], ...]:
    """The rules that modules define, in that order: single ones, and tuples of them.

    Raises ValueError where two have the same id.
    """
    rules = tuple(rule for module in modules for rule in _of(module))
    names = [rule.id for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"defined twice: {', '.join(twice)}")
    return rules


def _of(module: ModuleType) -> Iterator[Rule[Any]]:
    """The rules among the names of a module."""
    for value in vars(module).values():
        if isinstance(value, Rule):
            yield value
        elif isinstance(value, tuple) and value and isinstance(value[0], Rule):
            yield from value


def worst_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors, then warnings, then the rest; within each in the given order."""
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def has_errors(found: Iterable[Finding]) -> bool:
    """Whether any finding is an error: the exit code of a command depends on it."""
    return any(finding.severity == "error" for finding in found)
