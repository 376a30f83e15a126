"""Collection of facts: every host is asked at the same time, over the launcher's own ssh.

The programs of `remote/` are sent over stdin, so a host needs no dsforge. The command that the
remote shell sees is a constant; whatever comes from outside is sent as JSON. Answers are bounded
in size and time and validated before anything reads them.
"""

from __future__ import annotations

import json
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json

from dsforge.origin import distribution_of
from dsforge.preflight import remote
from dsforge.preflight.case import EXPORTED_PREFIXES, Case, Clock, Job
from dsforge.preflight.checks.environment import RANK_VARIABLES
from dsforge.preflight.host_facts import Call, HostFacts, Listening, Real, Stream
from dsforge.preflight.job_files import LOCAL
from dsforge.preflight.remote.agent import MARK
from dsforge.process import TIMEOUT_CODE, Dialogue

T = TypeVar("T")
MODULES = ("machine", "software", "connections", "agent")
BOOT = "import json,sys;exec(json.loads(sys.stdin.readline()))"
LOADER = """
import json, sys, types
for name in ("dsforge", "dsforge.preflight", "dsforge.preflight.remote"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in json.loads(sys.stdin.readline()):
    module = sys.modules["dsforge.preflight.remote." + name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
module.answer_all(sys.stdin, sys.stdout.write)
"""
CONNECT_S, LOGIN_S, FACTS_S, MESH_S = 5, 15.0, 20.0, 12.0
STREAM_S = 1.0
SSH_CODE, NOT_FOUND_CODE = 255, 127  # ssh itself failed; the remote shell found no such program
CLOCK_ASKED = 3
AT_ONCE = 64
MAX_ANSWER_BYTES = 1 << 18
MAX_WORDS = 300  # of what a host says that is no answer


def collect(job: Job, *, fix: bool = False, measure: bool = True) -> Case:
    """Facts of all hosts of a job, and the results of their calls to each other."""
    hosts = tuple(entry.address for entry in job.entries)
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(hosts)))) as pool:
        sessions = dict(zip(hosts, pool.map(lambda host: _Session(job, host), hosts), strict=True))
        try:
            return _case(job, sessions, pool, fix=fix, measure=measure)
        finally:
            list(pool.map(lambda session: session.end(), sessions.values()))


def _case(
    job: Job,
    sessions: dict[str, _Session],
    pool: ThreadPoolExecutor,
    *,
    fix: bool,
    measure: bool,
) -> Case:
    """The case, question by question; a host that failed to answer is not asked again."""

    def each(question: Callable[[str, _Session], T | None], hosts: Iterable[str]) -> dict[str, T]:
        asked = [host for host in hosts if not sessions[host].loss]
        replies = pool.map(lambda host: question(host, sessions[host]), asked)
        return {h: reply for h, reply in zip(asked, replies, strict=True) if reply is not None}

    clocks = each(lambda _, session: session.clock(), sessions)
    facts = each(lambda _, session: session.facts(), clocks)
    left = each(lambda _, session: session.locks(), facts) if fix else {}
    port = job.master_port
    tokens = {host: secrets.token_hex(8) for host in facts}
    listening = each(lambda host, session: session.listen(port, tokens[host]), facts)
    peers = {h: tokens[h] for h in listening} if len(job.entries) > 1 else {}
    wanted = peers | _launcher_address(job, facts, peers)
    calls = each(lambda host, session: session.calls(host, wanted, port), peers)
    open_hosts = [host for host in peers if not listening[host].error]
    after = dict(zip(open_hosts, [*open_hosts[1:], *open_hosts[:1]], strict=True))
    streams: dict[str, Stream] = {}
    if measure and len(open_hosts) > 1:
        streams = each(lambda host, session: session.stream(after[host], port), after)
    lost = {host: session.loss for host, session in sessions.items() if session.loss}
    known = {host: fact for host, fact in facts.items() if host not in lost}
    return Case(job, known, lost, clocks, listening, calls, streams, left)


def _launcher_address(
    job: Job, facts: dict[str, HostFacts], peers: dict[str, str]
) -> dict[str, str]:
    """The address that the launcher would take for the first host, where the hostfile has another.

    Any host may have that address itself; the token says whether it is the first one that answers.
    """
    first = job.entries[0].address if job.entries else ""
    if first not in peers or first not in facts:
        return {}
    return {address: peers[first] for address in facts[first].addresses[:1] if address not in peers}


def command(job: Job, host: str) -> tuple[str, ...]:
    """The command that starts the agent on a host: directly on this one, else by ssh or srun."""
    if host == LOCAL or (len(job.entries) == 1 and not job.slurm):
        return (sys.executable, "-I", "-S", "-c", BOOT)
    there = ("python3", "-I", "-S", "-c", BOOT)
    if job.slurm:
        one = ("--overlap", "--unbuffered", "--nodes=1", "--ntasks=1")
        return ("srun", *one, f"--nodelist={host}", *there)
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", *job.ssh)
    return ("ssh", *options, "--", host, shlex.join(there))


