"""The test hosts themselves: apart from each other, reachable by ssh and pdsh, gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hosts
import pytest

pytestmark = [pytest.mark.launch, pytest.mark.hosts]

CRASHING = """
import os, sys, signal
from pathlib import Path
sys.path.insert(0, {here!r})
import hosts
with hosts.hosts(Path({folder!r})) as made:
    print(made.hosts[0].namespace, *made.services, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_pdsh_reaches_both_hosts_by_address(two_hosts: hosts.Hosts) -> None:
    """A command sent with pdsh runs on each host, with that host's own address."""
    command = ("pdsh", "-S", "-R", "ssh", "-w", ",".join(two_hosts.addresses), "hostname -I")
    port = {"PDSH_SSH_ARGS_APPEND": f"-p {hosts.SSH_PORT}"}

    done = two_hosts.run(command, timeout_s=20, environment=port).check("pdsh")

    assert sorted(done.output.split("\n"))[1:] == sorted(f"{a}: {a} " for a in two_hosts.addresses)


def test_a_login_reads_nothing_of_the_users_bash(two_hosts: hosts.Hosts) -> None:
    """Whatever shell root has here, logins are plain `sh`: no `.bashrc` can make them slow."""
    second = two_hosts.hosts[1]
    words = (
        "ssh",
        "-p",
        str(hosts.SSH_PORT),
        second.address,
        'echo "$SHELL ${BASH_VERSION:-none}"',
    )

    done = two_hosts.run(words, timeout_s=20).check("ssh")

    assert done.output.split()[-2:] == ["/bin/sh", "none"]


def test_jobs_that_are_left_behind_are_ended(two_hosts: hosts.Hosts) -> None:
    """A process that a run leaves on the second host does not outlive the run."""
    second = two_hosts.hosts[1]
    words = ("ssh", "-p", str(hosts.SSH_PORT), second.address, "sleep 300 >/dev/null 2>&1 &")

    two_hosts.run(words, timeout_s=20).check("ssh")

    assert set(second.pids()) == set(two_hosts.services) & set(second.pids())


def test_hosts_of_a_killed_run_are_removed(two_hosts: hosts.Hosts, tmp_path: Path) -> None:
    """What a killed run leaves, sshd included, goes with the next clean-up, and only that."""
    script = CRASHING.format(here=str(Path(hosts.__file__).parent), folder=str(tmp_path / "ssh"))
    crashed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    name, *services = crashed.stdout.split()

    before = hosts.namespaces()
    hosts.remove_leftovers()

    assert name in before
    assert name not in hosts.namespaces()
    assert not any(hosts._is_alive(int(pid)) for pid in services)
    assert two_hosts.hosts[0].namespace in hosts.namespaces()
