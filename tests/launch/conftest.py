"""Hosts and a tiny model for launch tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hosts
import planting
import pytest
from tiny_job import write_model


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hosts.Hosts]:
    """Two machines with addresses and sshd; skips with the reason where they cannot be made."""
    lacking = hosts.missing()
    if lacking:
        pytest.skip(lacking)
    with hosts.hosts(tmp_path_factory.mktemp("hosts") / "ssh") as made:
        yield made


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama with random weights and its tokenizer."""
    return write_model(tmp_path_factory.mktemp("tiny") / "llama")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many of the planted faults were found."""
    if planting.COUNTS:
        terminalreporter.write_line(planting.counted())
