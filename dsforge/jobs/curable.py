"""Which deaths a restart can cure: machines, links and services that failed, and nothing else.

A mistake in a config, data that cannot be read and memory that does not suffice are the same after
a restart. `dsforge diagnose` names the cause; the rules below are those of faults that pass.
"""

from __future__ import annotations

from dsforge.diagnose import diagnose_stream
from dsforge.diagnose.report import CONFIDENT

CURABLE = frozenset(
    (
        "bus-error",
        "clients-missing",
        "file-system-lost",
        "gloo-connect",
        "gloo-timeout",
        "gpu-lost",
        "hub-server",
        "hub-unreachable",
        "infiniband-error",
        "killed",
        "master-unreachable",
        "name-resolution",
        "nccl-connect",
        "nccl-error",
        "nccl-heartbeat",
        "nccl-timeout",
        "peer-lost",
        "port-in-use",
        "ray-actor-died",
        "recorder-all-waiting",
        "recorder-behind",
        "rendezvous-failed",
        "slurm-preempted",
        "ssh-refused",
        "ssh-timeout",
        "store-barrier",
        "store-timeout",
        "terminated",
        "worker-killed",
    )
)  # ids of rules of diagnose
KILLED_BY = 128  # and more: the exit code of a process that a signal ended


def is_curable(log: str, code: int) -> tuple[bool, str]:
    """Whether a restart can cure what the log of a start shows, and what that is."""
    causes = diagnose_stream([log.encode()], "log", None)
    if causes and causes[0].confidence >= CONFIDENT:
        return causes[0].rule in CURABLE, causes[0].message
    if code > KILLED_BY:
        return True, f"ended by signal {code - KILLED_BY}"
    return False, "cause unknown"
