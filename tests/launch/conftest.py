"""Hosts and a tiny model for launch tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import hosts
import planting
import pytest
from tiny_job import write_model

SLOW_LOGIN_S = 10.0


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hosts.Hosts]:
    """Two machines with addresses and sshd; skips with the reason where they cannot be made."""
    lacking = hosts.missing()
    if lacking:
        pytest.skip(lacking)
    with hosts.hosts(tmp_path_factory.mktemp("hosts") / "ssh") as made:
        check_login(made)
        yield made


def check_login(made: hosts.Hosts) -> None:
    """Time one login: where it is slow, each of many tests would run into its time limit.

    What a shell reads at its start (`/etc/profile`, `~/.ssh/rc`) is the only part of the user's own
    settings that a login to a test host sees.
    """
    words = ("ssh", "-p", str(hosts.SSH_PORT), made.addresses[1], "true")
    begin = time.monotonic()
    done = made.run(words, timeout_s=120)
    seconds = time.monotonic() - begin
    if done.code or seconds > SLOW_LOGIN_S:
        pytest.fail(
            f"a login to a test host took {seconds:.0f} s (exit code {done.code}): look at what a "
            "shell of root does when it starts; these tests allow it "
            f"{SLOW_LOGIN_S:.0f} s\n{done.output}"
        )


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama with random weights and its tokenizer."""
    return write_model(tmp_path_factory.mktemp("tiny") / "llama")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many of the planted faults were found."""
    if planting.COUNTS:
        terminalreporter.write_line(planting.counted())
