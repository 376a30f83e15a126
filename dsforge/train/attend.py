"""Runs a launcher and passes signals on to its ranks; `launch/*.sh` start it as their process.

A launcher that gets a signal gives its ranks 30 seconds, or none. So the launcher runs in a group
of its own, which no terminal signals, and TERM, INT and HUP go to the ranks of this machine: all
ranks agree on the end, on other machines too, finish the step, save, and the launcher ends after
them. A second signal ends all at once, as does the end of their time, DSFORGE_GRACE_S.

The port at which the ranks meet is reserved before (`meeting_port.py`): launches at the same time
do not take it from each other.

Two processes do this. The first is the one that is signalled, or killed; the second starts the
launcher and goes on without the first: its end counts as SIGTERM.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from dsforge.errors import RunError
from dsforge.outside import UnreadableError, read_text
from dsforge.process import Group
from dsforge.train.meeting_port import meeting
from dsforge.train.relay import STDERR, STDOUT, Relay, new_log
from dsforge.train.run.process_tree import ATTENDED, Process, lives, ranks_of
from dsforge.train.run.signals import HANDLED, KILLED_BY, STOPPED

MODULE, OUTPUT = "dsforge.train", "--output"  # words of a launch
MOST_YAML_BYTES = 1 << 19
SILENCE_S = 9.0  # ranks say what they do every 8 s
LOOK_S = 0.5
REST_S = 30.0  # for the launcher and other machines, once no rank is left on this one
MAX_GRACE_S = 1e6
OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # this is none, wherever it was started


def main() -> int:
    """The exit code of a launch."""
    command = sys.argv[1:]
    grace_s = _seconds(os.environ.get("DSFORGE_GRACE_S", "600"))
    if not command or grace_s is None:
        sys.stderr.write(
            "usage: python -m dsforge.train.attend LAUNCHER ...\n"
            "DSFORGE_GRACE_S must be a number of seconds from 0 to 1000000\n"
        )
        return 2
    reader, writer = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    attending = os.fork()
    if attending:
        os.close(reader)
        return _passed_on(attending)
    os.close(writer)
    os.setsid()
    try:
        place = meeting(command, os.environ)  # its reservation lasts as long as it does
        return Launch(place.command, grace_s, front=reader, said=place.said).ended()
    except RunError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.code


def _seconds(text: str) -> float | None:
    """A time as the environment gives it; none where it is no such time."""
    with suppress(ValueError):
        if 0 <= (found := float(text)) <= MAX_GRACE_S:
            return found
    return None


def _passed_on(attending: int) -> int:
    """The exit code of the process that attends to the launch; it gets the signals of this one."""

    def pass_on(number: int, _: object) -> None:
        os.kill(attending, number)

    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    code = os.waitstatus_to_exitcode(os.waitpid(attending, 0)[1])
    return code if code >= 0 else KILLED_BY - code


def _note(number: int, frame: object) -> None:
    """The handler of each signal: its number went into the pipe that is read."""


@dataclass(slots=True)
class Launch:
    """A launcher and its ranks on this machine, from their start to the end of all of them."""

    command: list[str]
    grace_s: float
    front: int  # ends when the process in front does
    said: str = ""  # of the launch, before anything else
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    asked: int = 0  # the first signal
    end: float = inf  # of the time that the ranks have
    rest: float = inf  # when the launcher is not waited for any longer
    told: set[Process] = field(default_factory=set)

    def ended(self) -> int:
        """The exit code, once the launcher and its ranks on this machine have ended."""
        signals, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        kept = {key: text for key, text in os.environ.items() if key not in OF_A_RANK}
        begun, relay = time.monotonic(), Relay(_log_of(self.command))
        out, errors = relay.pipe(STDOUT), relay.pipe(STDERR)
        if self.said:
            relay.say(self.said)
        launcher = Group((*self.command, ATTENDED, self.name), kept, out=out, errors=errors)
        os.close(out)
        os.close(errors)
        open_ends = [signals, self.front]
        while (code := launcher.code) is None or ranks_of(self.name):
            for end in select.select(open_ends, [], [], LOOK_S)[0]:
                heard = os.read(end, 1)
                if end == signals:
                    self._on_signal(heard[0], launcher)
                else:
                    open_ends.remove(end)
                    self._ask(signal.SIGTERM)
            if relay.silent_s > SILENCE_S:
                relay.say(f"no output from the ranks, {time.monotonic() - begun:.0f} s after start")
            self._end_late_ranks(launcher)
        relay.end()
        return self._code(code)

    def _on_signal(self, number: int, launcher: Group) -> None:
        if number not in HANDLED:
            return
        if self.asked:
            self._end_at_once(launcher)
        self._ask(number)

    def _ask(self, number: int) -> None:
        """Have all end; the first who asks counts."""
        self.asked = self.asked or number
        self.end = min(self.end, time.monotonic() + self.grace_s)

    def _end_late_ranks(self, launcher: Group) -> None:
        """Tell ranks that do not know it yet to end; end what is late."""
        if launcher.code is not None:  # its ranks are left
            self.end = min(self.end, time.monotonic() + self.grace_s)
        if self.end == inf:
            return
        ranks = ranks_of(self.name)
        for rank in ranks - self.told:
            _send(rank, signal.SIGTERM)
        self.told |= ranks
        now = time.monotonic()
        self.rest = inf if ranks else min(self.rest, now + (REST_S if self.told else 0))
        if now >= self.rest:
            _end(launcher, Path(self.command[0]).name)
            self.rest = now + REST_S
        if now >= self.end:
            self._end_at_once(launcher)

    def _end_at_once(self, launcher: Group) -> None:
        """Kill the ranks and the launcher; ranks elsewhere notice that their login has ended."""
        for rank in ranks_of(self.name):
            _send(rank, signal.SIGKILL)
        launcher.signal(signal.SIGKILL)

    def _code(self, code: int) -> int:
        """The exit code of a launcher as shells count it, and as the signal asks for."""
        code = code if code >= 0 else KILLED_BY - code
        if not self.asked:
            return code
        if code == 0:
            return STOPPED if self.asked == signal.SIGINT else 0
        return KILLED_BY + self.asked if code > KILLED_BY else code


def _log_of(command: list[str]) -> Path | None:
    """The log of a launch, in the output folder of its job; none where that is not known."""
    words = command[command.index(MODULE) + 1 :] if MODULE in command else []
    if not words:
        return None
    log = new_log(_output_of(Path(words[0]), words))
    if log is not None:
        sys.stderr.write(f"log of this launch: {log}\n")
        sys.stderr.flush()
    return log


def _output_of(job: Path, words: list[str]) -> Path:
    """The output folder of a job: as the command line, or its train.yaml, names it."""
    if OUTPUT in words[:-1]:
        return Path(words[words.index(OUTPUT) + 1])
    import yaml

    try:
        values = yaml.safe_load(read_text(job, MOST_YAML_BYTES, pipes=False))
    except (UnreadableError, yaml.YAMLError, RecursionError):
        values = None  # the ranks say what is wrong with it
    named = values.get("output") if isinstance(values, dict) else None
    name = named if isinstance(named, str) and "\0" not in named else "output"
    return job.parent / name


def _send(rank: Process, number: int) -> None:
    with suppress(OSError):
        if lives(rank):
            os.kill(rank.pid, number)


def _end(launcher: Group, name: str) -> None:
    """End a launcher without ranks on this machine; those of others notice it.

    `deepspeed` is not asked: it would end every launch of this user on its hosts.
    """
    if name == "deepspeed":
        launcher.kill()
    launcher.signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
