"""Traced numbers as figures: a name, a value, a formula of named inputs, and a source each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN
from dsforge.traced import AnyConstant, Traced, plain
from dsforge.units import Interval

# How tightly an operation binds; calls bind tightest.
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 3}
_CALL = 4
# What the figures of a module belong to; those of others belong to the result that needs them.
_GROUPS = {
    "estimate/params.py": "parameters",
    "estimate/shard.py": "parameters",
    "estimate/quantised.py": "parameters",
    "estimate/buckets.py": "buckets",
    "estimate/states.py": "states",
    "estimate/optimizer_bytes.py": "states",
    "estimate/activations.py": "activations",
    "estimate/loss.py": "loss",
    "estimate/comm.py": "links",
    "estimate/rates.py": "rates of the card",
    "estimate/flops.py": "operations",
    "estimate/layer_time.py": "compute of a micro batch",
    "estimate/micro_batch_time.py": "compute of a micro batch",
    "estimate/traffic.py": "collectives",
    "estimate/activation_traffic.py": "collectives",
    "estimate/offload.py": "offload",
}


class Given(BaseModel):
    """A value that nothing computes here (of the plan, or a constant), or a figure's own value."""

    model_config = FROZEN

    name: str = Field(description="Name of the value in formulas.")
    value: float = Field(description="The value itself, in `unit`.")
    unit: str = Field(description="Unit of the value; empty for counts and shares.")
    source: str = Field(description="Where the value comes from.")


class Setting(BaseModel):
    """What a plan says in words: a kernel, a strategy, a list of kinds."""

    model_config = FROZEN

    name: str = Field(description="Its place in the plan, such as `choice.strategy.layout`.")
    value: str = Field(description="What the plan says, `none` where it says nothing.")
    meaning: str = Field(description="What the setting is.")


class Figure(BaseModel):
    """A value with the formula that gives it from others."""

    model_config = FROZEN

    group: str = Field(description="What it belongs to: memory, time, ...")
    name: str = Field(description="Name of the figure in formulas.")
    value: float = Field(description="The value itself, in `unit`.")
    unit: str = Field(description="Unit of the value; empty for counts and shares.")
    formula: str = Field(
        description="Python arithmetic of the inputs, with max, min, ceil, floor, round, log2 and "
        "next_power_of_two."
    )
    inputs: tuple[Given, ...] = Field(description="Every name in the formula with its value.")
    source: str = Field(description="The code that computes it, and why it does so.")


class Group(NamedTuple):
    """Results that belong together, and how they are shown."""

    title: str
    unit: str
    units: Mapping[str, str] = {}  # of those that have another one
    before: str = ""  # before the name of each result
    scope: str = ""  # before the name of what they rest on, where that is another one's already


