"""Numbers of the command line: written in ASCII digits, finite, and in their range.

Python's own conversions take `nan`, `inf`, `1_000` and the digits of every script. A range does not
help: no comparison with `nan` is true, so none of them refuses it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import click

from dsforge.units import REAL, WHOLE


class Whole(click.IntRange):
    """A whole number in a range; help shows the range only where there is one."""

    name = "integer"

    def _describe_range(self) -> str:
        return _range(self)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        if isinstance(value, str) and not WHOLE.fullmatch(value.strip()):
            self.fail(f"{value[:40]!a} is not a whole number.", param, ctx)
        return super().convert(value, param, ctx)


class Real(click.FloatRange):
    """A finite number in a range; help shows the range only where there is one."""

    name = "number"

    def _describe_range(self) -> str:
        return _range(self)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        if isinstance(value, str) and not REAL.fullmatch(value.strip()):
            self.fail(f"{value[:40]!a} is not a finite number.", param, ctx)
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!s:.40} is not a finite number.", param, ctx)
        return found


class Sized(Whole):
    """A length or a batch as people write it: `4096`, `8k` (8192), `1m`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        if isinstance(value, str) and not WHOLE.fullmatch(value.strip()):
            from dsforge.units import parse_count

            try:
                value = str(parse_count(value[:40], thousand=1024))
            except ValueError:
                said = f"{value[:40]!a} is not a whole number such as 4096 or 8k."
                self.fail(said, param, ctx)
        return super().convert(value, param, ctx)


class Unread(NamedTuple):
    """A value that is no number, and what click says of it."""

    error: click.BadParameter


class Kept(click.ParamType[Any]):
    """A number of a flag; one that cannot be read is kept, to be reported with all the rest."""

    def __init__(self, kind: Whole | Real) -> None:
        self.kind, self.name = kind, kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or why there is none. Raises where another option was taken for the value."""
        try:
            return self.kind.convert(value, param, ctx)
        except click.BadParameter as error:
            if str(value).startswith("--"):
                raise
            return Unread(error)


def _range(kind: click.IntRange | click.FloatRange) -> str:
    """`x>=1`, `0<x<=1`; empty without limits."""
    lower = ">" if kind.min_open else ">="
    upper = "<" if kind.max_open else "<="
    if kind.min is not None and kind.max is not None:
        return f"{kind.min}{lower.replace('>', '<')}x{upper}{kind.max}"
    if kind.min is not None:
        return f"x{lower}{kind.min}"
    return "" if kind.max is None else f"x{upper}{kind.max}"
