"""The port of a launch with real sockets: kept, replaced by a free one, or refused."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dsforge.errors import RunError
from dsforge.train.meeting_port import PORT, Meeting, holder, meeting

ONE_NODE = ["torchrun", "--nnodes", "1", "--master_addr", "127.0.0.1", PORT]
DEEPSPEED = ["deepspeed", "--hostfile", "hostfile", "--master_addr", "127.0.0.1", PORT]
ELSEWHERE = ["deepspeed", "--hostfile", "hostfile", "--master_addr", "192.0.2.1", PORT]
MANY_NODES = ["torchrun", "--nnodes", "2", "--node_rank", "0", *ONE_NODE[3:]]
Met = Callable[[list[str], dict[str, str]], Meeting]
END = ["--module", "dsforge.train", "train.yaml"]


@contextmanager
def listening(address: str = "") -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server((address, 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def met() -> Iterator[Met]:
    """Launches with their ports; what they reserve is free again after the test."""
    made: list[Meeting] = []

    def meet(words: list[str], environment: dict[str, str]) -> Meeting:
        made.append(meeting(words, environment))
        return made[-1]

    yield meet
    for each in made:
        if each.reservation is not None:
            each.reservation.close()


def port_of(found: Meeting) -> int:
    """The port in the command of a launch."""
    return int(found.command[found.command.index(PORT) + 1])


@pytest.mark.parametrize("words", [ONE_NODE, DEEPSPEED], ids=["torchrun", "deepspeed"])
@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_a_port_in_use_is_replaced_and_its_user_named(
    words: list[str], address: str, met: Met
) -> None:
    """Its user is named; the rest of the command stays as it was."""
    with listening(address) as port:
        found = met([*words, str(port), *END], {})

    assert port_of(found) != port
    assert found.command == [*words, str(port_of(found)), *END]
    assert f"port {port} is in use by " in found.said
    assert f"(pid {os.getpid()})" in found.said
    assert str(port_of(found)) in found.said


def test_a_free_port_stays(met: Met) -> None:
    """Nothing is said of it, whoever asked for it."""
    asked: tuple[dict[str, str], ...] = ({}, {"MASTER_PORT": "x"})
    for environment in asked:
        words = [*ONE_NODE, str(free_port()), *END]
        found = met(words, environment)
        assert (found.command, found.said) == (words, "")


def test_launches_at_the_same_time_have_ports_of_their_own(met: Met) -> None:
    """Though no rank listens yet: each reservation keeps the port from the others."""
    first, found, lock = free_port(), [], threading.Barrier(8)

    def launched() -> None:
        lock.wait()
        found.append(met([*ONE_NODE, str(first), *END], {}))

    threads = [threading.Thread(target=launched) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({port_of(each) for each in found}) == len(found) == 8
    assert first in {port_of(each) for each in found}


def test_rank_0_may_listen_on_a_reserved_port_and_nobody_else_may_bind_it(met: Met) -> None:
    """As servers of torch do: with SO_REUSEADDR, on all addresses."""
    found = met([*ONE_NODE, str(free_port()), *END], {})
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("", port_of(found)))
    with socket.create_server(("", port_of(found)), reuse_port=False) as server:  # sets it
        assert server.getsockname()[1] == port_of(found)
        assert f"(pid {os.getpid()})" in holder(port_of(found))


@pytest.mark.parametrize(
    ("words", "environment", "hint"),
    [
        (ONE_NODE, {"MASTER_PORT": "1"}, "set MASTER_PORT to another port"),
        (MANY_NODES, {}, "set MASTER_PORT to another port on every host"),
    ],
    ids=["asked for", "other hosts know it"],
)
def test_a_port_that_must_stay_is_refused(
    words: list[str], environment: dict[str, str], hint: str
) -> None:
    """With the program that uses it, and the way out."""
    with listening() as port, pytest.raises(RunError) as refused:
        meeting([*words, str(port), *END], environment)

    assert f"port {port} is in use by {Path('/proc/self/comm').read_text().strip()}" in (
        refused.value.message
    )
    assert hint in refused.value.message


@pytest.mark.parametrize(
    "words", [[*ELSEWHERE, "29500"], ["torchrun"], [*ONE_NODE, "x"], ONE_NODE, [*ONE_NODE, "0"]]
)
def test_what_is_not_known_here_stays(words: list[str], met: Met) -> None:
    """Rank 0 on another machine, no port, or none that could be one."""
    assert met([*words, *END], {}) == Meeting([*words, *END])


def test_connections_of_an_ended_run_do_not_refuse_a_port_that_was_asked_for(met: Met) -> None:
    """They stay for a minute in TIME_WAIT, and rank 0 may listen all the same."""
    with ExitStack() as ends:
        server = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        call = socket.create_connection(("127.0.0.1", port))
        answer, _ = server.accept()
        answer.close()  # the side that closes first waits
        call.close()
    found = met([*ONE_NODE, str(port), *END], {"MASTER_PORT": str(port)})

    assert port_of(found) == port


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_user_of_a_port_is_found_for_both_families() -> None:
    """A server on IPv6 alone uses the port as well."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert f"(pid {os.getpid()})" in holder(server.getsockname()[1])
    assert holder(free_port()) == ""
