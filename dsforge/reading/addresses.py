"""Host names to IP addresses, only where the user asks for it with `--resolve`.

Names are resolved here once and for all ranks: a name that means different addresses on different
machines is the usual cause of a rendezvous that never completes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from dsforge.errors import Problem, SpecError
from dsforge.hostfile import Entry, entry_problems, is_address
from dsforge.specs import Host

TIMEOUT_S = 5.0  # all names together


def addressed(
    entries: Sequence[Entry], *, resolve: bool, by_name: bool = False
) -> tuple[Host, ...]:
    """The hosts by IP address. Raises SpecError for every name that is not, or cannot be, one.

    With `by_name` a name that is not to be resolved stays.
    """
    names = [entry.address for entry in entries if not is_address(entry.address)]
    found = resolved(names) if resolve else {}
    problems = [
        _unresolved(entry, tried=resolve)
        for entry in entries
        if not is_address(entry.address) and entry.address not in found
        if resolve or not by_name
    ]
    known = [e._replace(address=found.get(e.address, e.address)) for e in entries]
    problems += entry_problems(known, by_name=by_name)
    if problems:
        raise SpecError(tuple(problems))
    return tuple(Host(address=e.address, slots=e.slots, devices=e.devices) for e in known)


def resolved(names: Sequence[str], timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """The IP address of each name that has one within the time; IPv4 where there is a choice."""
    found: dict[str, str] = {}
    threads = [threading.Thread(target=_resolve, args=(name, found), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s / len(threads))
    return dict(found)


def _resolve(name: str, found: dict[str, str]) -> None:
    """Add the address of one name to `found`."""
    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    rows.sort(key=lambda row: row[0] != socket.AF_INET)
    if rows:
        found[name] = str(rows[0][4][0])


def _unresolved(entry: Entry, *, tried: bool) -> Problem:
    """Why a host name cannot stay."""
    if tried:
        message = f"host name `{entry.address}` has no address here within {TIMEOUT_S:g} s"
        return Problem("host-unresolved", message, "write its IP address", entry.place)
    message = (
        f"host `{entry.address}` is a name, which other machines may resolve to another address"
    )
    hint = "write its IP address, or add `--resolve`"
    return Problem("host-name-unresolved", message, hint, entry.place)
