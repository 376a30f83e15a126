"""Hosts: each one answers over the launcher's ssh, is listed once, and has the right time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from dsforge.findings import Hit
from dsforge.preflight.case import Case, check

SKEW_S, LARGE_SKEW_S = 1.0, 60.0
KEY = re.compile(r"Permission denied|Too many authentication failures")
HOST_KEY = re.compile(r"Host key verification failed|IDENTIFICATION HAS CHANGED")
NAME = re.compile(r"Could not resolve|Name or service not known|name resolution")
REFUSED = re.compile(r"Connection refused")
PYTHON = re.compile(r"python3?: .*not found|No such file or directory.*python", re.IGNORECASE)
ANSWER = re.compile(r"^the question |^its answer to ")
TOO_MUCH = re.compile(r"^prints too much ")
KNOWN = (TOO_MUCH, ANSWER, KEY, HOST_KEY, NAME, REFUSED, PYTHON)


def _unreachable_hosts(case: Case, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Hosts that did not answer and what ssh said, where the pattern is the first that matches."""
    for host, said in case.lost.items():
        if next((known for known in KNOWN if known.search(said)), None) is pattern:
            yield host, said


def _ssh(case: Case, host: str) -> str:
    """The ssh command to try by hand."""
    return " ".join(("ssh", *case.job.ssh, host))


@check(
    "ssh-key",
    "ssh",
    "error",
    why="The launcher logs in with a key and never types a password. DeepSpeed tries the first "
    "host only; failures of the others appear only when the ranks are already waiting.",
)
def ssh_key(case: Case) -> Iterator[Hit]:
    """A host that refuses the key."""
    for host, said in _unreachable_hosts(case, KEY):
        options = " ".join(case.job.ssh)
        fix = f"install the key there: `ssh-copy-id {options} {host}`".replace("  ", " ")
        yield Hit((host,), f"refuses the login without a password: {said}", fix)


@check(
    "ssh-host-key",
    "ssh",
    "error",
    why="With an unknown or changed host key ssh asks for confirmation, which a launcher cannot "
    "give.",
)
def ssh_host_key(case: Case) -> Iterator[Hit]:
    """A host whose key is unknown or has changed."""
    for host, said in _unreachable_hosts(case, HOST_KEY):
        fix = (
            f"compare the key with the host's and log in once by hand: `{_ssh(case, host)}`; "
            f"if it was set up anew, first `ssh-keygen -R {host}`"
        )
        yield Hit((host,), f"its host key is not the known one: {said}", fix)


@check(
    "host-unknown", "ssh", "error", why="A name is looked up on each host, by each host's rules."
)
def host_unknown(case: Case) -> Iterator[Hit]:
    """A host name that does not resolve."""
    for host, said in _unreachable_hosts(case, NAME):
        yield Hit((host,), f"its name does not resolve: {said}", "write its IP address in hostfile")


@check("ssh-refused", "ssh", "error", why="The host is up, but no sshd listens on this port.")
def ssh_refused(case: Case) -> Iterator[Hit]:
    """A host on which no sshd listens at this port."""
    for host, said in _unreachable_hosts(case, REFUSED):
        fix = "start sshd there, or set `ssh_port` in the cluster file to the port it listens on"
        yield Hit((host,), f"nothing listens for ssh: {said}", fix)


@check("no-python", "ssh", "error", why="The programs that inspect a host require Python 3.9.")
def no_python(case: Case) -> Iterator[Hit]:
    """A host without `python3`."""
    for host, said in _unreachable_hosts(case, PYTHON):
        fix = "install python3 there, or put it on the PATH of a remote shell"
        yield Hit((host,), f"has no `python3`: {said}", fix)


@check(
    "bad-answer",
    "ssh",
    "error",
    why="The answer of a host is used only if it has the expected form and size.",
)
def bad_answer(case: Case) -> Iterator[Hit]:
    """A host whose answer is not valid."""
    for host, said in _unreachable_hosts(case, ANSWER):
        fix = f"check its output there: `{_ssh(case, host)}`, then `dsforge preflight --local`"
        yield Hit((host,), said, fix)


@check(
    "loud-login",
    "ssh",
    "error",
    why="Output of login scripts precedes every answer, also in the logs of launchers.",
)
def loud_login(case: Case) -> Iterator[Hit]:
    """A host whose login scripts print without end."""
    for host, said in _unreachable_hosts(case, TOO_MUCH):
        fix = f"keep its login scripts silent without a terminal: `{_ssh(case, host)} true`"
        yield Hit((host,), said, fix)


@check(
    "host-down",
    "ssh",
    "error",
    why="The launcher starts the ranks of all other hosts, which wait for it until they time out.",
)
def host_down(case: Case) -> Iterator[Hit]:
    """A host that does not answer."""
    for host, said in case.lost.items():
        if not any(known.search(said) for known in KNOWN):
            fix = f"check that it is up: `{_ssh(case, host)}`; else remove it from hostfile"
            yield Hit((host,), f"does not answer: {said}", fix)


@check(
    "host-same",
    "ssh",
    "error",
    why="Two lines for one machine start its ranks twice on the same accelerators.",
)
def host_same(case: Case) -> Iterator[Hit]:
    """Two addresses of one machine."""
    macs = {h: frozenset(i.mac for i in f.interfaces if i.mac) for h, f in case.hosts.items()}
    for one, other in combinations(case.hosts, 2):
        if macs[one] and macs[one] == macs[other]:
            message = f"{one} and {other} are one machine, {case.hosts[one].host_name}"
            fix = f"remove one from hostfile: `sed -i '/^{re.escape(other)} /d' hostfile`"
            yield Hit((one, other), message, fix)


@check(
    "clock-skew",
    "clock",
    "warning",
    why="Logs of several hosts cannot be ordered, and files have times in the future, so that "
    "builds on shared disks start again; large differences invalidate certificates and tokens.",
)
def clock_skew(case: Case) -> Iterator[Hit]:
    """A host whose clock differs from the first one's."""
    base = case.clocks.get(case.first)
    for host, clock in case.clocks.items():
        if base is None or host == case.first:
            continue
        ahead = clock.ahead_s - base.ahead_s
        error = clock.error_s + base.error_s
        if abs(ahead) - error > SKEW_S:
            way = "ahead of" if ahead > 0 else "behind"
            message = f"its clock is {abs(ahead):.1f} s {way} that of {case.first}"
            fix = "synchronize it with NTP: `timedatectl set-ntp true`, or start chrony there"
            yield Hit(
                (host,), message, fix, severity="error" if abs(ahead) > LARGE_SKEW_S else None
            )
