"""Hosts for launch tests."""

from __future__ import annotations

from collections.abc import Iterator

import hosts
import pytest


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hosts.Hosts]:
    """Two machines with addresses and sshd; skips with the reason where they cannot be made."""
    lacking = hosts.missing()
    if lacking:
        pytest.skip(lacking)
    with hosts.hosts(tmp_path_factory.mktemp("hosts") / "ssh") as made:
        yield made
