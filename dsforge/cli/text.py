"""Text for a terminal: wrapped at its width, plan names in one piece, columns aligned."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from dsforge.masking import printable

NARROWEST, USUAL, WIDEST = 60, 100, 120  # columns; the second where stdout is no terminal
# `ZeRO-3 dp16 mbs2 x4 recompute full`: the name of a plan, which is not broken at the end of a line
_NAME = re.compile(
    r"(?:ZeRO-\d|Megatron)(?: (?:[a-z]+\d+|hpZ \d+|recompute \w+|\w+ on (?:cpu|nvme)\b"
    r"|without distributed optimizer))+"
)
_QUANTITY = re.compile(r"(?<=\d) (?=(?:[KMG]iB|[GM]B/s|ms|s|min|h|days|GPUs?)\b)")
_RULE = re.compile(r" (?=\[[a-z0-9-]+\]$)")
_GLUE = "\N{NO-BREAK SPACE}"


def columns() -> int:
    """The width of the terminal, within what people read."""
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size((USUAL, 24)).columns))


def show(lines: Iterable[str]) -> None:
    """Lines on stdout, without secrets and control characters that names may hold."""
    print("\n".join(map(printable, lines)))


def wrapped(text: str, *, first: str = "", width: int | None = None) -> list[str]:
    """Lines of a text behind a first word; later lines begin below the text."""
    width = width or columns()
    glued = _RULE.sub(_GLUE, _NAME.sub(partial(_in_one_piece, width - len(first)), text))
    lines = textwrap.wrap(
        _QUANTITY.sub(_GLUE, glued),
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


def _in_one_piece(room: int, name: re.Match[str]) -> str:
    """A name without places to break it, unless it is too long for a line."""
    text = name.group()
    return text.replace(" ", _GLUE) if len(text) <= room else text


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table whose first column is a name, to the left, and the others figures, to the right.

    Where a line would be too long, names stand on lines of their own with their figures below.
    """
    table = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    own_line = sum(widths) + 2 * len(widths) > columns()
    for name, *rest in table:
        figures = "  ".join(map(str.rjust, rest, widths[1:])).rstrip()
        yield from (
            [f"  {name}", f"      {figures}"] if own_line else [f"  {name:<{widths[0]}}  {figures}"]
        )
