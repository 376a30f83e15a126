"""Two hosts on one machine, so that the launch over ssh is tested for real.

Each host is a network namespace with its own address and its own sshd; a bridge in a third
namespace joins them, so no packet leaves the machine or meets its other interfaces. Nothing of the
user's is read or changed: keys, known hosts and ssh settings lie in a temporary folder, and a small
`ssh` in front of the real one on PATH points to them (pdsh and DeepSpeed both call `ssh` by name).
The hosts' own /etc/passwd gives root a plain shell: that of a developer may read start-up files for
seconds, once for each connection.

The namespaces carry the id of the process that made them. Leaving the `with` removes them and
ends what runs inside; what a killed run left behind is found by its dead id and removed first.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dsforge import process
from dsforge.errors import RunError

PREFIX = "dsforge-test"
NETWORK = "10.77.0"  # no one else can see it: runs at the same time may share it
INTERFACE = "eth0"
SSH_PORT = 2222
SSHD = "/usr/sbin/sshd"
# `ip netns exec` gives the command a view of mounts of its own, which ends with it.
WITH_PASSWD = ("sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"')
START_LIMIT_S = 10.0


@dataclass(frozen=True)
class Host:
    """One test host: its network namespace and the address of its only interface."""

    namespace: str
    address: str

    def pids(self) -> list[int]:
        """Processes that run on the host."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def rank_environment(self) -> dict[str, str]:
        """The environment of a training rank on the host; empty where none runs."""
        for pid in self.pids():
            with suppress(OSError):
                text = Path(f"/proc/{pid}/environ").read_bytes().decode()
                found = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
                if "LOCAL_RANK" in found:
                    return found
        return {}


@dataclass(frozen=True)
class Hosts:
    """The hosts, and how a user sits down at the first one."""

    hosts: tuple[Host, ...]
    bin: Path
    services: tuple[int, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses in order."""
        return tuple(host.address for host in self.hosts)

    def run(
        self,
        command: tuple[str, ...],
        *,
        timeout_s: float,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> process.Completed:
        """A command that a user starts on the first host; what it leaves running is ended."""
        path = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        inside = ("ip", "netns", "exec", self.hosts[0].namespace, *command)
        try:
            return process.run(
                inside,
                timeout_s=timeout_s,
                cwd=cwd,
                environment={**path, **(environment or {})},
                on_line=on_line,
            )
        finally:
            self.end_jobs()

    @contextmanager
    def unplugged(self, index: int) -> Iterator[None]:
        """Inside, the host has no network."""
        link = ("-n", self.hosts[index].namespace, "link", "set", INTERFACE)
        _ip(*link, "down")
        try:
            yield
        finally:
            _ip(*link, "up")

    def end_jobs(self) -> None:
        """End everything on the hosts except their sshd."""
        for host in self.hosts:
            _end(pid for pid in host.pids() if pid not in self.services)


def missing() -> str:
    """What this machine lacks for test hosts; empty where nothing does."""
    if os.geteuid() != 0:
        return "two test hosts need root (network namespaces)"
    tools = [tool for tool in ("ip", "ssh", "ssh-keygen", "pdsh") if shutil.which(tool) is None]
    tools += [] if Path(SSHD).exists() else ["sshd"]
    if tools:
        return f"two test hosts need {', '.join(tools)} (see scripts/system.sh)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        _ip("-n", probe, "link", "add", "br0", "type", "bridge")
        _ip("-n", probe, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    except subprocess.CalledProcessError as error:
        return (
            f"two test hosts need network namespaces with veth and bridge: {error.stderr.strip()}"
        )
    finally:
        with suppress(RunError):
            _ip("netns", "del", probe)
    return ""


@contextmanager
def hosts(folder: Path, count: int = 2) -> Iterator[Hosts]:
    """Running hosts with `folder` for their keys and settings; removed at the end."""
    remove_leftovers()
    name = f"{PREFIX}-{os.getpid()}"
    made = tuple(Host(f"{name}-{n}", f"{NETWORK}.{n}") for n in range(1, count + 1))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        _connect(made, f"{name}-switch")
        _write_keys(folder)
        servers += [_start_sshd(host, folder) for host in made]
        _write_client(folder, made)
        yield Hosts(made, folder / "bin", tuple(server.pid for server in servers))
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        _remove([host.namespace for host in made] + [f"{name}-switch"])


def remove_leftovers() -> None:
    """Remove the namespaces of runs whose process has died, and what still runs inside."""
    for name in namespaces():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-\w+", name)
        if found and not Path("/proc", found[1]).exists():
            _remove([name])


def namespaces() -> list[str]:
    """Names of all network namespaces of this machine."""
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]


def _connect(made: tuple[Host, ...], switch: str) -> None:
    """Make the namespaces and plug each into a bridge."""
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "br0", "type", "bridge")
    _ip("-n", switch, "link", "set", "br0", "up")
    for n, host in enumerate(made, 1):
        _ip("netns", "add", host.namespace)
        peer = ("peer", "name", INTERFACE, "netns", host.namespace)
        _ip("-n", switch, "link", "add", f"port{n}", "type", "veth", *peer)
        _ip("-n", switch, "link", "set", f"port{n}", "master", "br0", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
        _ip("-n", host.namespace, "link", "set", INTERFACE, "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")


def _write_keys(folder: Path) -> None:
    """A key of the hosts, a key of the user, and the user's right to log in."""
    folder.mkdir(parents=True, exist_ok=True)
    for key in ("host_key", "user_key"):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            PREFIX,
            "-f",
            str(folder / key),
        ]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")