class _Session:
    """The connection to one host; `loss` says why it failed."""

    def __init__(self, job: Job, host: str) -> None:
        self.loss = ""
        self._greeting = ""  # the last line that was no answer: a shell that refuses says why
        self._job = {
            "interpreter": job.interpreter,
            "packages": {name: distribution_of(name) for name in job.packages},
            "folder": str(job.folder),
            "files": list(job.files),
            "prefixes": [*RANK_VARIABLES, *EXPORTED_PREFIXES],
            "nvme": job.config.swap_folder,
            "extensions": job.exported.get("TORCH_EXTENSIONS_DIR", ""),
        }
        self._said = Dialogue(command(job, host), longest_bytes=MAX_ANSWER_BYTES)
        self._said.say(json.dumps(LOADER))
        self._said.say(json.dumps([(name, _source(name)) for name in MODULES]))

    def clock(self) -> Clock | None:
        """How far its clock is ahead, by the fastest of a few questions."""
        readings = []
        for _ in range(CLOCK_ASKED):
            asked = time.time()
            answer = self._ask(TypeAdapter(Real), LOGIN_S, ask="clock")
            if answer is None:
                return None
            half = (time.time() - asked) / 2
            readings.append(Clock(answer - asked - half, half))
        return min(readings, key=lambda clock: clock.error_s)

    def facts(self) -> HostFacts | None:
        """All facts of the host."""
        return self._ask(TypeAdapter(HostFacts), FACTS_S, ask="facts", job=self._job)

    def locks(self) -> tuple[str, ...] | None:
        """The build locks that are left after it has removed the stale ones."""
        return self._ask(TypeAdapter(tuple[str, ...]), FACTS_S, ask="locks", job=self._job)

    def listen(self, port: int, token: str) -> Listening | None:
        """Whether it could listen on the port of the job."""
        return self._ask(TypeAdapter(Listening), MESH_S, ask="listen", port=port, token=token)

    def calls(self, host: str, peers: dict[str, str], port: int) -> tuple[Call, ...] | None:
        """Results of its calls to all others; `peers` has the token of each."""
        others = {peer: token for peer, token in peers.items() if token != peers[host]}
        return self._ask(
            TypeAdapter(tuple[Call, ...]), MESH_S, ask="reach", peers=others, port=port
        )

    def stream(self, peer: str, port: int) -> Stream | None:
        """The transfer rate to one peer."""
        kind = TypeAdapter(Stream)
        return self._ask(kind, MESH_S, ask="stream", peer=peer, port=port, seconds=STREAM_S)

    def end(self) -> None:
        """Close the connection."""
        self._said.end()

    def _ask(self, kind: TypeAdapter[T], timeout_s: float, **question: Any) -> T | None:
        """The validated answer to a question; none where it failed, and `loss` says why."""
        self._said.say(json.dumps(question))
        deadline = time.monotonic() + timeout_s
        while (line := self._said.line(deadline - time.monotonic())) is not None:
            if not line.startswith(MARK):
                self._greeting = line.strip()[:MAX_WORDS] or self._greeting
                continue
            try:
                answer = from_json(line[len(MARK) :])
                if isinstance(answer, dict) and "reply" in answer:
                    return kind.validate_python(answer["reply"])
                self.loss = f"the question {question['ask']} failed: {str(answer)[:200]}"
            except ValueError as error:  # pydantic's ValidationError is one
                reason = str(error).splitlines()[0][:200]
                self.loss = f"its answer to {question['ask']} is invalid: {reason}"
            return None
        self.loss = self._last_words(question["ask"], timeout_s)
        return None

    def _last_words(self, question: str, timeout_s: float) -> str:
        """Why there was no answer: the last message of ssh, else the time limit."""
        done = self._said.end(grace_s=0.5)
        if self._said.flooded:
            return f"prints too much output for the question {question}: `{self._greeting[:80]}`"
        lines = [line.strip()[:MAX_WORDS] for line in done.output.splitlines() if line.strip()]
        lines = lines or [self._greeting] * bool(self._greeting)
        last = lines[-1] if lines else f"the connection ended with exit code {done.code}"
        if done.code == TIMEOUT_CODE:
            return f"no answer within {timeout_s:.0f} s: {last}"
        if done.code in (SSH_CODE, NOT_FOUND_CODE):
            return last
        return f"the question {question} ended with exit code {done.code}: {last}"


def _source(name: str) -> str:
    """The text of one of the programs that run on a host."""
    return (Path(remote.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
