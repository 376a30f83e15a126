"""On another machine: the first host of the hostfile, where a keeper is called over ssh.

The host has this run folder and this installation at the same paths, as the launch scripts need it.
What it answers may be hostile: it is bounded, and read as JSON of a known form.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from pydantic import ValidationError

from dsforge import process
from dsforge.errors import DsforgeError
from dsforge.hostfile import hostfile_entries
from dsforge.jobs import local
from dsforge.jobs.job import MOST_BYTES, Job
from dsforge.jobs.keeper import Answer
from dsforge.jobs.place import Part, Place, Seen, Wish
from dsforge.outside import UnreadableError, read_text
from dsforge.preflight.job_files import ssh_options
from dsforge.reading.stored import read_plan
from dsforge.render.launch import EXAMPLE_PREFIXES

CONNECT_S = 10
ANSWER_S = 90.0


def first_host(run: Path) -> str:
    """The first host of the hostfile. Raises DsforgeError, also for a line that could harm."""
    hostfile = run / "hostfile"
    try:
        text = read_text(hostfile, MOST_BYTES, pipes=False)
    except UnreadableError as error:
        raise DsforgeError(f"{hostfile} {error}", "dsforge gen --hostfile FILE") from error
    entries = hostfile_entries(text, str(hostfile))
    if not entries:
        raise DsforgeError(f"{hostfile} names no host", "write: 10.0.0.1 slots=8")
    address = entries[0].address
    if address.startswith(EXAMPLE_PREFIXES):
        message = f"{hostfile} still holds the example address {address}"
        raise DsforgeError(message, "write the addresses of your hosts there")
    return address


def ask(run: Path, host: str, verb: str, number: int = 0) -> Answer:
    """The answer of the keeper on a host. Raises DsforgeError."""
    (entry,) = hostfile_entries(f"{host} slots=1", "host of the job")
    plan = run / "plan.json"
    cluster = read_plan(plan).cluster if plan.is_file() else None
    options = ssh_options(cluster, os.environ)
    there = (sys.executable, "-m", "dsforge.jobs", verb, str(run.resolve()), str(number))
    limits = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")
    command = ("ssh", *limits, *options, "--", entry.address, shlex.join(there))
    done = process.run(command, timeout_s=ANSWER_S)
    lines = [line for line in done.output.splitlines() if line.startswith("{")]
    try:
        found = Answer.model_validate_json(lines[-1] if lines else "")
    except ValidationError as error:
        what = f"`dsforge {verb}` on {host}"
        done.check(what, f"this must work: ssh -o BatchMode=yes {host} true")
        raise DsforgeError(f"{what} gave no answer") from error
    if found.error:
        raise DsforgeError(f"{host}: {found.error}")
    return found


def submit(run: Path, wish: Wish) -> Job:
    """Start the run in the background of the first host."""
    host = first_host(run)
    state = ask(run, host, "start", wish.retries).state
    if state is None:
        raise DsforgeError(f"{host} did not start {run}")
    return local.job_of(state, run, wish).model_copy(update={"place": "ssh", "host": host})


def _host(job: Job) -> str:
    if job.host is None:
        raise DsforgeError("the note of the job names no host", "submit the run again")
    return job.host


def look(run: Path, job: Job) -> Seen:
    """The state that the keeper there noted."""
    found = ask(run, _host(job), "state")
    return local.seen(found.state, alive=found.alive)


def read(run: Path, job: Job, offset: int) -> Part:
    """The log there."""
    found = ask(run, _host(job), "log", offset)
    return Part(found.text, found.end)


def cancel(run: Path, job: Job) -> None:
    """SIGTERM to the keeper there."""
    ask(run, _host(job), "stop")


PLACE = Place("ssh", submit, look, read, cancel)
