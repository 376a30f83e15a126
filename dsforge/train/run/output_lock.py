"""Lock of an output folder: one run at a time writes to it.

Two runs in one folder replace each other's checkpoints. So the first rank locks `.lock` in the
folder through the kernel as long as it runs, and writes into it who it is; the record also tells
people which run is in the way. Some shared file systems lock within one host only: for runs on
other hosts the record counts, whose time the holder renews. A holder that was killed leaves
the file: its kernel lock is gone or its time is old, and the next run takes over.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread

from pydantic import BaseModel, Field, ValidationError

from dsforge.artifacts.whole import make_folder
from dsforge.errors import DsforgeError
from dsforge.specs import FROZEN
from dsforge.train.parallel.ranks import Place, restarts
from dsforge.train.run.process_tree import Process, boot, lives, living

NAME = ".lock"
BEAT_S = 15.0
DEAD_S = 120.0  # without a beat; network file systems may show a time a minute late
SKEW_S = 60.0  # between the clocks of hosts
SETTLING_S = 1.0  # until another host would see that it was not the only one to take over
TRIES = 5
MAX_RECORD_BYTES, MAX_FIELD_LETTERS = 8192, 1024  # bytes of a record, letters of a field
FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Say = Callable[[str], None]


class Holder(BaseModel):
    """The run that holds an output folder, as it wrote itself into the lock."""

    model_config = FROZEN

    host: str = Field(pattern=r"^[A-Za-z0-9._-]{1,255}$", description="Host name of the process.")
    pid: int = Field(ge=1, le=2**31, description="Process id on that host.")
    process_started: int = Field(
        ge=0, description="Start time of the process, in ticks since boot."
    )
    boot: str = Field(max_length=64, description="Boot id of the machine.")
    started: int = Field(ge=0, le=2**33, description="Unix time in seconds.")
    job: str = Field(
        max_length=MAX_FIELD_LETTERS, description="Identity of the job, the same on all its ranks."
    )
    restarts: int = Field(ge=0, description="Number of restarts by torchrun.")
    command: str = Field(max_length=MAX_FIELD_LETTERS, description="Command line of the process.")

    def __str__(self) -> str:
        """`run 4711 on node1 since 2026-11-22 07:30:12 UTC`."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        return f"run {self.pid} on {self.host} since {since}"


def present_holder() -> Holder:
    """The present process as the holder of a lock."""
    own = living(os.getpid()) or Process(os.getpid(), 0)
    return Holder(
        host=re.sub(r"[^A-Za-z0-9._-]", "-", platform.node())[:255] or "unknown",
        pid=own.pid,
        process_started=own.started,
        boot=boot(),
        started=int(time.time()),
        job=_job(),
        restarts=restarts(),
        command=_plain(" ".join(sys.argv)),
    )


def _job() -> str:
    """What all ranks of a job have in common: the name of the job, or where they meet."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    meeting = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', os.getpid())}"
    return _plain(meeting if name == "none" else name)


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode()[:MAX_FIELD_LETTERS]


@contextmanager
def held(output: Path, place: Place, say: Say, on_leaving: Callable[..., None]) -> Iterator[None]:
    """The output folder, made where it is missing, and held by the first rank while inside.

    Raises DsforgeError where another run holds it, or where it cannot be written to.
    `on_leaving` takes what is to be done if this process ends without coming back here.
    """
    if not place.is_first:
        yield
        return
    is_new = not output.exists()
    make_folder(output, "choose another with `--output`", f"the output folder {output}")
    lock = _taken(output, say, on_leaving)
    try:
        yield
    finally:
        lock.release()
        if is_new:
            with suppress(OSError):  # holds something
                output.rmdir()


def check_holder(output: Path, place: Place) -> None:
    """Raise DsforgeError where another job holds the folder: its first rank was refused then.

    For the other ranks, before they would wait for their own first rank, or meet the other job's.
    """
    if place.is_first:
        return
    try:
        descriptor = _opened(output / NAME)
    except DsforgeError:
        return  # none yet, or none that could be read
    try:
        holder, own = _record(descriptor), present_holder()
        is_renewed = _age(output, descriptor) < DEAD_S
    except OSError:
        return
    finally:
        os.close(descriptor)
    if holder is None or not is_renewed:
        return
    if holder.job != own.job or (not own.restarts and _is_older(holder)):
        raise _refusal(output, holder)


def _is_older(holder: Holder) -> bool:
    """Whether a run began long before this process did."""
    own = living(os.getpid())
    ticks = os.sysconf("SC_CLK_TCK")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (own.started / ticks if own else 0)
    return holder.started < time.time() - age_s - SKEW_S


@dataclass(slots=True)
class _Lock:
    """A lock that is held; its time is renewed until it is released."""

    path: Path
    descriptor: int
    over: Event = field(default_factory=Event)

    def write(self, own: Holder) -> None:
        """Put its holder's record into it, or give it back. Raises DsforgeError."""
        try:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, own.model_dump_json(indent=2).encode() + b"\n", 0)
            os.fsync(self.descriptor)
        except OSError as error:
            self.release()
            message = f"the lock of the output folder cannot be written: {error.strerror}"
            hint = "free disk space, or choose another folder with `--output`"
            raise DsforgeError(message, hint) from error

    def give_up(self) -> None:
        """Leave the file to the other run whose record is in it."""
        self.over.set()
        os.close(self.descriptor)

    def start(self) -> None:
        """Renew the time of the lock from now on."""
        Thread(target=self._beat, name="output lock", daemon=True).start()

    def _beat(self) -> None:
        while not self.over.wait(BEAT_S):
            with suppress(OSError):
                os.utime(self.descriptor)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self.over.is_set():
            return
        self.over.set()
        with suppress(OSError):
            if _is_at(self.path, self.descriptor):
                self.path.unlink()
        os.close(self.descriptor)


