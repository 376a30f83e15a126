"""Launch of the measuring ranks, by the launcher of the job, and collection of their answers."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from dsforge import process
from dsforge.diagnose import diagnose_files
from dsforge.diagnose.report import shortly
from dsforge.errors import DsforgeError, RunError
from dsforge.hostfile import hostfile_text, selected_devices, selection
from dsforge.origin import install_command
from dsforge.outside import UnreadableError, read_bytes
from dsforge.probe.messages import Answer, Ended, Question, World, read_answer
from dsforge.probe.nccl_log import NcclNetwork
from dsforge.specs import ClusterSpec, Host

Launcher = Literal["deepspeed", "torchrun", "python"]
MODULE = "dsforge.probe.rank"
MAX_ENV_BYTES = 64 * 1024
ENDED_BY_US = "terminated"  # what diagnose reads from ranks that the time limit ends
HANGS = (
    "the first launch also builds ops, which `--timeout 600` allows after `dsforge preflight "
    "--fix` has "
    "removed the lock of an interrupted build; preflight also checks the connections between hosts"
)
# PYTHONSAFEPATH: a file of the run folder named as a module of ours is not imported instead of it.
SPOKEN = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "PYTHONSAFEPATH": "1"}


class Found(NamedTuple):
    """What the ranks answered, and what NCCL said beside it."""

    world: World
    answers: tuple[Answer, ...]
    nccl: NcclNetwork
    launcher: Launcher
    complete: bool


def usual_launcher(cluster: ClusterSpec) -> Launcher:
    """The launcher of a job on the cluster: deepspeed; one rank alone needs none."""
    return "python" if cluster.gpus == 1 else "deepspeed"


def answered(
    cluster: ClusterSpec,
    question: Question,
    folder: Path,
    *,
    launcher: Launcher,
    timeout_s: float,
    on_answer: Callable[[Answer], None],
) -> Found:
    """What the ranks of a cluster measured; `folder` is where the job would be launched from.

    Raises DsforgeError where they cannot be started, RunError where none of them answered.
    """
    _check(cluster, launcher)
    answers: list[Answer] = []
    words = NcclNetwork()

    def listen(line: str) -> None:
        words.read_line(line)
        answer = read_answer(line)
        if answer is not None:
            answers.append(answer)
            on_answer(answer)

    with tempfile.TemporaryDirectory(prefix="dsforge-probe-") as temporary:
        command = _command(cluster, question, launcher, Path(temporary))
        environment = {**(_variables(folder) if cluster.nodes == 1 else _named()), **SPOKEN}
        done = process.run(
            command, timeout_s=timeout_s, cwd=folder, environment=environment, on_line=listen
        )
        world = next((answer for answer in answers if isinstance(answer, World)), None)
        if world is None or len(answers) == 1:
            raise _failure(done, Path(temporary), timeout_s)
    complete = any(isinstance(answer, Ended) for answer in answers)
    return Found(world, tuple(answers), words, launcher, complete)


def _check(cluster: ClusterSpec, launcher: Launcher) -> None:
    """Raises DsforgeError where the launch could not do what is asked."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("deepspeed") is None:
        hint = f"{install_command('train')}, on every host"
        raise DsforgeError(
            "torch and deepspeed are not installed: no measurement is possible", hint
        )
    if launcher != "deepspeed" and cluster.nodes > 1:
        message = f"`--launcher {launcher}` starts ranks on this machine only, not on "
        raise DsforgeError(message + f"{cluster.nodes} hosts", "use deepspeed, or one host")
    if launcher == "python" and cluster.gpus > 1:
        message = f"`--launcher python` is one rank, the cluster has {cluster.gpus}"
        raise DsforgeError(message, "use deepspeed or torchrun")
    if cluster.nodes > 1 and len(cluster.hosts) < cluster.nodes:
        message = f"{cluster.nodes} nodes are planned, but their addresses are unknown"
        raise DsforgeError(message, "give them with `--hostfile FILE`")


def _command(
    cluster: ClusterSpec, question: Question, launcher: Launcher, temporary: Path
) -> tuple[str, ...]:
    """The command that starts every rank."""
    port = os.environ.get("MASTER_PORT") or str(_free_port())
    meeting: tuple[str, ...] = ("--master_addr", "127.0.0.1", "--master_port", port)
    ranked: tuple[str, ...] = (MODULE,)
    if launcher == "torchrun":
        ranks = ("--nnodes", "1", "--nproc_per_node", str(cluster.gpus_per_node))
        ranked = ("torch.distributed.run", *ranks, *meeting, "--module", MODULE)
    elif launcher == "deepspeed":
        if cluster.nodes > 1:
            meeting = _first_host(cluster, port)
        else:
            cluster = _here(cluster)
        hostfile = temporary / "hostfile"
        hostfile.write_text(hostfile_text(cluster.hosts), encoding="utf-8")
        words = ("--hostfile", str(hostfile), "--no_ssh_check", "--no_local_rank", *meeting)
        selected = selection(cluster)
        words += ("--include", selected) if selected else ()
        ranked = ("deepspeed.launcher.runner", *words, "--module", MODULE)
    return (sys.executable, "-m", *ranked, question.word())


def _here(cluster: ClusterSpec) -> ClusterSpec:
    """A cluster of one node as this machine, with the devices that are selected."""
    devices = selected_devices(cluster)
    host = Host(
        address="localhost", slots=cluster.gpus_per_node, devices=devices[0] if devices else ()
    )
    return cluster.model_copy(update={"hosts": (host,)})


def _first_host(cluster: ClusterSpec, port: str) -> tuple[str, ...]:
    """How the ranks of several hosts meet, and how they are reached."""
    address, ssh_port = cluster.hosts[0].address, str(cluster.ssh_port)
    words = ("--master_addr", address, "--master_port", port, "--ssh_port", ssh_port)
    return (*words, f"--launcher_args=-l {cluster.ssh_user}") if cluster.ssh_user else words


def _named() -> dict[str, str]:
    """Which environment file the launcher reads, as the generated script says it."""
    return {"DS_ENV_FILE": ".deepspeed_env"}


def _variables(folder: Path) -> dict[str, str]:
    """The variables of the run folder's `.deepspeed_env`: on one node no launcher reads it."""
    try:
        data = read_bytes(folder / ".deepspeed_env", MAX_ENV_BYTES, pipes=False)
    except UnreadableError:
        return {}
    text = data.decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines() if "\0" not in line)
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def _failure(done: process.Completed, temporary: Path, timeout_s: float) -> RunError:
    """Why nothing was measured: the cause that the output shows, or its last lines."""
    log = temporary / "log.txt"
    log.write_text(done.output, encoding="utf-8", errors="replace")
    late = done.code == process.TIMEOUT_CODE
    what = f"within {timeout_s:.0f} s" if late else f"({done.code})"
    causes = [c for c in diagnose_files([log]) if not (late and c.rule == ENDED_BY_US)]
    cause = "\n".join(shortly(causes))
    return RunError(
        f"the ranks ended before the first measurement {what}",
        cause or HANGS,
        command=done.command,
        code=done.code,
        tail=done.tail,
    )


def _free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("", 0))
        return int(probing.getsockname()[1])
