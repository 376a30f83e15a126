"""Paths of the command line: one type for all commands, which refuses what no disk can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class NamedPath(click.Path):
    """A path that a file system may have.

    A name that is too long would fail wherever it is first looked at, each time otherwise.
    """

    def __init__(self, *, allow_dash: bool = False, exists: bool = False, files: bool = True):
        super().__init__(path_type=Path, allow_dash=allow_dash, exists=exists, file_okay=files)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises SpecError where it cannot be one."""
        from dsforge.reading.source import path_of

        name = "path" if param is None else max(param.opts, key=len)
        path_of(value, name if name.startswith("-") else name.upper())
        return super().convert(value, param, ctx)