def _taken(output: Path, say: Say, on_leaving: Callable[..., None]) -> _Lock:
    """The lock of a folder, which this process removes however it ends. Raises DsforgeError."""
    path, own = output / NAME, present_holder()
    for _ in range(TRIES):
        descriptor = _opened(path, create=True)
        try:
            is_sure = _locked(descriptor)
            if is_sure is None or not _is_at(path, descriptor):
                if is_sure is None:
                    raise _refusal(output, _awaited_record(descriptor))
                continue  # its last holder has just removed it
            found = _awaited_record(descriptor) if os.fstat(descriptor).st_size else None
            is_unclear = not is_sure or (found is not None and found.boot != own.boot)
            if found is not None and _still_runs(found, own, output, descriptor, is_sure=is_sure):
                raise _refusal(output, found)
            if os.fstat(descriptor).st_size:
                say(
                    f"{found or 'a run without a record'} has ended without removing {path}: its "
                    "lock is replaced"
                )
            lock, descriptor = _Lock(path, descriptor), -1
            on_leaving(lock.release)
            lock.write(own)
            if is_unclear:
                time.sleep(SETTLING_S)
                if (now := _record(lock.descriptor)) != own:
                    lock.give_up()
                    raise _refusal(output, now)
            lock.start()
            return lock
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    raise _refusal(output, None)


def _refusal(output: Path, holder: Holder | None) -> DsforgeError:
    who = str(holder) if holder else "another run"
    hint = "stop it, or choose another folder with `--output`"
    if holder is None or holder.boot != boot():
        hint += f"; if it has ended, remove {output / NAME}"
    return DsforgeError(f"{who} writes to {output}", hint)


def _still_runs(
    found: Holder, own: Holder, output: Path, descriptor: int, *, is_sure: bool
) -> bool:
    """Whether the run in a record may still be at work although its lock was to be had."""
    if found.job == own.job and found.restarts < own.restarts:
        return False  # torchrun has started this one in its place
    if found.boot == own.boot:
        return not is_sure and lives(Process(found.pid, found.process_started))
    return _age(output, descriptor) < DEAD_S


def _age(output: Path, descriptor: int) -> float:
    """Seconds since a lock was renewed, by the clock of its file system."""
    with TemporaryFile(dir=output) as now:
        return os.fstat(now.fileno()).st_mtime - os.fstat(descriptor).st_mtime


def _opened(path: Path, *, create: bool = False) -> int:
    """A descriptor of the lock's file, which is a plain one. Raises DsforgeError."""
    hint = f"remove {path}, or choose another folder with `--output`"
    try:
        descriptor = os.open(path, FLAGS | (os.O_CREAT if create else 0), 0o644)
    except OSError as error:
        if path.is_symlink() or path.is_dir():
            raise DsforgeError(f"{path} is not a plain file", hint) from error
        message = f"{path.parent} cannot be written to: {error.strerror}"
        raise DsforgeError(message, "choose another folder with `--output`") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise DsforgeError(f"{path} is not a plain file", hint)
    return descriptor


def _locked(descriptor: int) -> bool | None:
    """True once the kernel has given the lock, None where another has it, False without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still names the file that is open."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _record(descriptor: int) -> Holder | None:
    """The run that a lock names; none where it holds something else."""
    try:
        return Holder.model_validate_json(os.pread(descriptor, MAX_RECORD_BYTES, 0))
    except (OSError, ValidationError):
        return None


def _awaited_record(descriptor: int) -> Holder | None:
    """As `_record`; a run that has just begun gets the time to write it."""
    for _ in range(TRIES):
        if (found := _record(descriptor)) is not None:
            return found
        time.sleep(SETTLING_S / TRIES)
    return None
