"""Several launches on one machine at the same time: each has a port of its own, and trains."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
import runs
from test_train_generated import generated, rows

pytestmark = [pytest.mark.launch, pytest.mark.engine]
USUAL = 29500


def test_launches_at_the_same_time_train(tiny_llama: Path, tmp_path: Path) -> None:
    """With the usual port in use, and without a word about ports from the user."""
    data = {"train": str(rows(tmp_path / "data.jsonl", "prompt"))}
    folders = [generated(tmp_path / name, tiny_llama, data, "fp32") for name in ("one", "two")]
    scripts = ("deepspeed", "torchrun")
    environment = {k: v for k, v in runs.environment().items() if k != "MASTER_PORT"}
    with socket.socket() as server:
        try:
            server.bind(("", USUAL))
            server.listen()
        except OSError:
            pass  # somebody uses it already
        processes = [
            subprocess.Popen(
                [str(folder / f"launch/{script}.sh")],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for script, folder in zip(scripts, folders, strict=True)
        ]
        said = [process.communicate(timeout=600)[0] for process in processes]
    ports = [re.findall(rf"port {USUAL} is in use by .*: the ranks meet at (\d+)", s) for s in said]

    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)[-6000:]
    assert all(len(runs.figures(folder / "output", "loss")) == 6 for folder in folders)
    assert [len(found) for found in ports] == [1, 1]
    assert ports[0] != ports[1]


def test_a_port_that_was_asked_for_and_is_in_use_is_refused(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """At once, by the name of its user, before any rank is started."""
    data = {"train": str(rows(tmp_path / "data.jsonl", "prompt"))}
    folder = generated(tmp_path, tiny_llama, data, "fp32")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = runs.finished(["bash", "launch/deepspeed.sh"], folder, MASTER_PORT=port)

    assert done.returncode == 1
    assert f"port {port} is in use by " in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
    assert "set MASTER_PORT to another port" in done.stderr
    assert not (folder / "output").exists()
