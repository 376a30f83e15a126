"""The shared flags as options of click, and the switch `--verbose`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from dsforge.cli.completion import complete
from dsforge.cli.flags import FLAGS, Flags, option_name
from dsforge.cli.numbers import Kept, Real, Sized, Unread, Whole
from dsforge.cli.paths import NamedPath
from dsforge.errors import DsforgeError, SpecError

SIZED = ("seq_len", "global_batch", "micro_batch")  # fields that may end in k
WHOLE_REQUESTS = ("plan", "gen", "estimate")  # commands whose flags say all there is to a request


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its `flags: Flags` parameter filled from one option for each field."""

    @wraps(command)
    def filled(**values: Any) -> None:
        flags = Flags(**{field: values.pop(field) for field in Flags._fields})
        _check_numbers(flags, values.get("ds_config"))
        command(flags=flags, **values)

    for field in reversed(Flags._fields):
        filled = click.option(option_name(field), field, help=FLAGS[field].help, **_kind(field))(
            filled
        )
    return filled


def _check_numbers(flags: Flags, ds_config: Path | None) -> None:
    """Raise UsageError where a flag is no number, with all that is wrong with the others."""
    unread = {field: v.error for field, v in flags._asdict().items() if isinstance(v, Unread)}
    if not unread:
        return
    said = [error.format_message() for error in unread.values()]
    if click.get_current_context().info_name in WHOLE_REQUESTS:
        read = {field: value for field, value in flags._asdict().items() if field not in unread}
        said += _problems_of(Flags(**read), ds_config)
    raise click.UsageError("\n".join(said), next(iter(unread.values())).ctx)


def _problems_of(flags: Flags, ds_config: Path | None) -> Iterator[str]:
    """What is wrong with a request."""
    from dsforge.cli.asked import to_request

    try:
        to_request(flags, ds_config)
    except DsforgeError as error:
        yield from map(str, error.problems if isinstance(error, SpecError) else (error.message,))


def _kind(field: str) -> dict[str, Any]:
    """What click needs to know of a field's type: a switch, or the type of a value."""
    declared = Flags.__annotations__[field].__origin__
    if declared is bool:
        return {"is_flag": True}
    kind = declared.__args__[0]  # of `int | None`
    if kind is bool:
        return {"is_flag": True, "default": None}
    kinds: dict[Any, Any] = {Path: NamedPath(), int: Kept(Whole()), float: Kept(Real())}
    if field in SIZED:
        return {"type": Kept(Sized())}
    if kind is not str:
        return {"type": kinds[kind]}
    return {"type": str, "shell_complete": partial(complete, FLAGS[field].setting)}


with_verbose = click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show all reasons, defaults and tables instead of one screen.",
)
