"""The port at which the ranks of a launch meet: the usual one, or a free one where it is in use.

Rank 0 listens on the port tens of seconds after its launch, and until then it looks free. So the
launch reserves it: a socket that is bound to it, and does not listen, refuses it to every other
launch; once it allows reuse, the listening socket of rank 0, which allows it too, may have the port
(Linux, `inet_csk_bind_conflict`). The reservation ends with the process.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import RunError

PORT, ADDRESS = "--master_port", "--master_addr"  # words of both launchers
PLACE = "--node_rank"  # of torchrun, where each host starts its own ranks
LAST = 29999  # ports up to it are tried one after the other; then the kernel chooses
LISTENS = "0A"  # state in /proc/net/tcp
PROC = Path("/proc")


class Meeting(NamedTuple):
    """A launch and its port: `said` of a change, and the reservation, held while it runs."""

    command: list[str]
    said: str = ""
    reservation: socket.socket | None = None


def meeting(command: list[str], environment: Mapping[str, str]) -> Meeting:
    """A launch whose port nobody else uses; unchanged where rank 0 is on another machine.

    Raises RunError where the port is in use and must stay: MASTER_PORT asks for it, or other hosts
    have been given it.
    """
    port, address = _value(command, PORT), _value(command, ADDRESS)
    if not port.isdecimal() or not 0 < int(port) < 1 << 16 or not _is_here(address):
        return Meeting(command)
    is_asked = bool(environment.get("MASTER_PORT"))
    reservation = _reserved(int(port))
    if reservation is not None or (is_asked and _can_listen(int(port))):
        return Meeting(command, reservation=reservation)
    who = holder(int(port)) or "another launch or a program of another user"
    if is_asked or PLACE in command:
        everywhere = " on every host" if PLACE in command else ""
        message = (
            f"port {port} is in use by {who}: rank 0 cannot listen there\n"
            f"  hint: end that program, or set MASTER_PORT to another port{everywhere}"
        )
        raise RunError(message, command=tuple(command), code=1, tail="")
    free = _next_free(int(port) + 1)
    chosen = str(free.getsockname()[1])
    changed = list(command)
    changed[changed.index(PORT) + 1] = chosen
    return Meeting(changed, f"port {port} is in use by {who}: the ranks meet at {chosen}", free)


def holder(port: int) -> str:
    """The program that listens on a port; empty where none does, or another user's."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in _text(PROC / "net" / table).splitlines()[1:]:
            cells = line.split()
            if cells[1].endswith(f":{port:04X}") and cells[3] == LISTENS:
                sockets.add(f"socket:[{cells[9]}]")
    for link in PROC.glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if str(link.readlink()) in sockets:
                pid = link.parts[2]
                return f"{_text(PROC / pid / 'comm').strip()[:40]} (pid {pid})"
    return ""


def _value(command: Sequence[str], option: str) -> str:
    """The word after an option of the launcher; empty where there is none."""
    words = list(command)
    return words[words.index(option) + 1] if option in words[:-1] else ""


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine's."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM) if address else []
        for family, *_, place in found:
            with socket.socket(family, socket.SOCK_STREAM) as probe, suppress(OSError):
                probe.bind(place)
                return True
    return False


def _reserved(port: int) -> socket.socket | None:
    """A socket that keeps a port for rank 0; none where anybody uses the port. 0: any free one."""
    bound = socket.socket()
    try:
        bound.bind(("", port))
    except OSError:
        bound.close()
        return None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def _can_listen(port: int) -> bool:
    """Whether rank 0 could listen: only connections of an ended run may be left on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError:
            return False
    return True


def _next_free(first: int) -> socket.socket:
    """The reservation of the next port that nobody uses."""
    for port in range(first, LAST + 1):
        found = _reserved(port)
        if found is not None:
            return found
    found = _reserved(0)
    if found is None:
        raise RunError("no TCP port is free on this machine", command=(), code=1, tail="")
    return found


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