class FigureTable:
    """Figures in the order in which they rest on each other, each under a name of its own."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self._names: dict[int, str] = {}
        self._same: dict[tuple[str, float, str], str] = {}
        self._taken: set[str] = set()
        self._kept: list[Traced] = []  # ids are names only while the objects live

    def take(self, group: Group, document: BaseModel) -> None:
        """Every number of a document: its fields, with their descriptions as sources."""
        for field, info in type(document).model_fields.items():
            value = getattr(document, field)
            if value is not None and not isinstance(value, bool):
                likely = value.likely if isinstance(value, Interval) else value
                self.take_one(
                    group, group.before + field, likely, str(info.description).removesuffix(".")
                )

    def by_group(self, order: tuple[str, ...]) -> tuple[Figure, ...]:
        """All figures; inside a group each after those that it rests on."""
        return tuple(sorted(self.figures.values(), key=lambda figure: order.index(figure.group)))

    def take_one(self, group: Group, name: str, value: float, source: str) -> None:
        """One result under its name, after all that it rests on."""
        result = value if isinstance(value, Traced) else Traced(value, "=", (value,))
        if result.name != name or not result.operation:
            result = result.called(name, group.units.get(name, group.unit), source)
        for number in _in_order(result, self._names):
            self._add(group, number)

    def _add(self, group: Group, number: Traced) -> None:
        self._kept.append(number)
        formula = self._formula(number)
        same = (number.name, float(plain(number)), formula)
        if same in self._same:
            self._names[id(number)] = self._same[same]
            return
        name = next(name for name in _names(number.name, group.scope) if name not in self._taken)
        self._names[id(number)] = self._same[same] = name
        self._taken.add(name)
        if number.operation:
            self.figures[name] = Figure.model_construct(
                group=_GROUPS.get(number.source.split(":")[0], group.title),
                name=name,
                value=float(plain(number)),
                unit=number.unit,
                formula=formula,
                inputs=tuple(self._inputs(number)),
                source=number.source,
            )

    def _formula(self, number: Traced) -> str:
        return self._text(number)[0] if number.operation else ""

    def _inputs(self, number: Traced) -> Iterator[Given]:
        """Every name of a formula once, in its order."""
        found: dict[str, Given] = {}
        for leaf in _leaves(number):
            name = leaf.name if isinstance(leaf, AnyConstant) else self._names[id(leaf)]
            figure = self.figures.get(name)
            found.setdefault(
                name,
                Given.model_construct(
                    name=name,
                    value=float(plain(leaf)),
                    unit=leaf.unit,
                    source=f"figure of {figure.group}" if figure else leaf.source,
                ),
            )
        yield from found.values()

    def _text(self, operand: Any) -> tuple[str, int]:
        """An operation as Python, and how tightly its outermost operator binds."""
        operation, operands = operand.operation, operand.operands
        if operation == "=":
            return self._operand(operands[0])
        if operation not in _BINDING:
            return f"{operation}({', '.join(self._operand(one)[0] for one in operands)})", _CALL
        binding = _BINDING[operation]
        left, right = (self._operand(one) for one in operands)
        first = f"({left[0]})" if left[1] < binding else left[0]
        closed = right[1] < binding or (right[1] == binding and not _joins(operation, operands[1]))
        second = f"({right[0]})" if closed else right[0]
        return f"{first} {operation} {second}", binding

    def _operand(self, operand: Any) -> tuple[str, int]:
        if isinstance(operand, AnyConstant):
            return operand.name, _CALL
        if not isinstance(operand, Traced):
            return _literal(operand), _CALL
        if operand.name:
            return self._names[id(operand)], _CALL
        return self._text(operand)


def _joins(operation: str, right: Any) -> bool:
    """Whether a right operand that binds as tightly needs no parentheses."""
    return operation == "+" or (operation == "*" and right.operation in "*/")


def _literal(value: float) -> str:
    """A number of a formula, without digits that floating point added."""
    number = float(value)
    return f"{number:_.0f}" if number.is_integer() and abs(number) < 1e15 else f"{number:.12g}"  # noqa: PLR2004


def _names(name: str, prefix: str) -> Iterator[str]:
    """Names to try: as it is, prefixed, numbered."""
    yield name
    if prefix:
        name = f"{prefix}_{name}"
        yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def named_below(number: Any, source: str) -> Iterator[Traced]:
    """The named numbers of one source among those that a number rests on, itself included."""
    if isinstance(number, Traced):
        if number.name and number.source.startswith(source):
            yield number
        for operand in number.operands:
            yield from named_below(operand, source)


def _leaves(number: Traced) -> Iterator[Traced | AnyConstant]:
    """The named numbers and constants in the formula of one, from left to right."""
    for operand in number.operands:
        if isinstance(operand, AnyConstant) or (isinstance(operand, Traced) and operand.name):
            yield operand
        elif isinstance(operand, Traced):
            yield from _leaves(operand)


def _in_order(root: Traced, done: dict[int, str]) -> Iterator[Traced]:
    """The named numbers that one rests on, then itself; each after its own."""
    waiting: list[tuple[Traced, bool]] = [(root, False)]
    seen: set[int] = set()
    while waiting:
        number, ready = waiting.pop()
        if ready:
            yield number
        elif id(number) not in seen and id(number) not in done:
            seen.add(id(number))
            waiting.append((number, True))
            below = [leaf for leaf in _leaves(number) if isinstance(leaf, Traced)]
            waiting.extend((leaf, False) for leaf in reversed(below))
