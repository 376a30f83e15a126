"""Network: every pair of hosts reaches each other, by the interface that the job names."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from dsforge.findings import Hit
from dsforge.hostfile import is_address
from dsforge.preflight.case import Case, check
from dsforge.preflight.host_facts import Call, HostFacts

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
EXACT = "="
EXCEPT = "^"


def _calls(case: Case) -> Iterator[tuple[str, Call]]:
    """Every call that was made, with the host that made it."""
    for host, calls in case.calls.items():
        for call in calls:
            yield host, call


def _is_open(case: Case, host: str) -> bool:
    """Whether the host could listen on the port of the job."""
    return host in case.listening and not case.listening[host].error


def route(case: Case, host: str) -> set[str]:
    """Interfaces by which a host reaches the others."""
    calls = case.calls.get(host, ())
    return {call.interface for call in calls if call.interface and call.peer in case.hosts}


@check(
    "port-taken",
    "network",
    "error",
    why="Rank 0 listens on the master port; with `Address already in use` it ends and the other "
    "ranks wait. Often the port is held by a rank of the last run that still runs.",
)
def port_taken(case: Case) -> Iterator[Hit]:
    """A first host on which another program has the master port."""
    found = case.listening.get(case.first)
    if found is None or not found.error:
        return
    port = case.job.master_port
    who = f": {found.holder}" if found.holder else ""
    message = f"port {port} is taken ({found.error}){who}"
    if len(case.job.entries) == 1 and case.job.names_master and not case.job.keeps_port:
        fix = "none needed: launch/deepspeed.sh and launch/torchrun.sh take a free port on one host"
        yield Hit((case.first,), message, fix, severity="warning")
        return
    fix = f"end that program, or start with another port: `MASTER_PORT={port + 1}`"
    yield Hit((case.first,), message, fix)


@check(
    "port-blocked",
    "network",
    "error",
    why="Ranks connect to the master port and then to ports of their own between all hosts. "
    "If a firewall drops the packets, the ranks hang until the rendezvous times out.",
)
def port_blocked(case: Case) -> Iterator[Hit]:
    """A pair of hosts that do not reach each other on the master port."""
    failed: dict[str, list[tuple[str, str]]] = {}
    for host, call in _calls(case):
        if call.error and _is_open(case, call.peer):
            failed.setdefault(call.peer, []).append((host, call.error))
    port = case.job.master_port
    for peer, callers in failed.items():
        message = f"port {port} cannot be reached from {', '.join(h for h, _ in callers)}"
        fix = (
            f"let TCP between the hosts through on every port, on {peer} and between: "
            f"`iptables -L -n`, `nft list ruleset`, or the cloud's security group"
        )
        yield Hit((peer,), f"{message}: {callers[0][1]}", fix)


@check(
    "mtu-path",
    "network",
    "error",
    why="Small packets pass and ssh works, but the first large tensor never arrives.",
)
def mtu_path(case: Case) -> Iterator[Hit]:
    """A path on which full-size packets are lost; a warning where TCP copes with it."""
    for host, call in _calls(case):
        if call.mtu_passes is False and call.peer in case.hosts:
            stream = case.streams.get(host)
            adapts = stream is not None and stream.peer == call.peer and not stream.error
            message = (
                f"packets of {call.mtu} bytes by {call.interface} do not arrive at {call.peer}"
            )
            fix = (
                "give all interfaces and switches between them one MTU: "
                f"`ip link set {call.interface} mtu 1500`"
            )
            yield Hit((host, call.peer), message, fix, severity="warning" if adapts else None)


@check(
    "mtu-differs",
    "network",
    "warning",
    why="Between hosts with different MTUs, switches fragment or drop packets.",
)
def mtu_differs(case: Case) -> Iterator[Hit]:
    """Hosts whose training interfaces have another MTU."""
    sizes: dict[str, int] = {}
    for host, facts in case.hosts.items():
        found = [i.mtu for i in facts.interfaces if i.name in route(case, host)]
        sizes.update({host: found[0]} if found else {})
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{host} {mtu}" for host, mtu in sizes.items())
        fix = f"set one MTU on all of them: `ip link set IFACE mtu {min(sizes.values())}`"
        yield Hit(tuple(sizes), f"the interfaces have different MTUs: {shown}", fix)


@check(
    "first-address",
    "network",
    "error",
    why="Without `--master_addr` the launcher takes the first address that `hostname -I` prints on "
    "the first host. Where that is a container bridge, every rank waits for an address on its "
    "own host.",
)
def first_address(case: Case) -> Iterator[Hit]:
    """A first host whose first address is not the one that the others reach."""
    facts = case.hosts.get(case.first)
    if facts is None or not facts.addresses or len(case.job.entries) < 2:  # noqa: PLR2004
        return
    taken = facts.addresses[0]
    used = {c.source for c in case.calls.get(case.first, ()) if c.source} | {case.first}
    failed = [c.error for _, c in _calls(case) if c.peer == taken and c.error]
    if taken in used or not failed:
        return
    name = next((i.name for i in facts.interfaces if taken in i.addresses), "")
    reached = min(used & facts.own_addresses or used)
    where = f"{taken} ({name})" if name else taken
    message = f"`hostname -I` gives {where} first, not {reached}; from other hosts: {failed[0]}"
    fix = f"start with `--master_addr {reached}`"
    if case.job.names_master:
        fix += ", as the scripts of `dsforge gen` do; do not call `deepspeed` without it"
    yield Hit((case.first,), message, fix, severity="warning" if case.job.names_master else None)


@check(
    "name-loopback",
    "network",
    "error",
    why="gloo announces the address that the host's own name resolves to; Debian's installer "
    "writes 127.0.1.1 for it into /etc/hosts.",
)
def name_loopback(case: Case) -> Iterator[Hit]:
    """CPU ranks that would announce a loopback address to other hosts."""
    if not case.job.on_cpu or "GLOO_SOCKET_IFNAME" in case.job.exported or len(case.hosts) == 1:
        return
    for host, facts in case.hosts.items():
        if is_address(facts.name_address) and ip_address(facts.name_address).is_loopback:
            names = sorted(route(case, host)) or ["IFACE"]
            message = f"its name {facts.host_name} resolves to {facts.name_address}"
            fix = f"`echo GLOO_SOCKET_IFNAME={names[0]} >>.deepspeed_env` in the run folder"
            yield Hit((host,), message, fix)


def named(variable: str, value: str, facts: HostFacts) -> set[str]:
    """Interfaces of a host that a *_SOCKET_IFNAME selects: NCCL by prefix, gloo by name."""
    names = {interface.name for interface in facts.interfaces} | {"lo"}
    wanted = [word for word in value.lstrip(EXCEPT + EXACT).split(",") if word]
    exact = value.lstrip(EXCEPT).startswith(EXACT) or variable.startswith("GLOO")
    chosen = {n for n in names if any(n == w if exact else n.startswith(w) for w in wanted)}
    return names - chosen - {"lo"} if value.startswith(EXCEPT) else chosen


@check(
    "interface-missing",
    "network",
    "error",
    why="NCCL ends with `no socket interface found`, gloo with `Unable to find address`.",
)
def interface_missing(case: Case) -> Iterator[Hit]:
    """A host without the interface that the job names."""
    for variable in INTERFACES:
        value = case.job.exported.get(variable, "")
        for host, facts in case.hosts.items():
            if value and not named(variable, value, facts):
                have = ", ".join(i.name for i in facts.interfaces) or "none that is up"
                message = f"{variable}={value}, and its interfaces are {have}"
                names = sorted(route(case, host)) or ["IFACE"]
                fix = f"write `{variable}={names[0]}` into .deepspeed_env, which the others"
                yield Hit((host,), message, f"{fix} reach; `interface` in the cluster file")


@check(
    "interface-wrong",
    "network",
    "error",
    why="The ranks announce the address of that interface, which other hosts cannot reach.",
)
def interface_wrong(case: Case) -> Iterator[Hit]:
    """An interface that exists and does not lead to the other hosts."""
    for variable in INTERFACES:
        value = case.job.exported.get(variable, "")
        for host, facts in case.hosts.items():
            ways, chosen = route(case, host), named(variable, value, facts) if value else set()
            if chosen and ways and not chosen & ways:
                good = min(ways)
                message = f"{variable}={value}, but the route to the other hosts uses {good}"
                fix = f"write `{variable}={good}` into .deepspeed_env; `interface: {good}` in the"
                yield Hit((host,), message, f"{fix} cluster file")
