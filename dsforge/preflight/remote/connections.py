"""Connections between hosts: each one calls all others on the port of the job.

Every host listens on the master port, not only the first: a firewall that lets it through on one
host rarely treats the others alike, and the ranks open ports of their own between all pairs later.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dsforge.preflight.remote.machine import ipv4_addresses, number, text

CONNECT_S, ANSWER_S, MAX_STREAM_S = 3.0, 3.0, 10.0
CHUNK_BYTES = 1 << 18
CALLERS = 32
GREETING_BYTES = 64
IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 14, 10, 3  # linux/in.h
HEADERS_BYTES = 28  # of IPv4 and UDP
SMALL_BYTES, UDP_TRIES, UDP_WAIT_S = 64, 3, 0.25
LISTENS = "0A"
STREAM = b"stream\n"


def listen(port: int, token: str) -> dict[str, Any]:
    """Answer on the port of the job from now on, or say who holds it."""
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", port), family=family, backlog=256, dualstack_ipv6=both)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("", port))
    except OSError as error:
        return {"error": error.strerror or str(error), "holder": holder(port)}
    threading.Thread(target=_accept, args=(server, token.encode()), daemon=True).start()
    threading.Thread(target=_echo, args=(datagrams,), daemon=True).start()
    return {"error": "", "holder": ""}


def _accept(server: socket.socket, token: bytes) -> None:
    while True:
        caller, _ = server.accept()
        threading.Thread(target=_serve, args=(caller, token), daemon=True).start()


def _serve(caller: socket.socket, token: bytes) -> None:
    """Greet with the token; a caller that then streams is told how much came, and how fast."""
    with contextlib.suppress(OSError), caller:
        caller.settimeout(MAX_STREAM_S)
        caller.sendall(token + b"\n")
        if caller.recv(len(STREAM)) != STREAM:
            return
        received, begin = 0, time.monotonic()
        while data := caller.recv(CHUNK_BYTES):
            received += len(data)
        rate = {"bytes": received, "seconds": time.monotonic() - begin}
        caller.sendall(json.dumps(rate).encode() + b"\n")


def _echo(datagrams: socket.socket) -> None:
    """Return the beginning of every datagram."""
    while True:
        with contextlib.suppress(OSError):
            data, caller = datagrams.recvfrom(1 << 16)
            datagrams.sendto(data[:SMALL_BYTES], caller)


def reach(peers: dict[str, str], port: int) -> list[dict[str, Any]]:
    """What comes of calling each peer on the port of the job; `peers` has the token of each."""
    names = {address: name for name, address in ipv4_addresses()}
    with ThreadPoolExecutor(CALLERS) as callers:
        return list(callers.map(lambda peer: _call(peer, port, peers[peer], names), peers))


def _call(peer: str, port: int, token: str, names: dict[str, str]) -> dict[str, Any]:
    """One peer: whether it answers, by which interface, and the largest datagram that arrives."""
    found: dict[str, Any] = {"peer": peer, "error": "", "interface": "", "source": ""}
    try:
        with socket.create_connection((peer, port), timeout=CONNECT_S) as call:
            call.settimeout(ANSWER_S)
            found["source"] = call.getsockname()[0]
            found["interface"] = names.get(found["source"], "")
            is_ours = call.recv(GREETING_BYTES).strip() == token.encode()
            mtu = call.getsockopt(socket.IPPROTO_IP, IP_MTU) if call.family == socket.AF_INET else 0
    except OSError as error:
        return {**found, "error": error.strerror or str(error) or "no answer"}
    if not is_ours:
        return {**found, "error": "another host or program responds"}
    if mtu and found["interface"]:
        own = int(number(Path("/sys/class/net") / found["interface"] / "mtu") or mtu)
        found["mtu"], found["mtu_passes"] = own, _passes(peer, port, own)
    return found


def _passes(peer: str, port: int, mtu: int) -> bool | None:
    """Whether a full packet arrives in one piece; none where not even small datagrams do."""
    if not _answered(peer, port, SMALL_BYTES):
        return None
    return _answered(peer, port, mtu - HEADERS_BYTES)


def _answered(peer: str, port: int, size: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        sender.settimeout(UDP_WAIT_S)
        for _ in range(UDP_TRIES):
            with contextlib.suppress(OSError):
                sender.sendto(bytes(size), (peer, port))
                sender.recv(SMALL_BYTES)
                return True
    return False


def stream(peer: str, port: int, seconds: float) -> dict[str, Any]:
    """Bytes and seconds of one TCP stream to a peer, as the peer counted them."""
    try:
        with socket.create_connection((peer, port), timeout=CONNECT_S) as call:
            call.settimeout(MAX_STREAM_S)
            call.recv(GREETING_BYTES)
            call.sendall(STREAM)
            data, end = bytes(CHUNK_BYTES), time.monotonic() + seconds
            while time.monotonic() < end:
                call.sendall(data)
            call.shutdown(socket.SHUT_WR)
            counted = json.loads(call.recv(1 << 10))
            return {"peer": peer, "error": "", **counted}
    except (OSError, ValueError) as error:
        return {"peer": peer, "error": getattr(error, "strerror", None) or str(error)}


def holder(port: int) -> str:
    """The program that listens on a port, where this user may see it."""
    wanted = set()
    for table in ("tcp", "tcp6"):
        for line in text(Path("/proc/net") / table).splitlines()[1:]:
            cells = line.split()
            if cells[1].endswith(f":{port:04X}") and cells[3] == LISTENS:
                wanted.add(f"socket:[{cells[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if wanted and str(link.readlink()) in wanted:
                pid = link.parts[2]
                return f"{text(Path('/proc') / pid / 'comm')[:40]} (pid {pid})"
    return ""
