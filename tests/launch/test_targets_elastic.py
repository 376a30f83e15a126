"""torchrun-elastic for real: two agents on two hosts; one host is lost, and comes back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import hosts
import pytest
import runs
from target_runs import generated, slow

pytestmark = [pytest.mark.launch, pytest.mark.hosts, pytest.mark.engine]

STEPS = 20_000  # more than the test waits for
LIMIT_S = 240


def agent(made: hosts.Host, run: Path, log: Path, endpoint: str) -> subprocess.Popen[str]:
    """An elastic agent on a host, as the script of the target starts it."""
    conf = f"join_timeout=60,last_call_timeout=3,is_host={endpoint.startswith(made.address)}"
    variables = runs.environment(
        RDZV_ENDPOINT=endpoint,
        RDZV_CONF=conf,
        LOCAL_ADDR=made.address,
        GLOO_SOCKET_IFNAME=hosts.INTERFACE,
        DEEPSPEED_TIMEOUT="1",
    )
    inside = ["ip", "netns", "exec", made.namespace, "for/torchrun-elastic/launch.sh"]
    with log.open("a") as out:
        return subprocess.Popen(inside, cwd=run, env=variables, text=True, stdout=out, stderr=out)


def wait_for(log: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Return when the log has the pattern."""
    end = time.monotonic() + LIMIT_S
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < end, log.read_text()[-3000:]
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.parametrize("engine", ["fsdp2", *slow("deepspeed", "ddp", "zero1")])
def test_a_lost_host_comes_back(
    engine: str, two_hosts: hosts.Hosts, tiny_llama: Path, tmp_path: Path
) -> None:
    """Two ranks become one and two again, with the global batch of the plan; all end on SIGTERM."""
    listed = [{"address": address, "slots": 1} for address in two_hosts.addresses]
    on = {"nodes": 2, "gpus_per_node": 1, "hosts": listed, "interface": hosts.INTERFACE}
    run = generated(tmp_path, tiny_llama, "torchrun-elastic", steps=STEPS, engine=engine, **on)
    endpoint = f"{two_hosts.addresses[0]}:{runs.free_port()}"
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    first, second = two_hosts.hosts
    try:
        stays = agent(first, run, logs[0], endpoint)
        lost = agent(second, run, logs[1], endpoint)
        wait_for(logs[0], r"step 4/", stays)
        for pid in second.pids():
            if pid not in two_hosts.services:
                os.kill(pid, signal.SIGKILL)
        lost.wait(60)
        wait_for(logs[0], r"saved by 2 ranks", stays)
        back = agent(second, run, logs[1], endpoint)
        wait_for(logs[0], r"saved by 1 ranks?\b(.|\n)*\nstep", stays)
        stays.send_signal(signal.SIGTERM)
        codes = (stays.wait(LIMIT_S), back.wait(60))
    finally:
        two_hosts.end_jobs()
    losses = runs.figures(run / "output", "loss")

    assert codes == (0, 0), logs[0].read_text()[-3000:]
    assert "stopped" in logs[0].read_text()
    assert losses[-1] < losses[0]
