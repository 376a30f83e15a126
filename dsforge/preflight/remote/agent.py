"""Answer: the loop on a host. Questions come as JSON lines on stdin, answers go out on stdout.

An answer begins with `MARK`, because a login shell may print a greeting into the same stream. When
the asking side goes, stdin ends and so does this; an alarm ends it if even that does not arrive.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from dsforge.preflight.remote.connections import listen, reach, stream
from dsforge.preflight.remote.machine import machine_facts
from dsforge.preflight.remote.software import (
    extensions_root,
    interpreter_facts,
    software_facts,
    torch_version,
    unlock,
)

MARK = "dsforge-answer:"
LONGEST_LIFE_S = 180


def answer_all(lines: Iterable[str], write: Callable[[str], object]) -> None:
    """Answer each question as it comes, until there are no more."""
    signal.alarm(LONGEST_LIFE_S)
    for line in lines:
        question = json.loads(line)
        try:
            reply = {"reply": ANSWERS[question.pop("ask")](**question)}
        except Exception as error:
            reply = {"failure": f"{type(error).__name__}: {error}"[:300]}
        write(f"{MARK}{json.dumps(reply)}\n")
        sys.stdout.flush()


def clock() -> float:
    """Seconds since 1970 by this host."""
    return time.time()


def facts(job: dict[str, Any]) -> dict[str, Any]:
    """All that this host says about itself."""
    return {**machine_facts(), **software_facts(job)}


def locks(job: dict[str, Any]) -> list[str]:
    """The build locks that are left once those of dead builds have been removed."""
    python = interpreter_facts(job["interpreter"], job["packages"])
    return unlock(extensions_root(python, job["extensions"]), torch_version(python))


ANSWERS: dict[str, Callable[..., Any]] = {
    "clock": clock,
    "facts": facts,
    "locks": locks,
    "listen": listen,
    "reach": reach,
    "stream": stream,
}
