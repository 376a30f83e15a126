"""A launch across two hosts that is stopped: all ranks save and end, and none is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hosts
import pytest
import runs
import tiny_job
from test_two_hosts import generate

pytestmark = [pytest.mark.launch, pytest.mark.hosts]
LIMIT_S = 120
IP = shutil.which("ip") or "ip"
TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL


@pytest.fixture
def run(two_hosts: hosts.Hosts, tmp_path: Path) -> Iterator[Path]:
    """A run folder for both hosts that never ends by itself."""
    model = tiny_job.write_model(tmp_path / "tiny")
    folder = generate(tmp_path / "job", model, two_hosts.addresses)
    job = folder / "train.yaml"
    job.write_text(job.read_text().replace("\nsteps: 12", "\nsteps: 100000"))
    yield folder
    two_hosts.end_jobs()


def started(two_hosts: hosts.Hosts, run: Path) -> subprocess.Popen[str]:
    """The generated script, on the first host."""
    path = f"{two_hosts.bin}:{os.environ['PATH']}"
    with (run / "log").open("w") as log:
        return subprocess.Popen(
            [IP, "netns", "exec", two_hosts.hosts[0].namespace, str(run / "launch/deepspeed.sh")],
            env={**os.environ, "PATH": path},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Return when something is so."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def left(two_hosts: hosts.Hosts) -> list[str]:
    """Ranks and launchers that run on the hosts."""
    found = []
    for host in two_hosts.hosts:
        for pid in host.pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found += [words] if "dsforge.train" in words else []
    return found


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (TERM, 0),
        pytest.param(INT, 130, marks=pytest.mark.slow),
        pytest.param(HUP, 0, marks=pytest.mark.slow),
        (KILL, -9),
    ],
)
def test_ranks_of_both_hosts_save_and_end(
    number: signal.Signals, code: int, two_hosts: hosts.Hosts, run: Path
) -> None:
    """The script alone gets the signal, on the first host."""
    script = started(two_hosts, run)
    runs.wait_for_lines(run, 2, script.poll)
    assert all(host.rank_environment() for host in two_hosts.hosts)
    script.send_signal(number)

    assert script.wait(LIMIT_S) == code, (run / "log").read_text()[-3000:]
    if number == KILL:
        wait_until(lambda: not left(two_hosts), "processes are left")
    assert left(two_hosts) == []
    done = len(runs.figures(run / "output", "loss"))
    names = [path.name for path in (run / "output/checkpoints").glob("global_step*")]
    assert names == [f"global_step{done}"], (run / "log").read_text()[-3000:]
    assert not (run / "output/.lock").exists()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("deepspeed.launcher.launch", id="in-the-login"),
        pytest.param("LOCAL_RANK", id="in-the-imports", marks=pytest.mark.slow),
    ],
)
def test_a_stop_before_the_first_step_leaves_nothing(
    words: str, two_hosts: hosts.Hosts, run: Path
) -> None:
    """Nothing is saved; ranks that were about to begin on either host end, too."""

    def is_there() -> bool:
        if words == "LOCAL_RANK":
            return all(host.rank_environment() for host in two_hosts.hosts)
        return any(words in found for found in left(two_hosts))

    script = started(two_hosts, run)
    wait_until(is_there, "nothing was started")
    begin = time.monotonic()
    script.send_signal(TERM)

    assert script.wait(LIMIT_S) == 128 + TERM, (run / "log").read_text()[-3000:]
    wait_until(lambda: not left(two_hosts), "processes are left")
    print(f"{words}: nothing left after {time.monotonic() - begin:.1f} s")
    assert not (run / "output/checkpoints").exists()


@pytest.mark.slow
def test_the_launcher_of_one_host_is_killed(two_hosts: hosts.Hosts, run: Path) -> None:
    """The ranks there hear it, and all ranks end."""
    script = started(two_hosts, run)
    runs.wait_for_lines(run, 2, script.poll)
    for pid in two_hosts.hosts[1].pids():
        if b"deepspeed.launcher.launch\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, KILL)

    assert script.wait(LIMIT_S) != 0
    wait_until(lambda: not left(two_hosts), "processes are left")


@pytest.mark.slow
def test_ranks_notice_that_their_logins_have_ended(two_hosts: hosts.Hosts, run: Path) -> None:
    """All that started them is killed: a line to the lost login may end them before the save."""
    script = started(two_hosts, run)
    runs.wait_for_lines(run, 2, script.poll)
    first = [pid for pid in two_hosts.hosts[0].pids() if pid not in two_hosts.services]
    for name in ("dsforge.train.attend", "bin/deepspeed", "pdsh", "ssh"):
        for pid in first:
            words = Path(f"/proc/{pid}/cmdline")
            if words.exists() and any(
                word.endswith(name) for word in words.read_text().split("\0")[:4]
            ):
                os.kill(pid, KILL)
    script.wait(LIMIT_S)
    wait_until(lambda: not left(two_hosts), "processes are left")
