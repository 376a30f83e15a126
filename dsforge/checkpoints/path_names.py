"""Names out of a checkpoint that become names of files: checked before they are used."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsforge.checkpoints.findings import listed
from dsforge.errors import DsforgeError

MAX_NAME_BYTES = 200
STATE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
RESERVED = frozenset(("fp32", "step", "param"))  # files and keys with a meaning of their own
HINT = "the file is damaged, or was made to write outside its folder"


def is_plain(name: object) -> bool:
    """Whether a name is that of one file in a folder, on every system."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
        and name.isprintable()
        and not name.startswith(".")
        and ".." not in name
        and not set(name) & set("/\\")
    )


def check_parameters(names: Iterable[object]) -> None:
    """Raises DsforgeError where a parameter has a name that is no name of one folder."""
    odd = [repr(name)[:80] for name in names if not is_plain(name)]
    if odd:
        raise DsforgeError(f"{listed(odd)} cannot be the name of a parameter", HINT)


def check_states(names: Iterable[object]) -> None:
    """Raises DsforgeError where an optimizer state has a name that is none."""
    odd = [
        repr(name)[:80]
        for name in names
        if not isinstance(name, str) or not STATE.fullmatch(name) or name.lower() in RESERVED
    ]
    if odd:
        raise DsforgeError(f"{listed(odd)} cannot be the name of an optimizer state", HINT)


def check_distinct(names: Iterable[str]) -> None:
    """Raises DsforgeError where two names are one on a disk that ignores case."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            message = f"`{other}` and `{name}` differ only in case"
            raise DsforgeError(message, "rename one of them, and save again")
