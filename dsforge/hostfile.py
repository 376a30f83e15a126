r"""Hostfile text <-> hosts, by the rules of DeepSpeed's launcher and stricter.

DeepSpeed's parser (0.19.8, `_parse_hostfile` of `launcher/runner.py`) takes
`^(\S+)\s+slots=(\d+)`: it ignores what follows, takes `slots=0`, and hands the address to ssh and
pdsh as it stands, where `-oProxyCommand=...` or `$(...)` would do more than name a host. Every line
that could mean something else than it says is refused here, with its number, and all at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from dsforge.errors import Problem, SpecError

if TYPE_CHECKING:
    from dsforge.specs import (  # with pydantic, which entries alone need not pay
        ClusterSpec,
        Host,
    )

MAX_SLOTS = 1024  # no machine has more accelerators; more digits are a slip
LONGEST_NAME = 253  # RFC 1035

_LINE = re.compile(r"(\S+)[ \t]+slots=([0-9]+)")
_NAME = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*"
)
_NUMERIC = re.compile(r"[0-9.]+")
_FORM = "write `10.0.0.1 slots=8`"


class Entry(NamedTuple):
    """A host as it was written, and where; `devices` where only some of its slots are wanted."""

    address: str
    slots: int
    place: str
    devices: tuple[int, ...] = ()


def is_address(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def parse_hostfile(text: str, place: str) -> tuple[Host, ...]:
    """The hosts of a hostfile; `place` is what messages call it. SpecError with all bad lines."""
    from dsforge.specs import Host

    return tuple(Host(address=e.address, slots=e.slots) for e in hostfile_entries(text, place))


def hostfile_entries(text: str, place: str, *, by_name: bool = False) -> list[Entry]:
    """The hosts of a hostfile with the line of each. SpecError with all bad lines.

    With `by_name` nobody goes to the hosts, so that a loopback name among others is none of them.
    """
    entries: list[Entry] = []
    problems: list[Problem] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line, at = raw.strip(" \t\r"), f"{place}:{number}"
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            problems.append(_bad_line(line, at))
        else:
            digits = match[2].lstrip("0")
            slots = int(digits or 0) if len(digits) <= len(str(MAX_SLOTS)) else MAX_SLOTS + 1
            entries.append(Entry(match[1], slots, at))
    problems += entry_problems(entries, by_name=by_name)
    if not entries and not problems:
        problems = [Problem("hostfile-empty", "contains no host", _FORM, place)]
    if problems:
        raise SpecError(tuple(problems))
    return entries


def hostfile_text(hosts: Iterable[Host]) -> str:
    """A hostfile with one line for each host, that `parse_hostfile` reads back."""
    return "".join(f"{host.address} slots={host.listed_slots}\n" for host in hosts)


def selected_devices(cluster: ClusterSpec) -> tuple[tuple[int, ...], ...]:
    """Devices of each host; empty where every host gives its first ones."""
    hosts = [host.narrowed(cluster.gpus_per_node) for host in cluster.hosts[: cluster.nodes]]
    if not any(host.devices for host in hosts):
        return ()
    return tuple(host.devices or tuple(range(host.slots)) for host in hosts)


def selection(cluster: ClusterSpec) -> str:
    """`10.0.0.1:2,3@10.0.0.2:0,1`: the same in the words of DeepSpeed's `--include`."""
    pairs = zip(cluster.hosts, selected_devices(cluster), strict=False)
    return "@".join(f"{host.address}:{','.join(map(str, ids))}" for host, ids in pairs)


def entry_problems(entries: list[Entry], *, by_name: bool = False) -> list[Problem]:
    """What is wrong with the addresses and slots of a list of hosts."""
    problems: list[Problem] = []
    first: dict[str, str] = {}
    for address, slots, place, _ in entries:
        found = _address_problem(address, place)
        if found is None and len(entries) > 1 and not by_name and _is_loopback(address):
            message = f"address `{address}` is the loopback address, but there are several hosts"
            found = Problem("host-loopback", message, "write its address on the network", place)
        key = canonical(address)
        if found is None and key in first:
            message = f"host `{address}` occurs twice; first at {first[key]}"
            found = Problem("host-twice", message, "one line for each host", place)
        first.setdefault(key, place)
        problems += [found] if found else []
        if not 1 <= slots <= MAX_SLOTS:
            shown = f"over {MAX_SLOTS}" if slots > MAX_SLOTS else f"={slots}"
            message = f"slots ({shown}) must be 1 to {MAX_SLOTS}"
            problems.append(
                Problem(
                    "host-slots", message, "slots is the number of accelerators of the host", place
                )
            )
    return problems


def _is_of_this_network(address: str) -> bool:
    """Whether an address is in 0.0.0.0/8, which no host has (RFC 1122, section 3.2.1.3)."""
    return address.startswith("0.")


def _address_problem(address: str, place: str) -> Problem | None:
    """What is wrong with one address, if anything."""
    user, at, host = address.rpartition("@")
    if at and _NAME.fullmatch(user) and (_NAME.fullmatch(host) or is_address(host)):
        hint = f"write `{host}` here, and `ssh_user: {user}` in the cluster file"
        return Problem("host-user", f"host `{address}` contains a user name", hint, place)
    if is_address(address):
        number = ip_address(address)
        if number.is_unspecified or number.is_multicast or _is_of_this_network(address):
            return Problem("host-address", f"`{address}` is not a host address", "", place)
        return None
    shown = ascii(address[:60])[1:-1]
    if not _NAME.fullmatch(address) or len(address) > LONGEST_NAME:
        message = f"host `{shown}` is neither an IP address nor a host name"
        hint = "letters, digits, `.`, `-` and `_`, starting and ending with a letter or digit"
        return Problem("host-name", message, hint, place)
    if _NUMERIC.fullmatch(address):
        message = f"`{shown}` is not an IP address: four numbers from 0 to 255, without leading 0"
        return Problem("host-address", message, "", place)
    return None


def _bad_line(line: str, place: str) -> Problem:
    """Why a line is no host."""
    shown = ascii(line[:60])[1:-1]
    if not line.isprintable() and not line.replace("\t", " ").isprintable():
        message = f"`{shown}` contains a control character"
        return Problem("hostfile-line", message, _FORM, place)
    begun = _LINE.match(line)
    if begun:
        rest = ascii(line[begun.end() :][:40])[1:-1]
        hint = "write comments on a separate line" if "#" in rest else _FORM
        return Problem("hostfile-line", f"unexpected text `{rest}` after the slots", hint, place)
    return Problem("hostfile-line", f"`{shown}` is not `ADDRESS slots=N`", _FORM, place)


def canonical(address: str) -> str:
    """One spelling for each host."""
    return str(ip_address(address)) if is_address(address) else address.lower()


def _is_loopback(address: str) -> bool:
    if is_address(address):
        return ip_address(address).is_loopback
    return address.lower() == "localhost"
