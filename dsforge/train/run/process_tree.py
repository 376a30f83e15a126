"""Processes of this machine, from /proc: parents, children, and whether they are alive.

A process id is used again after its process has ended; the id and the time at which it started
are not. Both come from /proc; where that is missing, an id is all there is.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
MAX_COMMAND_LETTERS = 4096
STATE, PARENT, SESSION, TERMINAL, START = 0, 1, 3, 4, 19  # of the fields behind the name
LAUNCH = "deepspeed.launcher.launch"
RUNNER = ("deepspeed", "deepspeed.launcher.runner")
ATTEND, ATTENDED = "dsforge.train.attend", "--attended"
INTERPRETER_WORDS = 4  # that hold the module or program: `python -u -m NAME`


class Process(NamedTuple):
    """A process that was seen alive; `started` is in clock ticks since the boot, 0 if unknown."""

    pid: int
    started: int


def living(pid: int) -> Process | None:
    """A process that lives now; none where it has ended, even if nobody has collected it yet."""
    fields = _fields(pid)
    if fields:
        return None if fields[STATE] in "ZX" else Process(pid, int(fields[START]))
    if (PROC / "self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # another user's
    return Process(pid, 0)


def lives(process: Process) -> bool:
    """Whether this very process is still there, and not another with its id."""
    return living(process.pid) == process


def parent_of(pid: int) -> int:
    """The id of the process that this one belongs to now; 0 where that is not known."""
    fields = _fields(pid)
    return int(fields[PARENT]) if fields else 0


def words_of(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty where it cannot be read."""
    try:
        with (PROC / str(pid) / "cmdline").open("rb") as stream:
            text = stream.read(MAX_COMMAND_LETTERS)
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in text.split(b"\0") if word)


def name_of(pid: int) -> str:
    """The short name of a process, as `ps` shows it."""
    try:
        return (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def owns_a_terminal(pid: int) -> bool:
    """Whether a process leads the session of a terminal, as the shell of a person does."""
    fields = _fields(pid)
    return bool(fields) and int(fields[SESSION]) == pid and int(fields[TERMINAL]) != 0


def boot() -> str:
    """The name that the kernel gave this boot of the machine; empty where it gives none."""
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def end_children() -> None:
    """Ask the processes that this one has started to end, such as the build of an op."""
    for task in PROC.glob("self/task/*/children"):
        with suppress(OSError):
            for pid in task.read_text(encoding="ascii").split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGTERM)


def launchers() -> tuple[Process, ...]:
    """The processes that must live while this rank does: those that started it as one of a job.

    The parent; under DeepSpeed all up to the `deepspeed` command, or on other hosts up to the
    login through which it came. None where this process is a run of its own, or where a person
    started the rank in a shell, which may be closed.
    """
    parent = os.getppid()
    if "RANK" not in os.environ or owns_a_terminal(parent):
        return ()
    chain = _up_to_launch(parent)
    chain += _launcher_ancestors(chain[-1]) if chain else [parent]
    attending = parent_of(chain[-1])
    chain += [attending] if ATTEND in words_of(attending) else []
    return tuple(found for found in map(living, chain) if found is not None)


def came_by_login(launchers_of_rank: tuple[Process, ...]) -> bool:
    """Whether a launch script started this rank through a login, which alone tells of its end.

    The remote side of ssh may live on where the launcher has ended: only what the rank says is read
    by nobody then.
    """
    here = any(ATTEND in words_of(found.pid) for found in launchers_of_rank)
    return bool(launchers_of_rank) and ATTENDED in words_of(os.getpid()) and not here


def orphaned() -> bool:
    """Whether what started this rank has ended already: DeepSpeed's launcher, or its login."""
    parent = os.getppid()
    told = "CROSS_SIZE" in os.environ and "RANK" in os.environ  # only that launcher sets both
    if not told or not words_of(parent):
        return False
    chain = _up_to_launch(parent)
    if not chain:
        return True
    above = parent_of(chain[-1])
    while any(LAUNCH in word for word in words_of(above)):  # the shell of the login
        above = parent_of(above)
    return above <= 1 and ATTENDED in words_of(os.getpid())


def ranks_of(launch: str) -> set[Process]:
    """The ranks on this machine of a launch by its name, which stands in their command lines.

    A process that a rank has started, even a copy of it, is none.
    """
    found = set()
    for folder in PROC.glob("[0-9]*"):
        words = words_of(int(folder.name))
        if launch in words and "dsforge.train" in words and _has_local_rank(folder):
            found.add(living(int(folder.name)))
    ranks = {rank for rank in found if rank is not None}
    ids = {rank.pid for rank in ranks}
    return {rank for rank in ranks if parent_of(rank.pid) not in ids}


def _has_local_rank(folder: Path) -> bool:
    with suppress(OSError):
        return b"\0LOCAL_RANK=" in b"\0" + (folder / "environ").read_bytes()
    return False


def _up_to_launch(pid: int) -> list[int]:
    """A process and those above it up to DeepSpeed's launcher of this host; none without one."""
    found: list[int] = []
    while pid > 0:
        found.append(pid)
        if LAUNCH in words_of(pid):
            return found
        pid = parent_of(pid)
    return []


def _launcher_ancestors(pid: int) -> list[int]:
    """What started DeepSpeed's launcher of this host: the command itself, or shells of a login."""
    found: list[int] = []
    above = parent_of(pid)
    while above > 1 and not owns_a_terminal(above):
        found.append(above)
        beginning = [Path(word).name for word in words_of(above)[:INTERPRETER_WORDS]]
        if name_of(above).startswith("sshd") or any(word in RUNNER for word in beginning):
            return found
        above = parent_of(above)
    return []


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold anything; else none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