def _start_sshd(host: Host, folder: Path) -> subprocess.Popen[bytes]:
    """The sshd of one host, once it answers."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists on it
    config = folder / f"sshd_{host.address}"
    settings = {
        "Port": SSH_PORT,
        "ListenAddress": host.address,
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PermitRootLogin": "prohibit-password",
        "PasswordAuthentication": "no",
        "StrictModes": "no",  # temporary folders are writable for others
        "UsePAM": "no",
        "PidFile": "none",
        "MaxStartups": "100",
    }
    config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    log = folder / f"sshd_{host.address}.log"
    passwd = _write_passwd(folder)
    command = ["ip", "netns", "exec", host.namespace, *WITH_PASSWD, str(passwd)]
    command += [SSHD, "-D", "-f", str(config), "-E", str(log)]
    quiet = subprocess.DEVNULL  # a pipe of ours held open would outlive a killed run
    server = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    deadline = time.monotonic() + START_LIMIT_S
    while not _listens(host):
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise RuntimeError(f"sshd does not answer on {host.address}: {log.read_text()}")
        time.sleep(0.05)
    return server


def _write_passwd(folder: Path) -> Path:
    """A copy of /etc/passwd with /bin/sh as the shell of root."""
    lines = Path("/etc/passwd").read_text().splitlines()
    users = [line.split(":") for line in lines]
    plain = [[*user[:-1], "/bin/sh"] if user[0] == "root" else user for user in users]
    passwd = folder / "passwd"
    passwd.write_text("".join(":".join(user) + "\n" for user in plain))
    return passwd


def _listens(host: Host) -> bool:
    """Whether something listens on the ssh port of the host."""
    table = _ip("netns", "exec", host.namespace, "cat", "/proc/net/tcp")
    local = f"{socket.inet_aton(host.address)[::-1].hex().upper()}:{SSH_PORT:04X}"
    return any(line.split()[1:4:2] == [local, "0A"] for line in table.splitlines())


def _write_client(folder: Path, made: tuple[Host, ...]) -> None:
    """An `ssh` that knows the test keys and hosts and nothing else."""
    public = (folder / "host_key.pub").read_text()
    known = "".join(f"[{host.address}]:{SSH_PORT} {public}" for host in made)
    (folder / "known_hosts").write_text(known)
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder / 'user_key'}\nIdentitiesOnly yes\nIdentityAgent none\n"
        f"UserKnownHostsFile {folder / 'known_hosts'}\nGlobalKnownHostsFile /dev/null\n"
        "StrictHostKeyChecking yes\n"
    )
    script = folder / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "ssh_config"} "$@"\n')
    script.chmod(0o755)


def _remove(names: list[str]) -> None:
    """End what runs in the namespaces, then delete them; interfaces and bridge go with them."""
    for name in set(names) & set(namespaces()):
        _end(Host(name, "").pids())
        _ip("netns", "del", name)


def _end(pids: Iterator[int] | list[int]) -> None:
    """Kill processes of a test host and wait until they are gone."""
    waiting = list(pids)
    for pid in waiting:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + START_LIMIT_S
    while any(_is_alive(pid) for pid in waiting) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _ip(*words: str) -> str:
    """Output of `ip` with these words. Raises RunError."""
    return (
        process.run(("ip", *words), timeout_s=START_LIMIT_S).check("ip " + " ".join(words)).output
    )
